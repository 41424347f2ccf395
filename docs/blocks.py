"""The fenced blocks of README.md and docs/: found, run as a reader would run them, and held to the output they show.

A ```sh block holds `decodecalc …` lines; they run in this process, in a folder that looks like the repository's root. A
```python block is a script; the blocks of a page share their names, in order. HTML comments say the rest:

    <!-- exit: 3 -->            before a block: the exit code it ends with on a machine without a GPU
    <!-- file: DIR/x.py -->     before a block of any language: it is the text of that file, in the run's folder; files
                                below decodecalc/engines are found by the package while the page runs
    <!-- add: MODULE.NAME -->   before a python block: lines that a reader adds to that table of the package, where they
                                are while the page runs (for the registry's ENTRIES: the engine is listed meanwhile)
    <!-- needs: duckdb -->      before a block: the module without which it is left out
    <!-- output -->             after a block: the ```text block that follows is what it prints
    <!-- output: 1-4, 9 -->     … these lines of it, other lines being shown as one `…`

`python docs/blocks.py` writes the present output into every marked block; `--check` only says which differ.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import io
import os
import re
import shlex
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
ELISION = "…"
# The two commands that make the environment; what stands behind `&&` in them is run.
SETUP = re.compile(r"^sh \.ci/venv(?: [\w,]+)? && \.venv/bin/")
TEST_COMMAND = "python -m pytest -n auto"
_FENCE = re.compile(r"^(?P<indent>\s*)```(?P<language>\w*)\s*$")
_COMMENT = re.compile(r"^\s*<!--\s*(?P<key>exit|needs|output|file|add)\s*(?::\s*(?P<value>.*?))?\s*-->\s*$")


@dataclass(frozen=True)
class Output:
    """The shown output: its line numbers in the page (0-based, end exclusive), its text, the lines it shows."""

    start: int
    end: int
    indent: str
    text: str
    lines: str | None


@dataclass(frozen=True)
class Block:
    """One block to run. `line` is where it starts in the page, from 1."""

    page: Path
    line: int
    language: str
    code: str
    exit_code: int = 0
    needs: str | None = None
    output: Output | None = None
    file: str | None = None
    add: str | None = None

    @property
    def is_missing(self) -> bool:
        """Whether the module it needs is not installed."""
        if self.needs is None:
            return False
        package, _, module = self.needs.partition(".")
        return importlib.util.find_spec(package) is None or bool(
            module and importlib.util.find_spec(self.needs) is None
        )


@dataclass(frozen=True)
class Ran:
    """A block that was run."""

    block: Block
    code: int
    out: str
    err: str

    @property
    def shown(self) -> str:
        """The part of the output that the page shows."""
        lines = self.block.output.lines if self.block.output else None
        return pick(self.out, lines)


def pages() -> list[Path]:
    """Every page whose blocks are run."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def blocks(page: Path) -> list[Block]:
    """The sh and python blocks of a page, in order."""
    lines = page.read_text(encoding="utf-8").splitlines()
    found: list[Block] = []
    notes: dict[str, str] = {}
    i = 0
    while i < len(lines):
        comment, fence = _COMMENT.match(lines[i]), _FENCE.match(lines[i])
        if comment:
            notes[comment["key"]] = comment["value"] or ""
        elif fence:
            end = _closing(page, lines, i)
            indent = fence["indent"]
            text = "\n".join(line.removeprefix(indent) for line in lines[i + 1 : end])
            if fence["language"] in ("sh", "python") or "file" in notes:
                exit_code = int(notes.get("exit", "0").split()[0])
                needs, file, add = notes.get("needs"), notes.get("file"), notes.get("add")
                found.append(Block(page, i + 1, fence["language"], text, exit_code, needs, None, file, add))
            elif "output" in notes and found:
                shown = Output(i + 1, end, indent, text, notes["output"] or None)
                found[-1] = Block(**{**vars(found[-1]), "output": shown})
            notes = {}
            i = end
        elif lines[i].strip():
            notes = {}
        i += 1
    return found


def _closing(page: Path, lines: list[str], start: int) -> int:
    for i in range(start + 1, len(lines)):
        if lines[i].strip() == "```":
            return i
    raise ValueError(f"{page.name}, line {start + 1}: the block has no end")


