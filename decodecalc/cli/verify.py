"""`decodecalc verify`: every prediction held against the machine."""

from __future__ import annotations

import hashlib
import json
import shlex
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from decodecalc.cli.options import (
    batch_options,
    cache_options,
    engine_options,
    layer_options,
    resolve_batches,
    resolve_gpu,
    resolve_kv,
    resolve_layers,
    resolve_opts,
)
from decodecalc.cli.output import emit, write_bytes, write_text
from decodecalc.errors import InputError

if TYPE_CHECKING:
    from decodecalc.gpus import Gpu
    from decodecalc.verify.claims import Finding
    from decodecalc.verify.device import Device
    from decodecalc.verify.ranks import Ranks
    from decodecalc.verify.reports import Journal, Report
    from decodecalc.verify.run import Runner
    from decodecalc.verify.suites import Case, Scenario

SUITES = ("quick", "standard", "full", "tiny")
FORMATS = ("table", "csv", "json", "markdown", "html")
_OWN_SCENARIO = ("model", "q_heads", "batch", "context", "seq_lens")


@click.command(
    "verify",
    epilog="Examples:  decodecalc verify --suite standard --report verify-h200   |   decodecalc verify --model "
    "llama3-8b --tp 8 --batch 1 --context 32k --engine vllm-triton",
)
@click.option("--suite", type=click.Choice(SUITES), help="A set of scenarios. [default: quick, without --model]")
@layer_options
@batch_options
@cache_options
@engine_options
@click.option("--device", "kind", type=click.Choice(["cuda", "interpreter"]), default="cuda", show_default=True,
              help="A GPU, or Triton's interpreter on the CPU (small shapes; claims 1, 3, 4, 7, 12, 13).")  # fmt: skip
@click.option(
    "--gpu", "-g", default=None, help="Whose SMs to plan for, off a GPU. [default: h100-sxm; else the live one]"
)
@click.option("--claims", default=None, metavar="LIST", help="Only these claims: 1,3-5,time. [default: all 13]")
@click.option("--counters", is_flag=True, help="Also DRAM and L2 counters, by Nsight Compute (ncu).")
@click.option("--calibration", metavar="FILE", help="From `decodecalc calibrate` (default: shipped or extrapolated).")
@click.option("--seed", type=int, default=0, show_default=True, help="Of the random tensors.")
@click.option("--dry-run", is_flag=True, help="Show what would be checked; needs no GPU and no torch.")
@click.option(
    "--shard", default=None, metavar="I/N", help="Only the I-th of N parts; `decodecalc report merge` joins them."
)
@click.option("--report", "base", metavar="BASE", help="Write BASE.json, BASE.md, BASE.html and BASE.*.svg.")
@click.option("--resume", is_flag=True, help="Go on with an interrupted run of the same --report.")
@click.option("--against", metavar="FILE", help="An earlier run's JSON: show what got worse beyond both spreads.")
@click.option("--verbose", "-v", is_flag=True, help="Every check on stderr as it is made.")
@click.option("--format", "-f", "format_", type=click.Choice(FORMATS), default="table", show_default=True)
@click.option("--output", "-o", type=click.Path(dir_okay=False), help="Write to this file.")
def command(**values: Any) -> int:
    """Run a real split-K kernel under each engine's rule and hold every prediction against what happened.

    Thirteen claims per case, each with predicted, observed, difference, verdict and how it was observed. Exit code 0:
    all hold; 1: one does not, or could not be checked; 3: no GPU, torch or Triton. Several GPUs: start it with
    torchrun, or give each machine a --shard.
    """
    from decodecalc.engines import load_policies
    from decodecalc.units import parse_shard
    from decodecalc.verify.claims import claim_numbers
    from decodecalc.verify.ranks import Ranks
    from decodecalc.verify.suites import cases, deal

    claims = claim_numbers(values["claims"])
    shard = parse_shard(values["shard"])
    if values["resume"] and not values["base"]:
        raise InputError("--resume goes on with the run of a --report: give the same --report")
    before = None
    if values["against"]:
        from decodecalc.verify.reports import read_report

        before = read_report(values["against"])  # before hours of work, not after
    ranks = Ranks.from_environment()
    interpreted = values["kind"] == "interpreter"
    scenarios, label = _scenarios(values, interpreted)
    engines = list(dict.fromkeys(name for s in scenarios for name in s.engines))
    load_policies(engines)  # a name that does not exist fails before a device is looked for
    options = resolve_opts(values["opts"], values["batch_invariant"], engines)
    inputs: dict[str, Any] = {
        **label,
        "claims": list(claims),
        "options": options,
        "seed": values["seed"],
        "shard": values["shard"],
        "command": shlex.join([*_program(ranks), *_arguments()]),
    }
    if values["dry_run"]:
        return _dry_run(cases(scenarios, resolve_gpu(values["gpu"]), options), claims, inputs, values, shard)
    from decodecalc.verify.device import open_device

    device = open_device(values["kind"], ranks.local)
    gpu = _planned_gpu(device, values["gpu"], ranks)
    planned = cases(scenarios, gpu, options)
    planned = deal(planned, *shard) if shard else planned
    everyone = planned
    planned = deal(planned, ranks.rank + 1, ranks.world) if ranks.world > 1 else planned
    run = _Run(device, gpu, ranks, values, claims, inputs, everyone)
    rows, interrupted = run.rows(planned)
    if ranks.world > 1:
        if interrupted:
            return run.stopped()
        gathered = ranks.gather(rows)
        if gathered is None:
            return run.handed_over()
        rows = [row for part in gathered for row in part]
        order = {case.id: i for i, case in enumerate(everyone)}
        rows.sort(key=lambda row: (order.get(row["case"], 0), row["claim"]))
    return run.finish(rows, interrupted, before)


