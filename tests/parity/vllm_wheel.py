"""Gets the Python files of a vLLM wheel from the package registry into an ignored folder."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

# Wheels of different releases carry different platform tags; any x86-64 Linux one has the same Python files.
PLATFORMS = (
    "manylinux1_x86_64", "manylinux2014_x86_64", "manylinux_2_24_x86_64", "manylinux_2_28_x86_64",
    "manylinux_2_31_x86_64", "manylinux_2_35_x86_64",
)  # fmt: skip
PREFIXES = ("vllm/v1/", "vllm/attention/", "vllm/config/", "vllm/utils/", "vllm/model_executor/layers/attention/")


def source_of(version: str, cache: Path) -> Path:
    """The folder that holds `vllm/…` of this release; downloaded once (a few hundred MB, of which the .py stay)."""
    target = cache / f"vllm-{version}"
    if target.is_dir():
        return target
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache) as folder:
        tags = [part for name in PLATFORMS for part in ("--platform", name)]
        subprocess.run(
            [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:",
             "--python-version", "3.12", *tags, "--dest", folder, f"vllm=={version}"],
            check=True,
        )  # fmt: skip
        (wheel,) = Path(folder).glob("*.whl")
        unpacked = Path(folder) / "unpacked"
        with zipfile.ZipFile(wheel) as archive:
            for name in archive.namelist():
                if name.endswith(".py") and name.startswith(PREFIXES):
                    archive.extract(name, unpacked)
        unpacked.rename(target)
    return target
