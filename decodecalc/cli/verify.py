"""`decodecalc verify`: every prediction held against the machine."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from decodecalc.cli.options import batch_options, cache_options, engine_options, layer_options
from decodecalc.cli.output import arguments, emit, write_text
from decodecalc.cli.say import say
from decodecalc.cli.verify_display import LiveDisplay
from decodecalc.errors import InputError
from decodecalc.files import check_output, write_together
from decodecalc.request import resolve_batches, resolve_gpu, resolve_kv, resolve_layers, resolve_opts

if TYPE_CHECKING:
    from decodecalc.batch import Batch
    from decodecalc.gpus import Gpu
    from decodecalc.request import Layers
    from decodecalc.verify.report.files import Report
    from decodecalc.verify.run.device import Device
    from decodecalc.verify.session.ranks import Ranks
    from decodecalc.verify.session.run import Session
    from decodecalc.verify.session.suites import Case, Scenario

WITHOUT_GPU = (
    "without a GPU, --dry-run shows what would be checked, and --device interpreter checks the kernels' logic where "
    "torch and Triton are installed"
)
SUITES = ("quick", "standard", "full", "tiny", "engines", "dcp")
KERNELS = ("bundled", "own")
FORMATS = ("table", "csv", "json", "markdown", "html")
_OWN_SCENARIO = ("model", "q_heads", "batch", "context", "seq_lens")


@click.command(
    "verify",
    epilog="Examples:  decodecalc verify --suite standard --report verify-h200   |   decodecalc verify --model "
    "llama3-8b --tp 8 --batch 1 --context 32k --engine vllm-triton",
)
@click.option("--suite", type=click.Choice(SUITES),
              help="The scenarios to run. [default: quick; engines with --kernel own; none with --model]")  # fmt: skip
@click.option("--kernel", type=click.Choice(KERNELS), default="bundled", show_default=True,
              help="Launch the bundled kernel by each engine's rule, or run the installed engines' own kernels "
              "(which checks claims 1, 2, 10, 11).")  # fmt: skip
@click.option("--traces", metavar="DIR", type=click.Path(file_okay=False),
              help="With --kernel own: write the profiler's record of each case's kernels to this folder.")  # fmt: skip
@layer_options
@batch_options
@cache_options
@engine_options
@click.option("--device", "kind", type=click.Choice(["cuda", "interpreter"]), default="cuda", show_default=True,
              help="Run on a GPU, or in Triton's interpreter on the CPU "
              "(small shapes; claims 1, 3, 4, 7, 12, 13).")  # fmt: skip
@click.option(
    "--gpu",
    "-g",
    default=None,
    help="The GPU to plan for when none is used. [default: h100-sxm; on a GPU it is always that GPU]",
)
@click.option(
    "--claims", default=None, metavar="LIST", help="Check only these claims, for example 1,3-5,time. [default: all 13]"
)
@click.option("--counters", is_flag=True, help="Also read DRAM and L2 counters with Nsight Compute (ncu).")
@click.option(
    "--calibration",
    metavar="FILE",
    help="Use a calibration file that `decodecalc calibrate` wrote. [default: shipped or extrapolated]",
)
@click.option("--seed", type=int, default=0, show_default=True, help="The seed of the random tensors.")
@click.option("--dry-run", is_flag=True, help="Show what would be checked. This needs neither a GPU nor torch.")
@click.option(
    "--shard", default=None, metavar="I/N", help="Run only part I of N; `decodecalc report merge` joins the parts."
)
@click.option(
    "--report", "base", metavar="BASE", help="Write the report as BASE.json, BASE.md, BASE.html and BASE.*.svg."
)
@click.option("--resume", is_flag=True, help="Continue an interrupted run that had the same --report.")
@click.option(
    "--against",
    metavar="FILE",
    help="The JSON report of an earlier run; show what got worse by more than both runs' spread.",
)
@click.option("--verbose", "-v", is_flag=True, help="Print every check to standard error as soon as it is made.")
@click.option(
    "--format",
    "-f",
    "format_",
    type=click.Choice(FORMATS),
    default="table",
    show_default=True,
    help="The form of the output.",
)
@click.option("--output", "-o", type=click.Path(dir_okay=False), help="Write to this file instead of standard output.")
def command(**values: Any) -> int:
    """Run a real split-K kernel by each engine's rule and compare every prediction with what happened.

    Each case checks thirteen claims; each claim states the predicted and the observed value, their difference, a
    verdict and how the value was observed. With `--kernel own` the engines' own kernels run instead of the bundled one
    (`decodecalc engines --runnable` lists those that can run here), and the policies' grids, blocks and kernel names
    are compared with what the profiler saw. The exit code is 0 when all claims hold, 1 when one does not hold or could
    not be checked, and 3 when a GPU, torch or Triton is missing. To use several GPUs, start it with torchrun, or give
    each machine a --shard.
    """
    from decodecalc.engines import load_policies
    from decodecalc.units import parse_shard
    from decodecalc.verify.own.loop import at_installed_versions
    from decodecalc.verify.session.ranks import Ranks
    from decodecalc.verify.session.run import How, Session
    from decodecalc.verify.session.suites import cases, deal

    own, together = values["kernel"] == "own", values["suite"] == "dcp"
    if own and together:
        raise InputError("--suite dcp proves the exchange with the bundled kernel: leave --kernel own out")
    claims = _claims(values["claims"], own, together)
    if values["traces"] and not own:
        raise InputError("--traces needs --kernel own, whose kernels it records")
    if own and values["kind"] == "interpreter":
        raise InputError("--kernel own runs the engines' own kernels, which need a CUDA GPU: leave --device out")
    shard = parse_shard(values["shard"])
    if values["resume"] and not values["base"]:
        raise InputError("--resume continues the run of a --report; give the same --report as before")
    before = None
    if values["against"]:
        from decodecalc.verify.report.files import read_report

        before = read_report(values["against"])  # before hours of work, not after
    check_outputs(values["base"], values["output"])
    ranks = Ranks.from_environment()
    interpreted = values["kind"] == "interpreter"
    scenarios, label = _scenarios(values, interpreted, ranks.world)
    scenarios = at_installed_versions(scenarios) if own else scenarios
    engines = list(dict.fromkeys(name for s in scenarios for name in s.engines))
    load_policies(engines)  # a name that does not exist fails before a device is looked for
    options = resolve_opts(values["opts"], values["batch_invariant"], engines)
    inputs: dict[str, Any] = {
        **label,
        "claims": list(claims),
        "options": options,
        "seed": values["seed"],
        "shard": values["shard"],
        "command": shlex.join([*_program(ranks), *arguments()]),
    }
    if values["dry_run"]:
        return _dry_run(cases(scenarios, resolve_gpu(values["gpu"]), options), claims, inputs, values, shard)
    from decodecalc.verify.run.device import open_device

    device = open_device(values["kind"], ranks.local, WITHOUT_GPU)
    gpu = _planned_gpu(device, values["gpu"], ranks)
    planned = cases(scenarios, gpu, options)
    planned = deal(planned, *shard) if shard else planned
    everyone = planned
    planned = deal(planned, ranks.rank + 1, ranks.world) if ranks.world > 1 and not together else planned
    how = How(
        base=values["base"] if ranks.is_first or not together else None, resume=values["resume"], seed=values["seed"],
        counters=values["counters"], calibration=values["calibration"], kernel=values["kernel"], together=together,
        traces=values["traces"],
    )  # fmt: skip
    session = Session(device, gpu, ranks, claims, inputs, everyone, how)
    live = ranks.is_first and sys.stderr.isatty()
    rows, interrupted = session.rows(
        planned, lambda total, done: LiveDisplay(total, done, live=live, verbose=values["verbose"])
    )
    if together and not interrupted:
        ranks.leave()
    if together and not ranks.is_first:
        return 0
    if ranks.world > 1 and not together:
        if interrupted:
            return _stopped(session, None)
        gathered = ranks.gather(rows)
        if gathered is None:
            session.forget_journal()
            return 0
        rows = [row for part in gathered for row in part]
        order = {case.id: i for i, case in enumerate(everyone)}
        rows.sort(key=lambda row: (order.get(row["case"], 0), row["claim"]))
    report = session.report(rows, interrupted, before)
    write_report(report, values["base"], values["format_"], values["output"])
    if interrupted:
        return _stopped(session, values["base"] or values["output"])
    session.forget_journal()
    return 0 if report.passed else 1


def _claims(text: str | None, own: bool, together: bool) -> tuple[int, ...]:
    """The claims that are asked for, of those that this kind of run can check."""
    if own:
        from decodecalc.verify.own.loop import own_claims

        return own_claims(text)
    if together:
        from decodecalc.verify.dcp.loop import dcp_claims

        return dcp_claims(text)
    from decodecalc.verify.claims.claim import claim_numbers

    return claim_numbers(text)


def _stopped(session: Session, where: str | None) -> int:
    """Say what Ctrl-C left and how to go on; the exit code."""
    where = where or session.journal_path
    kept = f"; {where} holds what was finished" if where else ""
    again = ", --resume goes on" if session.journal_path else ""
    say(f"interrupted{kept}{again}")
    return 130


def _program(ranks: Ranks) -> list[str]:
    """What starts the command again."""
    if ranks.world == 1:
        return ["decodecalc"]
    return ["torchrun", "--nproc-per-node", str(ranks.world), "-m", "decodecalc"]


def _scenarios(values: dict[str, Any], interpreted: bool, world: int = 1) -> tuple[list[Scenario], dict[str, Any]]:
    """Scenarios of the suite or of the options, and how to say what was asked."""
    from decodecalc.verify.session.suites import (
        DENSE,
        LATENT,
        Scenario,
        dcp_scenarios,
        suite_scenarios,
        tiny_dcp,
    )

    own = [name for name in _OWN_SCENARIO if values[name] is not None]
    engines = [p.strip() for p in values["engine"].split(",") if p.strip()] if values["engine"] else None
    if values["engine"] is not None and not engines:
        raise InputError("--engine is empty")
    if values["suite"] and own:
        raise InputError(f"--suite brings its own scenarios: leave --{own[0].replace('_', '-')} or --suite out")
    if not own:
        usual = "tiny" if interpreted else "engines" if values["kernel"] == "own" else "quick"
        suite = values["suite"] or usual
        if suite == "dcp":
            made = (
                tiny_dcp(engines, world if world > 1 else None)
                if interpreted
                else dcp_scenarios(engines, max(world, 2))
            )
            return made, {"suite": suite, "engines": engines}
        return suite_scenarios(suite, engines), {"suite": suite, "engines": engines}
    layers, batches = resolve_layers(values), resolve_batches(values)
    kv = resolve_kv(values, layers.model)
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
        "warnings": [*layers.warnings, *_too_long(layers, batches)],
    }
    return found, said


def _too_long(layers: Layers, batches: Sequence[Batch]) -> list[str]:
    """A line where a step is longer than the model's positions; none for a layer given by hand."""
    from decodecalc.sanity import length_lines

    return [] if layers.model is None else length_lines(layers.model, max(batch.max_seq_len for batch in batches))