def commands(block: Block) -> list[list[str]]:
    """What a sh block runs: the arguments of each `decodecalc`. ValueError for a line that is something else."""
    found = []
    for line in block.code.replace("\\\n", " ").splitlines():
        said = SETUP.sub("", line.strip())
        if not said or said.startswith("#") or (said == TEST_COMMAND and said != line.strip()):
            continue
        argv = shlex.split(said)
        if argv[0] != "decodecalc":
            raise ValueError(f"{block.page.name}, line {block.line}: {line!r} is no decodecalc command")
        found.append(argv[1:])
    return found


def pick(text: str, lines: str | None) -> str:
    """Lines `1-4, 9` of a text, others as one `…`; all of it when None."""
    every = text.rstrip("\n").splitlines()
    if lines is None:
        return "\n".join(every)
    chosen: set[int] = set()
    for part in lines.split(","):
        first, _, last = part.strip().partition("-")
        chosen.update(range(int(first), int(last or first) + 1))
    out: list[str] = []
    for number, line in enumerate(every, start=1):
        if number in chosen:
            out.append(line)
        elif not out or out[-1] != ELISION:
            out.append(ELISION)
    return "\n".join(out)


def run_page(page: Path, folder: Path) -> Iterator[Ran]:
    """Run the blocks of a page, in order, inside `folder`; those that need a missing module are left out."""
    for name in ("tests", "reports"):
        own = any((block.file or "").startswith(f"{name}/") for block in blocks(page))  # never write through a link
        if not own and not (folder / name).exists():
            (folder / name).symlink_to(ROOT / name)
    names: dict[str, Any] = {"__name__": "__docs__"}
    with contextlib.ExitStack() as added:
        for block in blocks(page):
            if block.is_missing:
                continue
            if block.file or block.add:
                place(block, folder, added)
                continue
            with _chdir(folder):
                yield _run(block, names)


def place(block: Block, folder: Path, added: contextlib.ExitStack) -> None:
    """Do what a reader does with a block that is not run: save it as a file, or add its lines to a table."""
    if block.file:
        target = folder / block.file
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(block.code + "\n", encoding="utf-8")
        return
    where, _, name = (block.add or "").rpartition(".")
    module = importlib.import_module(where)
    if (where, name) == ("decodecalc.engines.registry", "ENTRIES"):
        for entry in eval(f"[{block.code}]", vars(module)):
            added.enter_context(module.also(entry, folder / "decodecalc" / "engines"))
        return
    table = getattr(module, name)
    for key, value in eval(f"{{{block.code}}}", vars(module)).items():
        added.callback(_restore, table, key, table.get(key))
        # A tuple of names for a key that there is: names more, not other ones.
        table[key] = (*table[key], *value) if isinstance(table.get(key), tuple) else value


def _restore(table: dict[Any, Any], key: Any, value: Any) -> None:
    if value is None:
        del table[key]
    else:
        table[key] = value


def _run(block: Block, names: dict[str, Any]) -> Ran:
    from decodecalc.cli.main import run

    out, err = io.StringIO(), io.StringIO()
    code = 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        if block.language == "python":
            exec(compile(block.code, f"{block.page.name}:{block.line}", "exec"), names)
        else:
            for argv in commands(block):
                code = code or run(argv)
    return Ran(block, code, out.getvalue(), err.getvalue())


@contextlib.contextmanager
def _chdir(folder: Path) -> Iterator[None]:
    before = os.getcwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


def refresh(page: Path, check: bool = False) -> list[str]:
    """Write what the blocks print now into the page; the places that differed, in words."""
    with tempfile.TemporaryDirectory() as folder:
        ran = [r for r in run_page(page, Path(folder)) if r.block.output or r.code != r.block.exit_code]
    said = [
        f"{page.name}:{r.block.line}: exit code {r.code}: {r.err.strip()}" for r in ran if r.code != r.block.exit_code
    ]
    stale = [r for r in ran if r.block.output and r.code == r.block.exit_code and r.block.output.text != r.shown]
    said += [f"{page.name}:{r.block.line}: output differs" for r in stale]
    if stale and not check:
        lines = page.read_text(encoding="utf-8").splitlines()
        for r in reversed(stale):
            place = r.block.output
            assert place is not None
            lines[place.start : place.end] = [(place.indent + line).rstrip() for line in r.shown.splitlines()]
        page.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return said


if __name__ == "__main__":
    chosen = [Path(a).resolve() for a in sys.argv[1:] if not a.startswith("-")] or pages()
    differing = [line for page in chosen for line in refresh(page, check="--check" in sys.argv)]
    print("\n".join(differing))
    sys.exit(1 if differing and "--check" in sys.argv else 0)
