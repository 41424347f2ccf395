"""The packages that decide launches: how to recognise them in a tree, and which policies follow them.

Each engine folder that has a `sources.py` lists its packages there, as `PACKAGES`. A package that decides the launches
of several engines is listed once, in the folder of its own project.
"""

from __future__ import annotations

from dataclasses import dataclass

from decodecalc.drift.checks import Check
from decodecalc.engines.registry import folder_modules
from decodecalc.launch.policy import Policy, PolicyVersion


@dataclass(frozen=True, slots=True, kw_only=True)
class Followed:
    """A policy that follows a package."""

    engine: str
    """The policy's name in the registry."""
    checks: tuple[Check, ...]
    """What to read and compare."""
    versions: str = ""
    """Prefix of the version names of the policy that belong to this package: two code bases can share a policy."""
    not_versions: str | None = None
    """Prefix of the version names that belong to another package."""
    fixed: str | None = None
    """The only version that applies, where the package has no release number."""
    needs: tuple[str, str] | None = None
    """A file, and a word in it. Without them the package does not contain the engine (any more)."""

    def candidates(self, policy: Policy) -> list[PolicyVersion]:
        """The policy's versions that are this package's, newest first."""
        return [
            v
            for v in policy.versions
            if v.name.startswith(self.versions)
            and (self.not_versions is None or not v.name.startswith(self.not_versions))
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Package:
    """One Python package or source repository."""

    name: str
    """What messages call it."""
    distributions: tuple[str, ...]
    """Its names on the package index, normalised."""
    probes: tuple[str, ...]
    """Files, any of which shows that a tree has it."""
    follows: tuple[Followed, ...]
    """The policies that it decides."""
    roots: tuple[str, ...] = ("",)
    """Folders that all paths may start from."""
    version_files: tuple[str, ...] = ()
    """Files of a checkout that may name its version."""
    contains: tuple[str, ...] = ()
    """Packages whose files a checkout of this one also contains: the upstream of a fork. They are then counted as the
    fork's."""


def packages() -> tuple[Package, ...]:
    """The packages of every engine folder, in the order of the registry."""
    return tuple(package for module in folder_modules("sources") for package in module.PACKAGES)
