"""Inputs are regular and bounded; outputs are whole or absent, and never replace what they should not."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from decodecalc.errors import InputError
from decodecalc.files import (
    check_output,
    open_input,
    parse_json,
    read_bounded,
    read_json,
    watching_inputs,
    write_together,
    write_whole,
)


def test_a_pipe_that_nobody_writes_is_refused_at_once(tmp_path: Path) -> None:
    """A named pipe without a writer does not hang a reader, and the message says how to go on."""
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InputError, match=r"pipe or a device; save what it holds to a regular file"):
        open_input(tmp_path / "pipe", "trace")


@pytest.mark.parametrize(("path", "said"), [("/dev/zero", "device"), ("/", "folder"), ("/no/such", "No such file")])
def test_what_is_no_file_is_named_as_what_it_is(path: str, said: str) -> None:
    """Endless devices and folders are never read."""
    with pytest.raises(InputError, match=said):
        read_bounded(path, 10, "input")


def test_a_file_of_the_limit_is_read_and_one_byte_more_is_not(tmp_path: Path) -> None:
    """The limit counts bytes exactly."""
    file = tmp_path / "f"
    file.write_bytes(b"x" * 10)
    assert read_bounded(file, 10, "f") == b"x" * 10
    with pytest.raises(InputError, match="larger than"):
        read_bounded(file, 9, "f")


@pytest.mark.parametrize(
    "raw", [b"{", b"[" * 100_000, b'{"a": ' + b"9" * 5000 + b"}", b"\xff\xfe", b"", b'{"a": ' + b"9" * 100 + b"}"]
)
def test_json_that_cannot_be_used_is_one_error(raw: bytes) -> None:
    """Cut, deep, binary and empty text, and numbers of many digits, are bad input and no other exception."""
    with pytest.raises(InputError, match="x: not JSON"):
        parse_json(raw, "x")


def test_a_mode_is_kept_and_a_new_file_follows_the_umask(tmp_path: Path) -> None:
    """Writing a file again does not change who may read it."""
    private, fresh = tmp_path / "private", tmp_path / "fresh"
    private.write_text("old")
    private.chmod(0o600)
    write_whole(private, "new")
    write_whole(fresh, "new")
    umask = os.umask(0)
    os.umask(umask)
    assert stat.S_IMODE(private.stat().st_mode) == 0o600
    assert stat.S_IMODE(fresh.stat().st_mode) == 0o666 & ~umask
    assert private.read_text() == fresh.read_text() == "new"


def test_a_symbolic_link_stays_a_link_and_its_target_is_written(tmp_path: Path) -> None:
    """The link's target changes; the link does not become a file."""
    (tmp_path / "real").write_text("old")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    write_whole(tmp_path / "link", "new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_text() == "new"


def test_a_file_with_two_names_keeps_both(tmp_path: Path) -> None:
    """A hard link sees what was written under the other name."""
    (tmp_path / "a").write_text("old text")
    os.link(tmp_path / "a", tmp_path / "b")
    write_whole(tmp_path / "a", "new")
    assert (tmp_path / "b").read_text() == "new"


def test_a_device_is_written_and_stays_a_device() -> None:
    """Output to the null device is discarded and the device survives."""
    before = os.stat(os.devnull)
    write_whole(os.devnull, "gone")
    assert stat.S_ISCHR(os.stat(os.devnull).st_mode)
    assert os.stat(os.devnull).st_ino == before.st_ino


def test_a_pipe_without_a_reader_is_an_error_and_stays_a_pipe(tmp_path: Path) -> None:
    """Writing to a pipe that nobody reads neither hangs nor replaces it."""
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InputError, match="cannot write"):
        write_whole(tmp_path / "pipe", "x")
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)


def test_a_full_device_is_named_as_full() -> None:
    """What the system says about a write is in the message."""
    if not os.path.exists("/dev/full"):
        pytest.skip("this system has no /dev/full")
    with pytest.raises(InputError, match="No space left"):
        write_whole("/dev/full", "x")


def test_several_files_are_written_or_none(tmp_path: Path) -> None:
    """One that cannot be written leaves the others as they were, and no parts behind."""
    (tmp_path / "a").write_text("old")
    with pytest.raises(InputError, match="there is no folder"):
        write_together({tmp_path / "a": "new", tmp_path / "no" / "b": "new"})
    assert (tmp_path / "a").read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_a_file_that_was_read_is_not_overwritten_by_the_same_command(tmp_path: Path) -> None:
    """Also under another name; outside a command, and for a command's own notes, it may be."""
    (tmp_path / "in.json").write_text("[]")
    (tmp_path / "other").symlink_to(tmp_path / "in.json")
    with watching_inputs():
        read_json(tmp_path / "in.json", 100, "in")
        with pytest.raises(InputError, match="the same command reads it"):
            check_output(tmp_path / "other")
    write_whole(tmp_path / "in.json", "[1]")
    with watching_inputs():
        read_json(tmp_path / "in.json", 100, "in", rewritten=True)
        write_whole(tmp_path / "in.json", "[2]")
    assert (tmp_path / "in.json").read_text() == "[2]"


def test_half_characters_of_a_name_are_written_as_escapes(tmp_path: Path) -> None:
    """A name that is not UTF-8 does not stop a result from being written."""
    write_whole(tmp_path / "f", "a\udc80b")
    assert (tmp_path / "f").read_text() == "a\\udc80b"
