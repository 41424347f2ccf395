"""What an engine folder says about traces: the interface between the mechanism here and `engines/<folder>/trace.py`.

Each folder that has a `trace.py` fills one `TraceKnowledge` and calls it `TRACE`. The audit gathers them all
(`load.knowledge`). Neither this module nor any that uses it knows an engine by name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from decodecalc.trace.attribution import Attribution, AttributionRule, Surroundings, attribute, by_name
from decodecalc.trace.compare import KernelFamily
from decodecalc.trace.inference import InferenceRule, Inferred, infer
from decodecalc.trace.pairing import LaunchGroup
from decodecalc.trace.recognise import NameBook, NameRule, Recognition, Vendor
from decodecalc.trace.settings import SettingRule, as_launched, nothing_explains
from decodecalc.trace.steps import NoteReader
from decodecalc.trace.warnings import WarningRule

__all__ = ["EngineTrace", "KernelFamily", "TraceKnowledge"]


def recognised_kernel(group: LaunchGroup) -> str:
    """The name that the rule of the kernel's name gave."""
    return group.kind.kernel


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineTrace:
    """How the launches of one engine are recognised and read."""

    engine: str
    """The engine's name in the registry."""
    families: tuple[str, ...]
    """Kernel families whose launches may be this engine's."""
    attribute: AttributionRule = by_name
    """Whether such a launch is this engine's, and why."""
    kernel: Callable[[LaunchGroup], str] = recognised_kernel
    """The name of the stage-1 kernel in the engine's plans, where the kernel's own name does not give it."""
    infer: InferenceRule | None = None
    """What grids say about the layer and the batch; None where they say nothing."""
    shown: SettingRule = as_launched
    """Settings that a launch shows, to be tried in this order."""
    explanations: SettingRule = nothing_explains
    """Settings under which a launch that differs from the default one would be right."""
    stand_ins: tuple[int, ...] = ()
    """Lengths to plan with where nothing states any: one that is long enough to be split and one that is not. Empty
    where a launch means nothing without the lengths."""
    path_names: tuple[str, str] = ("unsplit", "split")
    """The engine's words for its paths."""
    warnings: tuple[WarningRule, ...] = ()
    """What is known to cost time or to mislead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceKnowledge:
    """What one engine folder knows about traces, or all of them together."""

    names: tuple[NameRule, ...] = ()
    """Rules that recognise kernels by their names."""
    families: tuple[KernelFamily, ...] = ()
    """What launches of a family show; a family that is not listed shows kernel, grids and threads."""
    engines: tuple[EngineTrace, ...] = ()
    """The folder's engines."""
    vendors: tuple[Vendor, ...] = ()
    """Marks that a project leaves in the names of its kernels."""
    step_notes: tuple[NoteReader, ...] = ()
    """Readers of the annotations that a server writes about a step."""

    @classmethod
    def together(cls, parts: Iterable[TraceKnowledge]) -> TraceKnowledge:
        """All parts merged into one."""
        found = tuple(parts)
        return cls(
            names=tuple(rule for part in found for rule in part.names),
            families=tuple(family for part in found for family in part.families),
            engines=tuple(engine for part in found for engine in part.engines),
            vendors=tuple(vendor for part in found for vendor in part.vendors),
            step_notes=tuple(reader for part in found for reader in part.step_notes),
        )

    def name_book(self) -> NameBook:
        """A new book of names that knows all rules."""
        return NameBook(self.names, self.vendors)

    def recognise(self, name: str) -> Recognition | None:
        """What a kernel of this name is; None when it is not attention."""
        return self.name_book().recognise(name)

    def family(self, name: str) -> KernelFamily:
        """What launches of this family show."""
        return next((family for family in self.families if family.name == name), KernelFamily(name=name))

    def engine(self, name: str) -> EngineTrace:
        """How this engine's launches are read; an engine whose folder says nothing has empty knowledge."""
        return next((engine for engine in self.engines if engine.engine == name), EngineTrace(engine=name, families=()))

    def attribute(self, group: LaunchGroup, surroundings: Surroundings) -> Attribution:
        """The engine that launched the group."""
        rules = [(e.engine, e.attribute) for e in self.engines if group.family in e.families]
        return attribute(group, surroundings, rules)

    def infer(self, group: LaunchGroup, engine: str, q_heads: int | None = None) -> Inferred:
        """What the grids of this group say if `engine` launched it. q_heads: query heads of the layer, where known."""
        return infer(group, self.engine(engine).infer, q_heads)
