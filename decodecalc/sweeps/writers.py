"""Writes the rows of a sweep: CSV and JSON lines to one file, Parquet to a folder of parts.

Every writer can continue. `position` is the number of the scenario after the last one that is safely on disk.
"""

from __future__ import annotations

import json
import os
import re
import stat
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, Protocol

from decodecalc.csvtext import csv_cell
from decodecalc.errors import InputError, MissingDependencyError
from decodecalc.files import check_output, encoded, hold, is_special, open_alone, read_json, write_whole
from decodecalc.safetext import json_safe
from decodecalc.sweeps.columns import Chunk

TEXT_COLUMNS = ("model", "gpu", "engine", "version", "layer_group", "kv_dtype", "path")
LIST_COLUMNS = ("grid", "merge_grid")
MAX_NOTE_BYTES = 1 << 20
_PART = re.compile(r"part-([0-9]{12})-([0-9]{12})\.parquet")
FLOAT_COLUMNS = ("sm_coverage", "waves", "partial_share", "total_s", "exchange_s")


class Writer(Protocol):
    """Writes chunks; `finish` makes the output complete. `position`: the scenario after the last that is on disk."""

    position: int

    def write(self, chunk: Chunk, position: int) -> None: ...

    def pause(self) -> None: ...

    def abandon(self) -> None: ...

    def finish(self) -> None: ...


