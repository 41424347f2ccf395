"""What `decodecalc verify` shows while it runs."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from decodecalc.verify.claims.claim import Finding
    from decodecalc.verify.session.suites import Case


class LiveDisplay:
    """A live table of the claims and a bar on stderr, when it is a terminal; with `verbose`, a line per check."""

    def __init__(self, total: int, done: int, live: bool, verbose: bool) -> None:
        self._total, self._done, self._shown, self._verbose = total, done, live and not verbose, verbose
        self._counts: dict[int, dict[str, int]] = {}
        self._now = ""
        self._live: Any = None
        self._began = time.monotonic()

    def __enter__(self) -> LiveDisplay:
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
            from decodecalc.safetext import plain
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

        from decodecalc.safetext import plain
        from decodecalc.verify.claims.claim import CLAIMS, VERDICTS

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
