"""The real packages from the registry: every version that our policies cover must hold.

`pytest -m network tests/drift` downloads the small ones (SGLang 6 to 39 MB, FlashInfer 15 MB) into a temporary
folder and skips where the registry cannot be reached. vLLM's wheel has hundreds of MB and torch's too: theirs are
downloaded only where DECODECALC_LARGE_WHEELS=1 is set.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from decodecalc.drift import inspect_path

SMALL = ("sglang==0.5.10.post1", "sglang==0.5.23", "flashinfer-python==0.6.15", "flash-attn-4==4.0.0b36")
LARGE = ("vllm==0.33.0", "torch==2.13.0")
PLATFORMS = ("any", "manylinux_2_34_x86_64", "manylinux_2_31_x86_64", "manylinux_2_28_x86_64", "manylinux1_x86_64")

pytestmark = pytest.mark.network


def download(requirement: str, folder: Path) -> Path:
    """The wheel of a release for some Linux, whatever this machine is. Skips the test when it cannot be had."""
    tags = [part for name in PLATFORMS for part in ("--platform", name)]
    command = [
        sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:", "--retries", "1",
        "--timeout", "20", "--python-version", "3.11", *tags, "--dest", str(folder), requirement,
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    wheels = list(folder.glob("*.whl"))
    if done.returncode or not wheels:
        pytest.skip(f"{requirement} cannot be downloaded: {done.stderr.strip()[-200:]}")
    return wheels[0]


def check(wheel: Path) -> None:
    """Every policy of the package is of a known version and holds in every check."""
    verdicts = inspect_path(str(wheel))
    assert verdicts
    for verdict in verdicts:
        assert verdict.version_known, verdict
        assert [(o.what, o.place, o.expected, o.found, o.note) for o in verdict.differences] == []
        assert verdict.status == "same"


@pytest.mark.parametrize("requirement", SMALL)
def test_a_released_wheel_holds(requirement: str, tmp_path: Path) -> None:
    """The constants and the arithmetic of the release are those of our policy."""
    check(download(requirement, tmp_path))


@pytest.mark.slow
@pytest.mark.skipif("DECODECALC_LARGE_WHEELS" not in os.environ, reason="hundreds of MB: set DECODECALC_LARGE_WHEELS=1")
@pytest.mark.parametrize("requirement", LARGE)
def test_a_large_released_wheel_holds(requirement: str, tmp_path: Path) -> None:
    """vLLM and torch."""
    check(download(requirement, tmp_path))