class TextWriter:
    """CSV or JSON lines, to a file or standard output.

    Rows go to `FILE.partial`, with `FILE.resume` saying how far it is, and the file takes its place when it is whole:
    a sweep that fails leaves an earlier result as it was. A continued file is first cut back to its last complete
    chunk. The key of a resume note holds everything that the rows follow from; a note of another sweep is refused.
    The header is written with the first rows, so that a sweep that cannot begin prints nothing.
    """

    def __init__(self, kind: str, columns: Sequence[str], output: str | None, header: bool, resume_key: str) -> None:
        self._json = kind == "jsonl"
        self._columns, self._key = list(columns), resume_key
        self._path = None if output is None else Path(os.path.realpath(output))
        self.position = 0
        self._file: IO[str] | None = None
        self._needs_header = header and not self._json
        if self._path is not None:
            check_output(self._path)
            if is_special(self._path):
                special, self._path = self._path, None
                self._file = self._special(special)
            else:
                self._file = self._open(self._path)

    @staticmethod
    def _special(path: Path) -> IO[str]:
        """A device or a pipe: written as it goes, without a place to keep what is unfinished."""
        try:
            handle = os.open(path, os.O_WRONLY | os.O_TRUNC | getattr(os, "O_NONBLOCK", 0))
            os.set_blocking(handle, True)
            return os.fdopen(handle, "w", encoding="utf-8", newline="")
        except OSError as error:
            raise InputError(f"cannot write {path}: {error.strerror or error}") from None

    @property
    def _note(self) -> Path:
        assert self._path is not None
        return self._path.with_name(self._path.name + ".resume")

    @property
    def partial(self) -> Path | None:
        """Where unfinished rows are; None for standard output and devices."""
        return None if self._path is None else self._path.with_name(self._path.name + ".partial")

    def _open(self, path: Path) -> IO[str]:
        partial = self.partial
        assert partial is not None
        saved: dict[str, Any] | None = None
        try:
            mode = "r+" if partial.exists() else "w+"
            file = open(partial, mode, encoding="utf-8", newline="")  # noqa: SIM115 - closed by finish
        except (OSError, ValueError) as error:
            raise InputError(f"cannot write {partial}: {getattr(error, 'strerror', None) or error}") from None
        try:
            hold(file, f"another sweep is writing {partial}: wait for it, or give another --output")
            if self._note.exists():
                saved = read_json(self._note, MAX_NOTE_BYTES, f"note {self._note}", rewritten=True)
                self._resume(file, saved)
            else:
                file.truncate(0)
        except BaseException:
            file.close()
            raise
        return file

    def _resume(self, file: IO[str], saved: Any) -> None:
        """Go on behind the last complete chunk. InputError where the note or the rows are not this sweep's."""
        remedy = f"delete {self._note.name} and {self._note.stem}.partial"
        size, position = (saved.get(name) if isinstance(saved, dict) else None for name in ("bytes", "position"))
        if type(size) is not int or type(position) is not int or size < 0 or position < 0:
            raise InputError(f"{self._note} is no note of a sweep: {remedy}")
        if saved.get("key") != self._key:
            raise InputError(
                f"{self._note} belongs to another sweep (its options, shard, files or version differ): {remedy}, or "
                f"ask for the same sweep"
            )
        if os.fstat(file.fileno()).st_size < size:
            raise InputError(f"the rows beside {self._note} are fewer than it says: {remedy}")
        file.seek(size)
        file.truncate()
        self.position, self._needs_header = position, False

    def write(self, chunk: Chunk, position: int) -> None:
        columns = [chunk.values(name) for name in self._columns]
        if self._json:
            names = self._columns
            lines = [json_safe(json.dumps(dict(zip(names, row)), ensure_ascii=False)) for row in zip(*columns)]
        else:
            lines = [",".join([csv_cell(v) for v in row]) for row in zip(*columns)]
        self._put("".join(f"{line}\n" for line in lines))
        if self._path is not None and self._file is not None:
            saved = {"key": self._key, "bytes": self._file.tell(), "position": position}
            write_whole(self._note, json.dumps(saved))

    def _put(self, text: str) -> None:
        if self._needs_header:
            text, self._needs_header = ",".join(self._columns) + "\n" + text, False
        if self._file is None:
            sys.stdout.write(encoded(text).decode())
            return
        try:
            self._file.write(encoded(text).decode())
            self._file.flush()
        except OSError as error:
            raise InputError(f"cannot write {self.partial or 'the output'}: {error.strerror or error}") from None

    def pause(self) -> None:
        """What was finished is on disk already."""

    def abandon(self) -> None:
        """Nothing came out: leave nothing behind."""
        partial = self.partial
        if partial is not None and self._file is not None:
            self._file.close()
            partial.unlink(missing_ok=True)
            self._note.unlink(missing_ok=True)

    def finish(self) -> None:
        self._put("")
        partial = self.partial
        if partial is None or self._path is None or self._file is None:
            return
        try:
            mode = stat.S_IMODE(self._path.stat().st_mode) if self._path.exists() else None
            os.replace(partial, self._path)
            if mode is not None:
                self._path.chmod(mode)
        except OSError as error:
            raise InputError(
                f"cannot write {self._path}: {error.strerror or error}; the rows are in {partial}"
            ) from None
        finally:
            self._file.close()
        self._note.unlink(missing_ok=True)