def _program(ranks: Ranks) -> list[str]:
    """What starts the command again."""
    if ranks.world == 1:
        return ["decodecalc"]
    return ["torchrun", "--nproc-per-node", str(ranks.world), "-m", "decodecalc"]


def _arguments() -> list[str]:
    """The command line as given; empty where the command was called from Python."""
    argv = sys.argv[1:]
    return argv if argv and argv[0] in ("verify", "--debug") else ["verify"]


def _scenarios(values: dict[str, Any], interpreted: bool) -> tuple[list[Scenario], dict[str, Any]]:
    """Scenarios of the suite or of the options, and how to say what was asked."""
    from decodecalc.verify.suites import DENSE, LATENT, Scenario, suite_scenarios

    own = [name for name in _OWN_SCENARIO if values[name] is not None]
    engines = [p.strip() for p in values["engine"].split(",") if p.strip()] if values["engine"] else None
    if values["engine"] is not None and not engines:
        raise InputError("--engine is empty")
    if values["suite"] and own:
        raise InputError(f"--suite brings its own scenarios: leave --{own[0].replace('_', '-')} or --suite out")
    if not own:
        suite = values["suite"] or ("tiny" if interpreted else "quick")
        return suite_scenarios(suite, engines), {"suite": suite, "engines": engines}
    layers, batches, kv = resolve_layers(values), resolve_batches(values), resolve_kv(values)
    name = f"{layers.label}/tp{layers.tp}"
    found = [
        Scenario(
            name, group, batch, kv, tuple(engines or (LATENT if group.geometry.mla else DENSE)), layers.model_kv_heads
        )
        for group in layers.layer_groups
        for batch in batches
    ]
    said = {
        "suite": None,
        "model": layers.label,
        "tp": layers.tp,
        "engines": engines,
        "warnings": list(layers.warnings),
    }
    return found, said


def _planned_gpu(device: Device, name: str | None, ranks: Ranks) -> Gpu:
    """The GPU that plans are for: the live one; off a GPU the one named."""
    if not device.is_cuda:
        return resolve_gpu(name)
    from decodecalc.gpus import detect_gpu

    if name not in (None, "auto"):
        raise InputError("--gpu is for planning off a GPU; on one, plans are for the live device")
    return detect_gpu(ranks.local)


def _dry_run(
    planned: Sequence[Case],
    claims: Sequence[int],
    inputs: dict[str, Any],
    values: dict[str, Any],
    shard: tuple[int, int] | None,
) -> int:
    from decodecalc.tables.verify import dry_run_table
    from decodecalc.verify.suites import deal

    planned = deal(planned, *shard) if shard else planned
    if values["format_"] == "html":
        raise InputError("--dry-run has no page: give --format table, csv, json or markdown")
    emit(dry_run_table(planned, claims, inputs), values["format_"], values["output"])
    return 0


