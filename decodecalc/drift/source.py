"""The files of an installation, a source tree, a wheel or a source archive. None of them is run."""

from __future__ import annotations

import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import suppress
from functools import cached_property
from pathlib import Path, PurePosixPath

from decodecalc.errors import InputError

MAX_FILE_BYTES = 4 << 20  # sources of engines stay under 1 MB; what is larger is not source
MAX_FILES = 200_000  # names in an archive; wheels have some thousands
MAX_ARCHIVE_BYTES = 512 << 20  # text of a source archive; flash-attn's, with all of CUTLASS, has 60 MB


class Tree:
    """A set of files with paths of their own, `/` between folders."""

    def __init__(self, label: str) -> None:
        self.label = label

    def read(self, path: str) -> str | None:
        """The text of a file; None when it is not there, too large or not readable."""
        data = self._bytes(path)
        return None if data is None else data.decode("utf-8", errors="replace")

    def names(self, folder: str) -> Iterator[str]:
        """Names directly inside a folder."""
        raise NotImplementedError

    def has(self, path: str) -> bool:
        """Whether a file of this path exists."""
        raise NotImplementedError

    def _bytes(self, path: str) -> bytes | None:
        raise NotImplementedError


class Folder(Tree):
    """Files on disk."""

    def __init__(self, root: Path) -> None:
        super().__init__(str(root))
        self._root = root

    def names(self, folder: str) -> Iterator[str]:
        with suppress(OSError):
            yield from sorted(entry.name for entry in (self._root / folder).iterdir())

    def has(self, path: str) -> bool:
        try:
            return (self._root / path).is_file()
        except (OSError, ValueError):
            return False

    def _bytes(self, path: str) -> bytes | None:
        try:
            with (self._root / path).open("rb") as file:
                data = file.read(MAX_FILE_BYTES + 1)
        except (OSError, ValueError):
            return None
        return data if len(data) <= MAX_FILE_BYTES else None


class _Archive(Tree):
    """The members by path. An archive that breaks midway is refused as a whole; it is not treated as one without the
    member."""

    def __init__(self, label: str, members: list[str]) -> None:
        super().__init__(label)
        if len(members) > MAX_FILES:
            raise InputError(f"{label} lists {len(members)} files, which no package of an attention engine does")
        self._members = set(members)

    @cached_property
    def _folders(self) -> dict[str, set[str]]:
        inside: dict[str, set[str]] = {}
        for member in self._members:
            path = PurePosixPath(member)
            for parent in path.parents:
                inside.setdefault("" if str(parent) == "." else str(parent), set()).add(path.name)
                path = parent
        return inside

    def names(self, folder: str) -> Iterator[str]:
        yield from sorted(self._folders.get(folder.strip("/"), ()))

    def has(self, path: str) -> bool:
        return path in self._members


class Wheel(_Archive):
    """A .whl or .zip file."""

    def __init__(self, path: Path) -> None:
        try:
            self._zip = zipfile.ZipFile(path)
        except (OSError, zipfile.BadZipFile, ValueError, NotImplementedError) as error:
            raise InputError(f"{path} is not a wheel that can be read: {error}") from None
        super().__init__(str(path), self._zip.namelist())

    def _bytes(self, path: str) -> bytes | None:
        if path not in self._members:
            return None
        try:
            if self._zip.getinfo(path).file_size > MAX_FILE_BYTES:
                return None
            with self._zip.open(path) as member:
                data = member.read(MAX_FILE_BYTES + 1)
        except (OSError, zipfile.BadZipFile, zlib.error, EOFError, ValueError, RuntimeError, NotImplementedError) as e:
            raise InputError(f"{self.label} is damaged at {path}: {e}; download it again") from None
        return data if len(data) <= MAX_FILE_BYTES else None


class SourceArchive(_Archive):
    """A .tar.gz source distribution; its one top folder is left out of the paths."""

    def __init__(self, path: Path) -> None:
        try:
            with tarfile.open(path) as tar:
                self._text: dict[str, bytes] = {}
                names, total = [], 0
                for member in tar:
                    name = member.name.partition("/")[2]
                    if not member.isfile() or not name:
                        continue
                    names.append(name)
                    if len(names) > MAX_FILES:
                        break
                    # Everything is read in one pass, because going back in a compressed stream starts it again.
                    if name.endswith(_SOURCES) and member.size <= MAX_FILE_BYTES:
                        file = tar.extractfile(member)
                        self._text[name] = b"" if file is None else file.read(MAX_FILE_BYTES)
                        total += len(self._text[name])
                        if total > MAX_ARCHIVE_BYTES:
                            raise InputError(f"{path} holds more than {MAX_ARCHIVE_BYTES >> 20} MiB of source")
        except (OSError, tarfile.TarError, zlib.error, EOFError) as error:
            raise InputError(f"{path} is not a source archive that can be read: {error}") from None
        super().__init__(str(path), names)

    def _bytes(self, path: str) -> bytes | None:
        return self._text.get(path)


_SOURCES = (".py", ".h", ".hpp", ".cuh", ".cu", ".cpp", ".jinja", ".txt", ".toml", "PKG-INFO", "METADATA")


def open_tree(path: str) -> Tree:
    """The files under a folder, in a wheel or in a source archive. InputError for anything else."""
    where = Path(path)
    try:
        if where.is_dir():
            next(where.iterdir(), None)
            return Folder(where)
        if not where.exists():
            raise InputError(
                f"{path} does not exist: give a site-packages folder, a venv, a source tree or a .whl file"
            )
        if where.stat().st_size == 0:
            raise InputError(f"{path} is empty")
    except (OSError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from None
    if where.name.endswith((".tar.gz", ".tgz", ".tar")):
        return SourceArchive(where)
    if where.suffix in (".whl", ".zip") or zipfile.is_zipfile(where):
        return Wheel(where)
    raise InputError(
        f"{path} is neither a folder nor a wheel (.whl) nor a source archive (.tar.gz): give a site-packages folder, a "
        f"venv, a source tree or a .whl file"
    )