class ParquetWriter:
    """Writes a folder of `part-<first scenario>-<next>.parquet`, with a file for every few hundred thousand rows.

    DuckDB, Polars, pandas and Dask read the folder as one table. Several shards may write into one folder, because
    parts are named by scenario number. A part that exists is not written again.
    """

    ROWS_PER_PART = 1 << 18

    def __init__(self, columns: Sequence[str], output: str, numbers: tuple[int, int], resume_key: str) -> None:
        try:
            import pyarrow
            import pyarrow.parquet
        except ImportError:
            raise MissingDependencyError(
                'Parquet needs pyarrow: pip install "decodecalc[parquet]", or write .csv or .jsonl'
            ) from None
        self._arrow, self._parquet = pyarrow, pyarrow.parquet
        self._columns, self._folder, self._key = list(columns), Path(output), resume_key
        self._held: list[Any] = []
        self._rows = 0
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"cannot write {output}: {error.strerror or error}") from None
        first, last = numbers
        self._lock = self._hold(first, last)
        self.position = self._first = self._done(first, last)

    def _hold(self, first: int, last: int) -> IO[bytes]:
        """Shards write into one folder at a time, but each range of scenarios has one writer."""
        path = self._folder / f".writing-{first:012d}-{last:012d}"
        otherwise = f"another sweep is writing {self._folder}: wait for it, or give another --output"
        return open_alone(path, "wb", otherwise)  # closed by finish

    def _done(self, first: int, last: int) -> int:
        """Follow complete parts from `first` as far as they reach without a gap.

        InputError where the folder holds other rows, or rows of this range behind a gap: they would be there twice.
        """
        ends = {}
        for path in sorted(self._folder.glob("part-*.parquet")):
            match = _PART.fullmatch(path.name)
            if match is None:
                raise InputError(f"{path} is no part of a sweep: choose another folder or delete it")
            try:
                key = (
                    (self._parquet.read_schema(path).metadata or {}).get(b"decodecalc", b"").decode("utf-8", "replace")
                )
            except (OSError, ValueError) as error:  # ArrowInvalid is a ValueError
                raise InputError(f"{path} cannot be read as Parquet: {str(error)[:80]}") from None
            if key != self._key:
                raise InputError(f"{path} belongs to another sweep: choose another folder or delete it")
            ends[int(match[1])] = int(match[2])
        position = first
        while position < last and position in ends:
            position = ends[position]
        done = {start for start in ends if first <= start < position}
        twice = [(start, end) for start, end in ends.items() if start not in done and start < last and end > first]
        if position > last or twice:
            start, end = twice[0] if twice else (first, position)
            raise InputError(
                f"{self._folder} holds scenarios {start} to {end} of another shard, which this one would write again: "
                f"choose another folder or delete them"
            )
        return position

    def _array(self, chunk: Chunk, name: str) -> Any:
        pa = self._arrow
        value, rows = chunk.column(name), chunk.rows
        kind = (
            pa.string() if name in TEXT_COLUMNS
            else pa.list_(pa.int64()) if name in LIST_COLUMNS
            else pa.float64() if name in FLOAT_COLUMNS or name.endswith("_share")
            else pa.int64()
        )  # fmt: skip
        if isinstance(value, (int, float, str)) or value is None:
            return pa.array([value] * rows, type=kind)
        return pa.array(value, type=kind, from_pandas=False)

    def write(self, chunk: Chunk, position: int) -> None:
        if chunk.rows:
            arrays = [self._array(chunk, name) for name in self._columns]
            self._held.append(self._arrow.table(arrays, names=self._columns))
            self._rows += chunk.rows
        self.position = position
        if self._rows >= self.ROWS_PER_PART:
            self._flush()

    def _flush(self) -> None:
        if not self._held:
            return
        table = self._arrow.concat_tables(self._held).replace_schema_metadata({"decodecalc": self._key})
        target = self._folder / f"part-{self._first:012d}-{self.position:012d}.parquet"
        part = target.with_suffix(".tmp")
        try:
            self._parquet.write_table(table, part)
            os.replace(part, target)
        except OSError as error:
            with suppress(OSError):
                part.unlink()
            raise InputError(f"cannot write {target}: {error.strerror or error}") from None
        self._held, self._rows, self._first = [], 0, self.position

    def pause(self) -> None:
        """What is held in memory goes to disk, as a smaller part."""
        self._flush()

    def abandon(self) -> None:
        """Nothing came out: leave nothing behind."""
        self._release()
        with suppress(OSError):
            self._folder.rmdir()  # stays where it holds anything

    def finish(self) -> None:
        self._flush()
        self._release()

    def _release(self) -> None:
        name = self._lock.name
        self._lock.close()
        with suppress(OSError):
            os.unlink(name)


def writer_for(
    kind: str, columns: Sequence[str], output: str | None, *, numbers: tuple[int, int], header: bool, key: str,
    shard: Sequence[int] | None = None,
) -> Writer:  # fmt: skip
    """The writer of one kind: csv, jsonl or parquet."""
    if kind == "parquet":
        if output is None:
            raise InputError("Parquet needs --output FOLDER")
        return ParquetWriter(columns, output, numbers, key)
    return TextWriter(kind, columns, output, header, f"{key} shard {shard}")
