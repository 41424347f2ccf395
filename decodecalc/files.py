"""Reads files up to a limit, and writes files so that they are complete or absent."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from decodecalc.errors import InputError


def write_whole(path: str | os.PathLike[str], data: bytes | str, what: str = "") -> None:
    """Write a file next to its final place and then move it there, so that a failure leaves no half-written file.

    `what` is how an error names the file, for example `calibration h200.json`; when it is empty, the error gives the
    path. Raises InputError when the file cannot be written.
    """
    target = Path(path)
    part: str | None = None
    try:
        handle, part = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.", suffix=".part")
        with os.fdopen(handle, "wb") as file:
            file.write(data.encode() if isinstance(data, str) else data)
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(part, 0o666 & ~umask)
        os.replace(part, target)
    except (OSError, ValueError) as error:  # ValueError: a path with a null byte
        if part is not None:
            Path(part).unlink(missing_ok=True)
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"cannot write {what or os.fspath(path)}: {reason}") from None


def read_bounded(path: str | os.PathLike[str], most_bytes: int, what: str) -> bytes:
    """The bytes of a file of at most `most_bytes`. Raises InputError, which names `what`, for a file that is missing,
    unreadable or larger."""
    try:
        with open(path, "rb") as file:
            raw = file.read(most_bytes + 1)
    except (OSError, ValueError) as error:
        raise InputError(f"{what} cannot be read: {getattr(error, 'strerror', None) or error}") from None
    if len(raw) > most_bytes:
        raise InputError(f"{what} is larger than {most_bytes >> 20} MiB, the limit for such files")
    return raw
