"""Reading and writing files with care: inputs are regular and bounded, outputs are whole or absent.

`open_input`, `read_bounded` and `read_json` are the doors for every file that a user names. `write_whole` and
`write_together` are the doors for every result: they keep the file's mode, write through symbolic links and devices,
and refuse to replace a file that the same command read (inside `watching_inputs`).
"""

from __future__ import annotations

import errno
import json
import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import IO, Any, BinaryIO, Literal

from decodecalc.errors import InputError

MAX_DIGITS = 64
"""Digits of a whole number in a JSON file: none of ours has more, and long ones take quadratic time to read."""

_Identity = tuple[int, int]
_read_so_far: ContextVar[set[_Identity] | None] = ContextVar("read_so_far", default=None)


@contextmanager
def watching_inputs() -> Iterator[None]:
    """Inside, a file that was read is an input of the command and cannot be written."""
    token = _read_so_far.set(set())
    try:
        yield
    finally:
        _read_so_far.reset(token)


def open_input(path: str | os.PathLike[str], what: str, rewritten: bool = False) -> BinaryIO:
    """A regular file, opened for reading bytes. InputError names `what` when it is missing, unreadable, or no file.

    Pipes and devices are refused: they may never end, and a reader that looks at the beginning first cannot go back.
    rewritten: the file is the command's own (a note on how far it is), which it may write again.
    """
    try:
        handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    except (OSError, ValueError) as error:  # ValueError: a path with a null byte
        raise InputError(f"{what}: cannot be read: {getattr(error, 'strerror', None) or error}") from None
    status = os.fstat(handle)
    if not stat.S_ISREG(status.st_mode):
        os.close(handle)
        kind = "a folder" if stat.S_ISDIR(status.st_mode) else "a pipe or a device"
        raise InputError(f"{what}: cannot be read: it is {kind}; save what it holds to a regular file and give that")
    watched = _read_so_far.get()
    if watched is not None and not rewritten:
        watched.add((status.st_dev, status.st_ino))
    return os.fdopen(handle, "rb")


def read_bounded(path: str | os.PathLike[str], most_bytes: int, what: str, rewritten: bool = False) -> bytes:
    """The bytes of a file of at most `most_bytes`. InputError names `what` when it is missing, unreadable or larger."""
    with open_input(path, what, rewritten) as file:
        try:
            raw = file.read(most_bytes + 1)
        except OSError as error:
            raise InputError(f"{what}: cannot be read: {error.strerror or error}") from None
    if len(raw) > most_bytes:
        raise InputError(f"{what}: larger than {most_bytes >> 20} MiB, the most that is read")
    return raw


def read_json(
    path: str | os.PathLike[str], most_bytes: int, what: str, expected: str = "", rewritten: bool = False
) -> Any:
    """The value in a JSON file of at most `most_bytes`. expected: what an error says should have been given."""
    return parse_json(read_bounded(path, most_bytes, what, rewritten), what, expected)


def parse_json(raw: bytes, what: str, expected: str = "") -> Any:
    """The value of JSON text. InputError for text that is not JSON, nests too deeply or holds numbers that are too
    long."""
    hint = f"; {expected}" if expected else ""
    try:
        return json.loads(raw, parse_int=_bounded_int)
    except RecursionError:
        raise InputError(f"{what}: not JSON that can be read: it nests too deeply{hint}") from None
    except ValueError as error:  # JSONDecodeError, UnicodeDecodeError, and _bounded_int's
        raise InputError(f"{what}: not JSON ({str(error)[:80]}){hint}") from None


def _bounded_int(digits: str) -> int:
    if len(digits) > MAX_DIGITS:
        raise ValueError(f"a number of {len(digits)} digits")
    return int(digits)


def check_output(path: str | os.PathLike[str], what: str = "") -> None:
    """InputError when the file could not be written: found before the work instead of after it."""
    name = what or _shown(path)
    try:
        status = os.stat(path)
    except FileNotFoundError:
        parent = os.path.dirname(os.path.realpath(path)) or "."
        if not os.path.isdir(parent):
            raise InputError(f"cannot write {name}: there is no folder {parent}") from None
        if not os.access(parent, os.W_OK | os.X_OK):
            raise InputError(f"cannot write {name}: the folder {parent} cannot be written") from None
        return
    except (OSError, ValueError) as error:
        raise InputError(f"cannot write {name}: {getattr(error, 'strerror', None) or error}") from None
    if stat.S_ISDIR(status.st_mode):
        raise InputError(f"cannot write {name}: it is a folder")
    if (status.st_dev, status.st_ino) in (_read_so_far.get() or ()):
        raise InputError(f"cannot write {name}: the same command reads it; give another name")
    if not os.access(path, os.W_OK):
        raise InputError(f"cannot write {name}: {os.strerror(errno.EACCES)}")


