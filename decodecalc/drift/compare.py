"""Compares our policies with the engines that are found: every check of every policy that follows them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from decodecalc.drift.checks import Check, NotFoundError, Reading
from decodecalc.drift.locate import Found, find_packages, installed_trees
from decodecalc.drift.package import Followed, packages
from decodecalc.drift.source import Folder, open_tree
from decodecalc.errors import InputError, MissingDependencyError, UnknownNameError
from decodecalc.launch.policy import Policy, PolicyVersion, version_key

SAME, DIFFERS, NO_SOURCE = "same", "differs", "no source"
COMPILED = (".h", ".cuh", ".cu", ".cpp")  # sources that an installed wheel does not always carry


@dataclass(frozen=True)
class Outcome:
    """The result of one check. `status` is same, differs, or no source (a compiled package does not carry the file).

    file, line: where the value was read, relative to the place of the package. note: what a difference consists of.
    """

    what: str
    status: str
    file: str
    line: int
    expected: Any = None
    found: Any = None
    note: str = ""

    @property
    def place(self) -> str:
        """file:line."""
        return f"{self.file}:{self.line}" if self.line else self.file


@dataclass(frozen=True)
class Verdict:
    """The results of one policy for one package.

    version_known: whether a version of our policy covers the package's version. policy_version: the version that was
    compared; for an unknown version, the one that would be used. also: other versions of the policy for which every
    check holds.
    """

    package: str
    package_version: str | None
    where: str
    engine: str
    policy_version: str
    version_known: bool
    outcomes: tuple[Outcome, ...]
    also: tuple[str, ...] = ()

    @property
    def differences(self) -> tuple[Outcome, ...]:
        """The checks that do not hold."""
        return tuple(o for o in self.outcomes if o.status == DIFFERS)

    @property
    def status(self) -> str:
        """One of: same, differs, unknown version (and nothing differs), no source (nothing could be read), not checked
        (this version of the policy has no checks)."""
        if self.differences:
            return DIFFERS
        if not self.outcomes:
            return "not checked"
        if all(o.status == NO_SOURCE for o in self.outcomes):
            return NO_SOURCE
        return SAME if self.version_known else "unknown version"


def inspect_path(path: str) -> list[Verdict]:
    """The results of every policy that follows a package found under `path`. Raises InputError when there is none."""
    found = find_packages(open_tree(path))
    if not found:
        names = ", ".join(package.name for package in packages())
        raise InputError(
            f"{path} holds none of {names}: give a site-packages folder, a venv, a source checkout, a .whl or a .tar.gz"
        )
    return [verdict for each in found for verdict in _verdicts(each)]


def inspect_environment() -> list[Verdict]:
    """The results of every policy that follows a package of the running interpreter. Raises MissingDependencyError when
    there is none."""
    found: list[Found] = []
    for name, version, folder in installed_trees():
        for each in find_packages(Folder(_path(folder))):
            known = {(f.package.name, f.where) for f in found}
            if name in each.package.distributions and (each.package.name, each.where) not in known:
                found.append(Found(each.package, each.tree, each.root, version))
    if not found:
        names = ", ".join(package.distributions[0] for package in packages())
        raise MissingDependencyError(
            f"none of {names} is installed in this interpreter: --path takes another environment, a checkout or a wheel"
        )
    return [verdict for each in found for verdict in _verdicts(each)]


def _path(folder: str) -> Any:
    from pathlib import Path

    return Path(folder)


def _verdicts(found: Found) -> Iterator[Verdict]:
    from decodecalc.engines import load_policy

    for followed in found.package.follows:
        if followed.needs is not None:
            path, word = followed.needs
            if word not in (found.tree.read(found.root + path) or ""):
                continue
        policy = load_policy(followed.engine)
        version, known = _policy_version(policy, followed, found.version)
        outcomes = _run(followed.checks, version, found)
        also: tuple[str, ...] = ()
        if not _hold(outcomes):
            others = [v for v in followed.candidates(policy) if v is not version]
            also = tuple(v.name for v in others if _hold(_run(followed.checks, v, found)))
            if found.version is None and not known and also:
                # Nothing names the release, so take the newest version with which the sources agree.
                version, also = policy.version(also[0]), also[1:]
                outcomes = _run(followed.checks, version, found)
        yield Verdict(
            package=found.package.name,
            package_version=found.version,
            where=found.where,
            engine=policy.name,
            policy_version=version.name,
            version_known=known,
            outcomes=tuple(outcomes),
            also=also,
        )


def _hold(outcomes: Sequence[Outcome]) -> bool:
    return all(outcome.status != DIFFERS for outcome in outcomes)


def _policy_version(policy: Policy, followed: Followed, version: str | None) -> tuple[PolicyVersion, bool]:
    """The version of our policy to compare with, and whether it is known to cover the version of the package."""
    candidates = followed.candidates(policy)
    if followed.fixed is not None:
        return policy.version(followed.fixed), version is None
    if version is None:
        return candidates[0], False
    release = version.partition("+")[0]  # what follows says how it was built
    try:
        exact = policy.version(release)
        if exact in candidates:
            return exact, True
    except UnknownNameError:
        pass
    key = version_key(release)
    older = [v for v in candidates if v.covers and version_key(v.covers[0]) <= key]
    # Versions are listed newest first: take the first one that had been released by then.
    return (older[0] if older else candidates[-1]), False


def _run(checks: Sequence[Check], version: PolicyVersion, found: Found) -> list[Outcome]:
    return [_outcome(check, version, found) for check in checks if check.when(version.rules)]


def _outcome(check: Check, version: PolicyVersion, found: Found) -> Outcome:
    present = [path for path in check.files if found.tree.has(found.root + path)]
    expected = _shape(check.expected(version))
    if not present:
        status = NO_SOURCE if check.files[0].endswith(COMPILED) else DIFFERS
        return Outcome(check.what, status, found.root + check.files[0], 0, expected, None, "the file is not there")
    problems = []
    for path in present:
        text = found.tree.read(found.root + path)
        try:
            if text is None:
                raise NotFoundError("the file cannot be read, or is too large to be source")
            reading = check.reader.read(text)
        except NotFoundError as problem:
            problems.append((path, str(problem)))
            continue
        return _compared(check, expected, reading, found.root + path)
    first, reason = problems[0]
    return Outcome(check.what, DIFFERS, found.root + first, 0, expected, None, reason)


def _compared(check: Check, expected: Any, reading: Reading, file: str) -> Outcome:
    value = _shape(reading.value)
    if value == expected:
        return Outcome(check.what, SAME, file, reading.line, expected, value)
    note, shown_expected, shown_value = "", expected, value
    if check.cases and isinstance(value, tuple) and isinstance(expected, tuple) and len(value) == len(expected):
        wrong = [i for i, (a, b) in enumerate(zip(expected, value)) if a != b]
        first = wrong[0]
        case = check.cases[first] if first < len(check.cases) else f"case {first}"
        note = f"at {case}" + (f" and {len(wrong) - 1} more of {len(value)} cases" if len(wrong) > 1 else "")
        shown_expected, shown_value = expected[first], value[first]
    return Outcome(check.what, DIFFERS, file, reading.line, shown_expected, shown_value, note)


def _shape(value: Any) -> Any:
    """Lists as tuples, so that values are compared by their content; NumPy numbers as plain numbers."""
    if isinstance(value, (list, tuple)):
        return tuple(_shape(item) for item in value)
    return value.item() if hasattr(value, "item") else value