def _planned_gpu(device: Device, name: str | None, ranks: Ranks) -> Gpu:
    """The GPU that plans are for: the live one; off a GPU the one named."""
    if not device.is_cuda:
        return resolve_gpu(name)
    from decodecalc.gpus import detect_gpu

    if name not in (None, "auto"):
        raise InputError("--gpu is for planning without a GPU; with one, plans are for the GPU that runs")
    return detect_gpu(ranks.local)


def _dry_run(
    planned: Sequence[Case],
    claims: Sequence[int],
    inputs: dict[str, Any],
    values: dict[str, Any],
    shard: tuple[int, int] | None,
) -> int:
    from decodecalc.tables.verify import dry_run_table
    from decodecalc.verify.session.suites import deal

    planned = deal(planned, *shard) if shard else planned
    if values["format_"] == "html":
        raise InputError("--dry-run writes no HTML page; give --format table, csv, json or markdown")
    emit(dry_run_table(planned, claims, inputs), values["format_"], values["output"])
    return 0


def check_outputs(base: str | None, output: str | None) -> None:
    """InputError before the work where a file could not be written after it."""
    if base is not None and not os.path.basename(base):
        raise InputError(f"--report {base}: give the beginning of the files' names too, for example {base}verify")
    for path in ([f"{base}.json"] if base else []) + ([output] if output else []):
        check_output(path)


def write_report(report: Report, base: str | None, format_: str, output: str | None) -> None:
    """BASE's files when there is a base; the asked format to the output, or to stdout."""
    from decodecalc.tables.verify import html_page, markdown, terminal_text, verify_table

    pictures: dict[str, tuple[bytes, str]] = {}
    if base is not None or format_ == "html":
        from decodecalc.plot.verification import figures

        pictures = figures(report)
    if base is not None:
        from os.path import basename

        files = {caption: f"{basename(base)}.{name}.svg" for name, (_, caption) in pictures.items()}
        files_of_base: dict[str | os.PathLike[str], bytes | str] = {
            f"{base}.{name}.svg": svg for name, (svg, _) in pictures.items()
        }
        files_of_base.update(
            {
                f"{base}.json": report.to_json(),
                f"{base}.md": markdown(report, files),
                f"{base}.html": html_page(report, list(pictures.values())),
            }
        )
        write_together(files_of_base)
        say(f"wrote {base}.json, .md, .html")
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
