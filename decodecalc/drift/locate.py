"""Finds the engine packages in a tree, with their places and versions."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from decodecalc.drift.package import Package, packages
from decodecalc.drift.source import Tree

_VERSION = re.compile(
    r"""^\s*(?:__version__|version|__version_tuple__)\s*(?::[^=]*)?(?:=\s*version)?\s*=\s*['"]v?(\d[\w.+!-]*)['"]""",
    re.MULTILINE,
)
_BARE_VERSION = re.compile(r"\s*v?(\d[\w.+!-]*)\s*")


@dataclass(frozen=True)
class Found:
    """A package in a tree. root: the beginning of its paths there. version: None where nothing names it."""

    package: Package
    tree: Tree
    root: str
    version: str | None

    @property
    def where(self) -> str:
        """The place, in words."""
        return f"{self.tree.label}/{self.root}".rstrip("/")


def find_packages(tree: Tree) -> list[Found]:
    """The engine packages of a tree: a site-packages folder, a venv, a checkout, a wheel or a source archive."""
    sites = list(_site_folders(tree))
    found = []
    for package in packages():
        for site in sites:
            roots = [site + root for root in package.roots]
            here = [root for root in roots if any(tree.has(root + probe) for probe in package.probes)]
            if here:
                version = _version(tree, site, here[0], package)
                found.append(Found(package, tree, here[0], version))
                break
    return _without_forks(found)


def _without_forks(found: list[Found]) -> list[Found]:
    """Leaves out packages that are part of a fork: a fork's checkout contains the folders of its upstream, which then
    belong to the fork."""
    inside = {(name, f.tree.label + f.root) for f in found for name in f.package.contains}
    return [f for f in found if (f.package.name, f.tree.label + f.root) not in inside]


def _site_folders(tree: Tree) -> Iterator[str]:
    """Where packages may start: at the tree itself, in a venv's site-packages, or in a wheel's data folder."""
    yield ""
    for lib in ("lib", "lib64", "Lib"):
        for name in tree.names(lib):
            if name.startswith("python"):
                yield f"{lib}/{name}/site-packages/"
                yield f"{lib}/{name}/dist-packages/"
            elif name == "site-packages":
                yield f"{lib}/site-packages/"


def _version(tree: Tree, site: str, root: str, package: Package) -> str | None:
    return _from_metadata(tree, site, package) or _from_files(tree, root, package)


def normalised(name: str) -> str:
    """A distribution name in the normal form of package indexes."""
    return re.sub(r"[-_.]+", "-", name).lower()


def _from_metadata(tree: Tree, site: str, package: Package) -> str | None:
    """The version in NAME-VERSION.dist-info, or in an sdist's PKG-INFO."""
    for name in tree.names(site.rstrip("/")):
        if name.endswith(".dist-info"):
            stem, _, version = name[: -len(".dist-info")].rpartition("-")
            if normalised(stem) in package.distributions and version:
                return version
    info = tree.read(site + "PKG-INFO")
    if info:
        named = re.search(r"^Name: *(\S+)", info, re.MULTILINE)
        release = re.search(r"^Version: *(\S+)", info, re.MULTILINE)
        if named and release and normalised(named[1]) in package.distributions:
            return release[1]
    return None


def _from_files(tree: Tree, root: str, package: Package) -> str | None:
    for path in package.version_files:
        text = tree.read(root + path)
        if text is None:
            continue
        match = _BARE_VERSION.fullmatch(text) if path.endswith(".txt") else _VERSION.search(text)
        if match:
            return match[1]
    return None


def installed_trees() -> Iterable[tuple[str, str, str]]:
    """(distribution, version, folder) of the engine packages that the running interpreter would import."""
    from importlib import metadata

    wanted = {name for package in packages() for name in package.distributions}
    seen = set()
    for distribution in metadata.distributions():
        name = normalised(distribution.metadata["Name"] or "")
        if name in wanted and name not in seen:
            seen.add(name)
            yield name, distribution.version, str(distribution.locate_file(""))