class _Run:
    """One process's part of a run: the loop with its display and journal, then the report."""

    def __init__(
        self,
        device: Device,
        gpu: Gpu,
        ranks: Ranks,
        values: dict[str, Any],
        claims: Sequence[int],
        inputs: dict[str, Any],
        everyone: Sequence[Case],
    ) -> None:
        from decodecalc._version import __version__
        from decodecalc.cost import load_calibration
        from decodecalc.verify.device import provenance

        self._device, self._gpu, self._ranks, self._values, self._claims = device, gpu, ranks, values, claims
        self._calibration = load_calibration(values["calibration"], gpu)
        self._journal = self._open_journal(everyone)
        self._before = device.state()
        self._inputs = {
            **inputs,
            **provenance(device),
            "decodecalc": __version__,
            "gpu": gpu.name,
            "sm_count": gpu.sm_count,
            "ranks": ranks.world,
            "calibration": self._calibration.label,
            "counters": values["counters"],
            "state_before": self._before.to_dict(),
        }

    def _open_journal(self, everyone: Sequence[Case]) -> Journal | None:
        from decodecalc.verify.reports import Journal

        base = self._values["base"]
        if base is None:
            return None
        what = [
            [c.id for c in everyone],
            list(self._claims),
            self._values["seed"],
            self._device.name,
            self._ranks.world,
        ]
        key = hashlib.sha256(json.dumps(what).encode()).hexdigest()[:16]
        rank = f".rank{self._ranks.rank}" if self._ranks.world > 1 else ""
        return Journal(f"{base}{rank}.partial.jsonl", key)

    def rows(self, planned: Sequence[Case]) -> tuple[list[dict[str, Any]], bool]:
        """Rows of every case, and whether Ctrl-C ended it early."""
        from decodecalc.verify.run import Runner
        from decodecalc.verify.summary import rows_of

        done: list[list[dict[str, Any]]] = []
        if self._journal is not None:
            done = self._journal.read() if self._values["resume"] else []
            self._journal.start(done)
        finished = {rows[0]["case"] for rows in done if rows}
        out = [row for rows in done for row in rows]
        todo = [case for case in planned if case.id not in finished]
        runner = Runner(self._device, self._claims, self._calibration, self._values["seed"])
        try:
            with ExitStack() as stack:
                display = stack.enter_context(
                    _Display(len(planned), len(finished), self._shows(), self._values["verbose"])
                )
                self._prepare(runner, todo, display)
                for result in runner.run(todo, display.finding):
                    rows = rows_of(result)
                    out += rows
                    if self._journal is not None:
                        self._journal.add(rows)
                    display.case()
        except KeyboardInterrupt:
            return out, True
        return out, False

    def _shows(self) -> bool:
        return self._ranks.is_first and sys.stderr.isatty()

    def _prepare(self, runner: Runner, todo: Sequence[Case], display: _Display) -> None:
        """Counters and compiled kernels, before the loop."""
        from decodecalc.verify.execution import execution_of
        from decodecalc.verify.warm import jobs_of, warm_up

        if not self._device.is_cuda:
            runner.no_counters = "counters need a CUDA device"
            return
        runs = {case.id: execution_of(case.plan, self._calibration) for case in todo if case.plan is not None}
        warm_up(jobs_of(todo, runs), self._ranks.local, display.compiling)
        if self._values["counters"] and 8 in self._claims:
            from decodecalc.verify.counters import count

            display.say("counting bytes with ncu")
            jobs = [
                (case.id, case.plan, runs[case.id])
                for case in todo
                if case.plan is not None and not runs[case.id].unsupported
            ]
            runner.counted, reason = count(jobs, self._ranks.local)
            runner.no_counters = reason or "ncu counted nothing for this case"

    def finish(self, rows: Sequence[dict[str, Any]], interrupted: bool, before: Report | None) -> int:
        """Write everything; the exit code."""
        from decodecalc.verify.reports import make_report
        from decodecalc.verify.summary import compare

        inputs = {**self._inputs, "interrupted": interrupted, "state_after": self._device.state().to_dict()}
        report = make_report(inputs, rows, interrupted)
        if before is not None:
            report = replace(report, comparison=compare(report.rows, before.rows))
        write_report(report, self._values["base"], self._values["format_"], self._values["output"])
        if interrupted:
            return self.stopped(self._values["base"] or self._values["output"])
        self.handed_over()
        return 0 if report.passed else 1

    def handed_over(self) -> int:
        """The rows are in the report (of rank 0): the journal is not needed any more."""
        if self._journal is not None:
            self._journal.remove()
        return 0

    def stopped(self, where: str | None = None) -> int:
        """Say what Ctrl-C left and how to go on; the exit code."""
        where = where or (self._journal.path if self._journal else None)
        kept = f"; {where} holds what was finished" if where else ""
        again = ", --resume goes on" if self._journal else ""
        click.echo(f"interrupted{kept}{again}", err=True)
        return 130


