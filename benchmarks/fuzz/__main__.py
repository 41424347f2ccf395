"""Throws malformed and extreme input at the command line, the API and the readers, and reports what gets through.

    python -m benchmarks.fuzz --seconds 60                        # every kind in turn, as the test of the suite does
    python -m benchmarks.fuzz --only commands --cases 100000 --journal commands.json          # the long run
    python -m benchmarks.fuzz --only commands --seed 1 --case 4711                  # one case again, with its traceback
    python -m benchmarks.fuzz --sum 1.json 2.json           # several journals added up, with all that got through

Several processes may run at once, each with a seed and a journal of its own. `make fuzz` runs the long run of every
kind (hours on one core), which goes on where it stopped.

Kinds: `commands` (command lines of all commands), `plans` (calls of `plan` and the analyses), `loaders` (calls of the
loaders of models and GPUs), `traces`, `reports`, `calibrations` and `configs` (mutated files, through the commands that
read them).

What counts as got through: an exception that is not the project's own, an "internal error", a traceback, an exit code
that the contract does not have, JSON that does not parse, a number that cannot be (`contract.py`, `calls.py`), output
with control characters, a case that takes longer than 10 s of processor time, or one that needs more than 1 GB of
memory beyond what the process holds after its imports (`resource.setrlimit`) without having been refused first.
A case is stopped at the limit, so that a run goes on. Every case follows from the seed and its number.

--journal FILE keeps the numbers of cases done and what was found, as JSON; a run with the same file goes on after them.
Exit code 1 where anything got through. It runs in one process and writes nothing outside a temporary folder and the
journal. NOTES.md says what the runs so far have found.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.fuzz.calls import loaders, plans
from benchmarks.fuzz.commands import commands
from benchmarks.fuzz.contract import GotThroughError
from benchmarks.fuzz.inputs import calibrations, configs, reports, traces

MEMORY_BYTES = 1 << 30
"""What a case may take beyond what the process holds when the run starts."""
SLOW_S = 10.0
"""Processor time of a case."""
STUCK_S = 180.0
"""Wall time of a case: only what waits for something takes as long."""
KEPT = 200
"""Findings that a journal keeps; more are counted only."""
SAVE_EVERY_S = 10.0

KINDS: dict[str, Callable[[random.Random, Path], tuple[str, int]]] = {
    "commands": commands, "plans": plans, "loaders": loaders, "traces": traces, "reports": reports,
    "calibrations": calibrations, "configs": configs,
}  # fmt: skip


class TooLongError(BaseException):
    """A case at its limit of time. No `except Exception` of the code under test may swallow it."""


@dataclass
class Journal:
    """What a run has done so far."""

    seed: int
    done: dict[str, int] = field(default_factory=dict)
    """Cases of each kind; the next is that number."""
    calls: dict[str, int] = field(default_factory=dict)
    """Command lines, or calls of the API, that those cases made."""
    seconds: float = 0.0
    """Processor time of all cases."""
    failures: int = 0
    found: list[str] = field(default_factory=list)
    path: Path | None = None

    @classmethod
    def of(cls, path: Path | None, seed: int | None) -> Journal:
        """The journal of the file, or a new one. SystemExit where the file is of another seed than the one asked for,
        or where no seed is asked for and there is no file."""
        if path is None or (not path.exists() and seed is not None):
            return cls(seed or 0, path=path)
        try:
            value = json.loads(path.read_text("utf-8"))
        except (OSError, ValueError) as error:
            raise SystemExit(f"{path} is no journal: {error}") from None
        if seed is not None and value["seed"] != seed:
            raise SystemExit(f"{path} is the journal of seed {value['seed']}, not of {seed}")
        return cls(**value, path=path)

    def save(self) -> None:
        """Writes the file anew, whole or not at all."""
        if self.path is None:
            return
        value = {name: getattr(self, name) for name in ("seed", "done", "calls", "seconds", "failures", "found")}
        beside = self.path.with_name(self.path.name + ".new")
        beside.write_text(json.dumps(value, indent=1) + "\n", "utf-8")
        os.replace(beside, self.path)

    def add(self, kind: str, called: int, spent: float, found: str | None) -> None:
        """Counts one case."""
        self.done[kind] = self.done.get(kind, 0) + 1
        self.calls[kind] = self.calls.get(kind, 0) + called
        self.seconds += spent
        if found is not None:
            self.failures += 1
            self.found = [*self.found, found][:KEPT]


def one(kind: str, seed: int, case: int, folder: Path | None = None) -> tuple[str | None, float, int]:
    """(what got through or None, processor seconds, command lines or calls) of one case."""
    if folder is None:
        with tempfile.TemporaryDirectory(prefix="decodecalc-fuzz-") as made:
            return one(kind, seed, case, Path(made))
    rng = random.Random(f"{seed}/{kind}/{case}")
    start, what, called = time.process_time(), "", 1
    found: str | None = None
    try:
        with time_limit():
            what, called = KINDS[kind](rng, folder)
    except GotThroughError as got:
        found = str(got)
    except TooLongError:
        found = f"slow: stopped after {time.process_time() - start:.1f} s\n{traceback.format_exc()[-1500:]}"
    except MemoryError:
        found = f"memory: more than {MEMORY_BYTES >> 20} MiB\n{traceback.format_exc()[-1500:]}"
    except Exception as error:
        found = f"{type(error).__name__}: {str(error)[:200]}\n{traceback.format_exc()[-1500:]}"
    except SystemExit as stop:
        found = f"SystemExit {stop.code}"
    spent = time.process_time() - start
    if found is None and spent > SLOW_S:
        found = f"slow: {spent:.1f} s: {what[:300]}"
    return found, spent, called


@contextlib.contextmanager
def time_limit() -> Iterator[None]:
    """TooLongError in the case where it takes too long; nothing on systems without such signals."""
    if not hasattr(signal, "SIGPROF"):
        yield
        return

    def stop(*args: Any) -> None:
        raise TooLongError

    before = [signal.signal(number, stop) for number in (signal.SIGPROF, signal.SIGALRM)]
    signal.setitimer(signal.ITIMER_PROF, 1.5 * SLOW_S)
    signal.setitimer(signal.ITIMER_REAL, STUCK_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in zip((signal.SIGPROF, signal.SIGALRM), before):
            signal.signal(number, handler)


def fuzz(
    journal: Journal,
    only: list[str],
    seconds: float | None,
    cases: Mapping[str, int] | None,
    say: Callable[[str], None] = print,
) -> None:
    """Runs cases of the kinds in turn, from where the journal stands, until the time is over or each kind has its
    number of `cases`.

    `say` is told what got through.
    """
    end = float("inf") if seconds is None else time.monotonic() + seconds
    saved = time.monotonic()
    here = os.getcwd()
    with tempfile.TemporaryDirectory(prefix="decodecalc-fuzz-") as folder:
        os.chdir(folder)  # what a command writes without a name lands here
        try:
            while time.monotonic() < end:
                left = [kind for kind in only if cases is None or journal.done.get(kind, 0) < cases[kind]]
                if not left:
                    break
                for kind in left:
                    case = journal.done.get(kind, 0)
                    found, spent, called = one(kind, journal.seed, case, Path(folder))
                    if found is not None:
                        found = f"--only {kind} --seed {journal.seed} --case {case}: {found}"
                        say(found)
                    journal.add(kind, called, spent, found)
                    _empty(Path(folder))
                if time.monotonic() - saved > SAVE_EVERY_S:
                    saved = time.monotonic()
                    journal.save()
        finally:
            os.chdir(here)
            journal.save()


def _empty(folder: Path) -> None:
    """Removes what a case left."""
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                shutil.rmtree(entry.path, ignore_errors=True)
            else:
                os.unlink(entry.path)


def limit_memory(more: int) -> None:
    """Limits this process to `more` bytes beyond what it has mapped now; nothing on systems that have no such limit.

    What commands import on the way is imported first, so that its mappings do not count as the case's.
    """
    for module in ("pandas", "matplotlib.pyplot", "pyarrow.parquet", "torch", "decodecalc.plot", "sqlite3"):
        with contextlib.suppress(ImportError):
            __import__(module)
    with contextlib.suppress(ImportError, ValueError, OSError, IndexError):
        import resource

        mapped = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (mapped + more, resource.getrlimit(resource.RLIMIT_AS)[1]))


def add_up(journals: list[Journal], say: Callable[[str], None] = print) -> int:
    """Says what the journals hold together: calls of each kind, and everything that got through. The exit code."""
    for kind in KINDS:
        if any(kind in journal.done for journal in journals):
            cases, calls = (sum(counts.get(kind, 0) for counts in group) for group in _counts(journals))
            say(f"{kind}: {calls} calls in {cases} cases")
    together = sum(journal.calls.get(kind, 0) for journal in journals for kind in ("loaders", "plans"))
    say(f"loaders and plans together: {together} calls")
    say(f"processor time: {sum(journal.seconds for journal in journals):.0f} s in {len(journals)} journals")
    for journal in journals:
        for found in journal.found:
            say(f"got through: {found}")
    failures = sum(journal.failures for journal in journals)
    say(f"{failures} got through")
    return int(failures > 0)


def counts(text: str) -> dict[str, int]:
    """The cases of each kind, from a number or from KIND=NUMBER,… Raises ValueError."""
    if "=" not in text:
        return dict.fromkeys(KINDS, int(text))
    pairs = dict(pair.split("=") for pair in text.split(","))
    return {kind: int(pairs[kind]) for kind in sorted(pairs, key=list(KINDS).index)}


def _counts(journals: list[Journal]) -> tuple[list[dict[str, int]], list[dict[str, int]]]:
    return [journal.done for journal in journals], [journal.calls for journal in journals]


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.fuzz", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, help="how long to go on; default: 60 without --cases")
    parser.add_argument(
        "--cases", type=counts, help="how many cases of each kind, those of the journal included; or of some kinds, as "
        "in commands=100000,traces=20000",
    )  # fmt: skip
    parser.add_argument("--seed", type=int, default=1, help="what the cases follow from")
    parser.add_argument(
        "--only", choices=list(KINDS), action="append", help="kinds of cases (repeatable); default: all"
    )
    parser.add_argument(
        "--journal", type=Path, help="the file that notes which cases are done; a later run with it goes on from there"
    )
    parser.add_argument("--case", type=int, help="run this case of one kind again")
    parser.add_argument("--sum", type=Path, nargs="+", metavar="FILE", help="add up these journals, and run nothing")
    given = parser.parse_args()
    if given.sum:
        return add_up([Journal.of(path, None) for path in given.sum])
    # A GPU of the machine is not measured: `calibrate` and `verify` are tried as on a machine without one.
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    limit_memory(MEMORY_BYTES)
    only = given.only or list(given.cases or KINDS)
    if given.case is not None:
        found, spent, _ = one(only[0], given.seed, given.case)
        print(found or "nothing got through", f"({spent:.2f} s)")
        return int(found is not None)
    if given.cases and not set(only) <= set(given.cases):
        parser.error("--cases gives no number for a kind of --only")
    journal = Journal.of(given.journal.resolve() if given.journal else None, given.seed)
    seconds = 60.0 if given.seconds is None and given.cases is None else given.seconds
    with contextlib.suppress(KeyboardInterrupt):
        fuzz(journal, only, seconds, given.cases)
    print(", ".join(f"{journal.calls[kind]} {kind}" for kind in journal.calls), end=", ")
    print(f"{journal.failures} got through")
    return int(journal.failures > 0)


if __name__ == "__main__":
    sys.exit(main())
