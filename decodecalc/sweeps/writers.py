"""Writes the rows of a sweep: CSV and JSON lines to one file, Parquet to a folder of parts.

Every writer can continue. `position` is the number of the scenario after the last one that is safely on disk.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any, Protocol

from decodecalc.csvtext import csv_cell
from decodecalc.errors import InputError, MissingDependencyError
from decodecalc.files import write_whole
from decodecalc.sweeps.columns import Chunk

TEXT_COLUMNS = ("model", "gpu", "engine", "version", "layer_group", "kv_dtype", "path")
LIST_COLUMNS = ("grid", "merge_grid")
FLOAT_COLUMNS = ("sm_coverage", "waves", "partial_share", "total_s")


class Writer(Protocol):
    """Writes chunks; `finish` makes the output complete. `position`: the scenario after the last that is on disk."""

    position: int

    def write(self, chunk: Chunk, position: int) -> None: ...

    def finish(self) -> None: ...


class TextWriter:
    """Writes CSV or JSON lines to a file or to standard output. Next to an unfinished file, `FILE.resume` says how far
    it is.

    A continued file is first cut back to the last complete chunk.
    """

    def __init__(self, kind: str, columns: Sequence[str], output: str | None, header: bool, resume_key: str) -> None:
        self._json = kind == "jsonl"
        self._columns, self._key = list(columns), resume_key
        self._path = None if output is None else Path(output)
        self.position = 0
        self._file: IO[str] = sys.stdout
        if self._path is not None:
            self._file, fresh = self._open(self._path)
        else:
            fresh = True
        if fresh and header and not self._json:
            self._file.write(",".join(self._columns) + "\n")

    @property
    def _note(self) -> Path:
        assert self._path is not None
        return self._path.with_name(self._path.name + ".resume")

    def _open(self, path: Path) -> tuple[IO[str], bool]:
        try:
            if self._note.exists() and path.exists():
                saved = json.loads(self._note.read_text())
                if saved.get("key") != self._key:
                    raise InputError(
                        f"{self._note} belongs to another sweep: delete it and {path}, or ask for the same sweep"
                    )
                file = open(path, "r+", encoding="utf-8", newline="")  # noqa: SIM115 - closed by finish
                file.seek(saved["bytes"])
                file.truncate()
                self.position = saved["position"]
                return file, False
            return open(path, "w", encoding="utf-8", newline=""), True
        except (OSError, ValueError, KeyError) as error:
            if isinstance(error, InputError):
                raise
            raise InputError(f"cannot write {path}: {error}") from None

    def write(self, chunk: Chunk, position: int) -> None:
        columns = [chunk.values(name) for name in self._columns]
        if self._json:
            names = self._columns
            lines = [json.dumps(dict(zip(names, row)), ensure_ascii=False) for row in zip(*columns)]
        else:
            lines = [",".join([csv_cell(v) for v in row]) for row in zip(*columns)]
        if lines:
            self._file.write("\n".join(lines) + "\n")
        if self._path is not None:
            self._file.flush()
            saved = {"key": self._key, "bytes": self._file.tell(), "position": position}
            write_whole(self._note, json.dumps(saved))

    def finish(self) -> None:
        if self._path is not None:
            self._file.close()
            self._note.unlink(missing_ok=True)


class ParquetWriter:
    """Writes a folder of `part-<first scenario>-<next>.parquet`, with a file for every few hundred thousand rows.

    DuckDB, Polars, pandas and Dask read the folder as one table. Several shards may write into one folder, because
    parts are named by scenario number. A part that exists is not written again.
    """

    ROWS_PER_PART = 1 << 18

    def __init__(self, columns: Sequence[str], output: str, first: int, resume_key: str) -> None:
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
        self.position = self._first = self._done(first)

    def _done(self, first: int) -> int:
        """Follow complete parts from `first` as far as they reach without a gap."""
        ends = {}
        for path in self._folder.glob("part-*-*.parquet"):
            start, end = path.stem.split("-")[1:3]
            key = (self._parquet.read_schema(path).metadata or {}).get(b"decodecalc", b"").decode()
            if key != self._key:
                raise InputError(f"{path} belongs to another sweep: choose another folder or delete it")
            ends[int(start)] = int(end)
        while first in ends:
            first = ends[first]
        return first

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
        self._parquet.write_table(table, part)
        os.replace(part, target)
        self._held, self._rows, self._first = [], 0, self.position

    def finish(self) -> None:
        self._flush()


def writer_for(kind: str, columns: Sequence[str], output: str | None, *, first: int, header: bool, key: str) -> Writer:
    """The writer of one kind: csv, jsonl or parquet."""
    if kind == "parquet":
        if output is None:
            raise InputError("Parquet needs --output FOLDER")
        return ParquetWriter(columns, output, first, key)
    return TextWriter(kind, columns, output, header, key)