def write_report(report: Report, base: str | None, format_: str, output: str | None) -> None:
    """BASE's files when there is a base; the asked format to the output, or to stdout."""
    from decodecalc.tables.verify import html_page, markdown, terminal_text, verify_table

    pictures: dict[str, tuple[bytes, str]] = {}
    if base is not None or format_ == "html":
        from decodecalc.tables.verify_figures import figures

        pictures = figures(report)
    if base is not None:
        from os.path import basename

        files = {caption: f"{basename(base)}.{name}.svg" for name, (_, caption) in pictures.items()}
        for name, (svg, _) in pictures.items():
            write_bytes(svg, f"{base}.{name}.svg")
        write_bytes(report.to_json().encode(), f"{base}.json")
        write_bytes(markdown(report, files).encode(), f"{base}.md")
        write_bytes(html_page(report, list(pictures.values())).encode(), f"{base}.html")
        click.echo(f"wrote {base}.json, .md, .html", err=True)
    if format_ == "json":
        write_text(report.to_json(), output)
    elif format_ == "html":
        write_text(html_page(report, list(pictures.values())), output)
    elif format_ == "markdown":
        write_text(markdown(report), output)
    elif format_ == "csv":
        emit(verify_table(report), "csv", output)
    else:
        write_text(terminal_text(report), output)


class _Display:
    """A live table of the claims and a bar on stderr, when it is a terminal; with `verbose`, a line per check."""

    def __init__(self, total: int, done: int, live: bool, verbose: bool) -> None:
        self._total, self._done, self._shown, self._verbose = total, done, live and not verbose, verbose
        self._counts: dict[int, dict[str, int]] = {}
        self._now = ""
        self._live: Any = None
        self._began = time.monotonic()

    def __enter__(self) -> _Display:
        if self._shown:
            from rich.console import Console
            from rich.live import Live

            self._live = Live(self._render(), console=Console(stderr=True), refresh_per_second=4, transient=True)
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def finding(self, case: Case, finding: Finding) -> None:
        """One check was made."""
        counts = self._counts.setdefault(finding.claim, {})
        counts[finding.verdict] = counts.get(finding.verdict, 0) + 1
        if self._verbose:
            from decodecalc.tables.text import plain
            from decodecalc.tables.verify import amount

            q = finding.first
            numbers = f" {q.name}: {amount(q.predicted, q.unit)} / {amount(q.observed, q.unit)}" if q else ""
            reason = f" ({finding.reason})" if finding.reason else ""
            elapsed = time.monotonic() - self._began
            click.echo(
                plain(f"{elapsed:7.1f} s  {case.id} claim {finding.claim}: {finding.verdict}{numbers}{reason}"),
                err=True,
            )
        self.say(f"{case.id}: claim {finding.claim}")

    def case(self) -> None:
        """One case is finished."""
        self._done += 1
        self.say(self._now)

    def compiling(self, done: int, total: int) -> None:
        """Kernels compiled so far."""
        self.say(f"compiling kernels: {done} of {total}")
        if self._verbose and done == total:
            click.echo(f"{time.monotonic() - self._began:7.1f} s  compiled kernels for {total} launches", err=True)

    def say(self, text: str) -> None:
        """What is going on."""
        self._now = text
        if self._live is not None:
            self._live.update(self._render())

    def _render(self) -> Any:
        from rich.console import Group
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        from decodecalc.tables.text import plain
        from decodecalc.verify.claims import CLAIMS, VERDICTS

        table = Table(box=None, pad_edge=False)
        table.add_column("claim")
        for verdict in VERDICTS:
            table.add_column(verdict, justify="right")
        for claim in CLAIMS:
            counts = self._counts.get(claim.number)
            if counts:
                cells = [str(counts.get(v, "")) for v in VERDICTS]
                style = "red" if counts.get("fail") or counts.get("error") else ""
                table.add_row(f"{claim.number} {claim.name}", *cells, style=style)
        bar = ProgressBar(total=max(self._total, 1), completed=self._done, width=60)
        return Group(table, bar, Text(f"{self._done} of {self._total} cases; {plain(self._now)[:100]}", style="dim"))
