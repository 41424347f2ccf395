"""Engines are found where they are installed, or in a peer folder, without importing them."""

from __future__ import annotations

import lzma
import sys
import tarfile

import pytest

from decodecalc.verify.own import peers
from decodecalc.verify.own.peers import find_package, use_folder
from decodecalc.verify.own.runner import PEERS, UnavailableError, all_runners, look


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A peer folder with a made-up vLLM, used by this process alone."""
    pytest.importorskip("torch")
    info = tmp_path / "vllm-0.33.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: vllm\nVersion: 0.33.0\n")
    monkeypatch.setenv(peers.VARIABLE, str(tmp_path))
    monkeypatch.setattr(sys, "path", list(sys.path))
    return tmp_path


def test_a_package_of_the_peer_folder_is_found_with_the_version_of_its_policy(folder):
    """Its files must be there, plain or packed."""
    with pytest.raises(UnavailableError, match="is neither installed nor in the peer folder"):
        find_package("vllm-triton", "vllm", ("vllm/kernel.py",))
    (folder / "vllm").mkdir()
    (folder / "vllm" / "kernel.py.xz").write_bytes(lzma.compress(b"value = 1"))
    found = find_package("vllm-triton", "vllm", ("vllm/kernel.py",))
    assert (found.version, found.policy_version, found.where) == ("0.33.0", "0.33.0", PEERS)
    assert find_package("flash-attention-3", "vllm", (), "vllm-{version}").policy_version == "vllm-0.33.0"


def test_a_build_label_does_not_change_the_version_of_the_policy(folder):
    """Wheels for one CUDA release are named 0.33.0+cu130, and the rule is that of 0.33.0."""
    (folder / "vllm-0.33.0.dist-info" / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: vllm\nVersion: 0.33.0+cu130\n"
    )
    found = find_package("vllm-triton", "vllm", ())
    assert (found.version, found.policy_version) == ("0.33.0+cu130", "0.33.0")


def test_a_version_that_the_policy_does_not_know_is_found_without_one(folder):
    """The engine is there; nothing can be held against it."""
    (folder / "vllm-0.33.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: vllm\nVersion: 99.1\n")
    assert find_package("vllm-triton", "vllm", ()).policy_version is None


def test_packed_files_are_unpacked_beside_themselves_once(folder):
    """A library and an archive; the folder then comes behind everything that is installed."""
    (folder / "lib.so.xz").write_bytes(lzma.compress(b"library"))
    source = folder / "source.py"
    source.write_text("value = 2\n")
    with tarfile.open(folder / "made.tar.xz", "w:xz") as tar:
        tar.add(source, "made/source.py")
    for _ in range(2):
        use_folder(folder)
    assert (folder / "lib.so").read_bytes() == b"library"
    assert (folder / "made" / "source.py").read_text() == "value = 2\n"
    assert sys.path[-1] == str(folder)
    assert sys.path.count(str(folder)) == 1


def test_looking_for_engines_imports_none_of_them(monkeypatch, tmp_path):
    """Every runner says where its engine is, or why it is not here."""
    monkeypatch.setenv(peers.VARIABLE, str(tmp_path / "none"))
    before = set(sys.modules)
    for runner in all_runners():
        here = look(runner)
        assert (here.found is None) == bool(here.reason)
    assert not {name.split(".")[0] for name in set(sys.modules) - before} & {"vllm", "sglang", "flashinfer", "torch"}
