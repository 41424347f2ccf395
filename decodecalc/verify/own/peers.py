"""Where engines are looked for: among the installed packages, then in a peer folder.

A peer folder is a small copy of the engines' packages (`benchmarks/kernels_peers.py` fills one): it travels to
machines where the engines are not installed and nothing can be fetched. It is `.peers` in the current folder, or what
the variable DECODECALC_PEERS names, and comes behind everything that is installed. Packed files in it (`NAME.xz`,
`NAME.tar.xz`) are unpacked beside themselves when it is first used.
"""

from __future__ import annotations

import lzma
import os
import shutil
import sys
import tarfile
from importlib import invalidate_caches, metadata
from importlib.util import find_spec
from pathlib import Path

from decodecalc.engines.registry import load_policy
from decodecalc.errors import UnknownNameError
from decodecalc.verify.own.runner import INSTALLED, PEERS, FoundEngine, UnavailableError

VARIABLE, DEFAULT = "DECODECALC_PEERS", ".peers"


def peer_folder() -> Path | None:
    """The peer folder of this process, when there is one."""
    path = Path(os.environ.get(VARIABLE, DEFAULT))
    return path.resolve() if path.is_dir() else None


def use_folder(folder: Path) -> None:
    """Unpack what is packed in the folder, and let its packages be imported, behind the installed ones."""
    for packed in sorted(folder.rglob("*.tar.xz")):
        mark = packed.with_name(packed.name + ".unpacked")
        if not mark.exists():
            with tarfile.open(packed) as tar:
                tar.extractall(packed.parent, filter="data")
            mark.touch()
    for packed in sorted(folder.rglob("*.xz")):
        plain = packed.with_suffix("")
        if packed.name.endswith(".tar.xz") or plain.exists():
            continue
        partial = plain.with_name(plain.name + ".partial")
        with lzma.open(packed) as source, partial.open("wb") as target:
            shutil.copyfileobj(source, target, 1 << 22)
        partial.replace(plain)
    if str(folder) not in sys.path:
        sys.path.append(str(folder))
        invalidate_caches()


def find_package(
    engine: str, distribution: str, files: tuple[str, ...], policy_version: str | None = None
) -> FoundEngine:
    """The distribution, when it is installed or in the peer folder and has these files (paths below its packages'
    folder; a library may be packed). Nothing of it is imported. UnavailableError: it is not there.

    policy_version: how the policy calls this version; its number when None. `{version}` stands for the number.
    """
    _need_torch()
    folder = peer_folder()
    paths = [Path(p) for p in sys.path if p and Path(p).is_dir()]
    for path in [p for p in paths if p != folder] + ([folder] if folder else []):
        known = next(iter(metadata.distributions(name=distribution, path=[str(path)])), None)
        if known is None or not all(_there(path, name) for name in files):
            continue
        where = PEERS if path == folder else INSTALLED
        number = known.version.partition("+")[0]  # what follows names the build, such as cu130, and no other rule
        called = (policy_version or "{version}").format(version=number)
        return FoundEngine(
            package=distribution,
            version=known.version,
            policy_version=called if _knows(engine, called) else None,
            where=where,
        )
    absent = f"neither installed nor in the peer folder {folder.name}" if folder else "not installed"
    raise UnavailableError(f"{distribution} with {' and '.join(files)} is {absent}")


def _there(root: Path, name: str) -> bool:
    """Whether a file is below this folder, plain or packed, or comes out of its package's archive."""
    archive = root / f"{name.split('/')[0]}.tar.xz"
    return (root / name).exists() or (root / f"{name}.xz").exists() or archive.exists()


def _knows(engine: str, version: str) -> bool:
    try:
        load_policy(engine).version(version)
    except UnknownNameError:
        return False
    return True


def _need_torch() -> None:
    if find_spec("torch") is None:
        raise UnavailableError("torch is not installed: pip install 'decodecalc[verify]'")