def write_whole(path: str | os.PathLike[str], data: bytes | str, what: str = "") -> None:
    """Write a file beside its place and move it into place, so that a failure leaves no half file.

    what: how an error names the file, for example `calibration h200.json`; its path when empty. InputError when it
    cannot be written.
    """
    write_together({path: data}, {path: what})


def write_together(
    files: Mapping[str | os.PathLike[str], bytes | str], what: Mapping[str | os.PathLike[str], str] | None = None
) -> None:
    """Write several files, or none of them when one cannot be written.

    A file that exists keeps its mode; a symbolic link stays and its target is written; a device, a pipe or a file with
    several names is written in place.
    """
    names = {path: (what or {}).get(path) or _shown(path) for path in files}
    parts: list[tuple[str, str]] = []
    try:
        for path in files:
            check_output(path, names[path])
        in_place = [path for path in files if is_special(path)]
        for path, data in files.items():
            if path not in in_place:
                with _saying(names[path]):
                    parts.append(_beside(os.path.realpath(path), encoded(data)))
        for path in in_place:
            with _saying(names[path]):
                _into(path, encoded(files[path]))
        while parts:
            part, target = parts[0]
            with _saying(_shown(target)):
                os.replace(part, target)
            parts.pop(0)
    finally:
        for part, _ in parts:
            with suppress(OSError):
                os.unlink(part)


def encoded(data: bytes | str) -> bytes:
    """Text as UTF-8; half characters, which names that are not UTF-8 bring along, as escapes."""
    return data.encode("utf-8", "backslashreplace") if isinstance(data, str) else data


@contextmanager
def _saying(name: str) -> Iterator[None]:
    """A failure of the system as an InputError that names the file."""
    try:
        yield
    except (OSError, ValueError) as error:
        raise InputError(f"cannot write {name}: {getattr(error, 'strerror', None) or error}") from None


def is_special(path: str | os.PathLike[str]) -> bool:
    """Whether a file that exists is written in place: a device, a pipe, or one that has several names."""
    try:
        status = os.stat(path)
    except OSError:
        return False
    return not stat.S_ISREG(status.st_mode) or status.st_nlink > 1


def _into(path: str | os.PathLike[str], data: bytes) -> None:
    """Write through a device, a pipe that has a reader, or a file with several names."""
    flags = os.O_WRONLY | os.O_TRUNC | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    handle = os.open(path, flags)
    with os.fdopen(handle, "wb") as file:
        if hasattr(os, "set_blocking"):
            os.set_blocking(handle, True)
        file.write(data)


def _beside(target: str, data: bytes) -> tuple[str, str]:
    """(part, target): the data in a file beside the target, with the mode that the target has or would get."""
    import tempfile  # it brings compressors along, which a command that only prints does not need

    handle, part = tempfile.mkstemp(dir=os.path.dirname(target), prefix=".decodecalc-", suffix=".part")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        try:
            mode = stat.S_IMODE(os.stat(target).st_mode)
        except FileNotFoundError:
            umask = os.umask(0)
            os.umask(umask)
            mode = 0o666 & ~umask
        os.chmod(part, mode)
    except BaseException:
        with suppress(OSError):
            os.unlink(part)
        raise
    return part, target


def _shown(path: str | os.PathLike[str]) -> str:
    return os.fspath(path)[:300]


def hold(file: IO[Any], otherwise: str) -> None:
    """Take the file for this process alone, as long as it is open; InputError with `otherwise` where another process
    has it."""
    try:
        import fcntl
    except ImportError:  # a system without such locks
        return
    try:
        fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        raise InputError(otherwise) from None


def open_alone(path: str | os.PathLike[str], mode: Literal["ab", "wb"], otherwise: str) -> IO[bytes]:
    """Open a file to write and hold it (`hold`) until it is closed. InputError where it cannot be written, or with
    `otherwise` where another process has it."""
    try:
        file = open(path, mode)  # noqa: SIM115 - whoever asked for it closes it
    except OSError as failed:
        raise InputError(f"cannot write {_shown(path)}: {failed.strerror or failed}") from None
    try:
        hold(file, otherwise)
    except InputError:
        file.close()
        raise
    return file
