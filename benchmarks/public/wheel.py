"""Where the published tables lie: the wheel's folder, downloaded by pip when it is not there."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

from benchmarks.public.tables import PACKAGE, VERSION

FOLDER = Path(".scratch") / "public-timings"  # ignored by git


def tables_folder(folder: Path | None = None) -> Path:
    """The folder that holds the package, with the wheel unpacked there once."""
    home = folder or FOLDER
    if not (home / "aiconfigurator_core").is_dir():
        home.mkdir(parents=True, exist_ok=True)
        found = sorted(home.glob("aiconfigurator_core-*.whl"))
        if not found:
            command = [sys.executable, "-m", "pip", "download", "--no-deps", "-d", str(home), f"{PACKAGE}=={VERSION}"]
            subprocess.run(command, check=True)
            found = sorted(home.glob("aiconfigurator_core-*.whl"))
        with zipfile.ZipFile(found[-1]) as wheel:
            wheel.extractall(home)
    return home
