"""A progress bar with the time left, on standard error when that is a terminal, else nothing."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

REFRESH_S = 0.1  # a bar is redrawn at most this often


class Bars:
    """A stack of bars; every `add` starts one. Use it in a `with` statement, which removes the bars at its end."""

    def __init__(self) -> None:
        self._progress: Progress | None = None

    def __enter__(self) -> Bars:
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import Progress

            self._progress = Progress(console=Console(stderr=True), transient=True)
            self._progress.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._progress is not None:
            self._progress.stop()

    def add(self, label: str, total: int | None, done: int = 0) -> Bar:
        """A bar of `total` units (None where nobody knows), `done` of them finished already."""
        if self._progress is None:
            return Bar(None, None)
        from rich.markup import escape

        from decodecalc.safetext import plain

        return Bar(self._progress, self._progress.add_task(escape(plain(label)), total=total, completed=done))


class Bar:
    """One bar of a stack; it does nothing where there is no terminal."""

    def __init__(self, progress: Progress | None, task: TaskID | None) -> None:
        self._progress, self._task, self._drawn = progress, task, 0.0

    def at(self, done: int) -> None:
        """`done` units are finished in all."""
        now = time.monotonic()
        if self._progress is not None and self._task is not None and now - self._drawn >= REFRESH_S:
            self._progress.update(self._task, completed=done)
            self._drawn = now

    def part(self, label: str, done: int, total: int) -> None:
        """`done` of `total` parts are finished, and the part called `label` begins."""
        if self._progress is not None and self._task is not None:
            self._progress.update(self._task, completed=done, total=total, description=label)

    def advance(self, units: int) -> None:
        """`units` more are finished."""
        if self._progress is not None and self._task is not None:
            self._progress.advance(self._task, units)
