"""Traits: what the rest of the project may ask about an engine beside its launch.

A policy says what is launched. Its traits say what servers call the engine, which setting fixes its splits, how its
reproducible mode is entered, whose measurements predict its time, and how the bundled kernel can run its partition for
a proof. Code outside an engine's folder reads these fields; it never asks for an engine by name.
"""

from __future__ import annotations

from dataclasses import dataclass, field

# How the bundled kernel is told an engine's partition (`Partition.rule`).
COUNT, COUNTS, SIZE, SIZES, IRREGULAR = "count", "counts", "size", "sizes", "irregular"


@dataclass(frozen=True, slots=True)
class SplitSetting:
    """The setting of a server or library that fixes an engine's split count."""

    text: str
    """What a user types; `{splits}` stands for the count, `{pages}` for the pages that one split then holds."""
    option: str
    """The option of our policy that stands for the setting."""
    server: str | None = None
    """The server that takes the text on its command line or in its environment; None where no server does, and only a
    program that calls the library can pass it."""
    checked: tuple[int, ...] = ()
    """Values of the setting whose predicted times were held against measured ones: advice stays among them."""

    @property
    def in_pages(self) -> bool:
        """Whether the setting takes the size of a split in pages instead of a count."""
        return "{pages}" in self.text


@dataclass(frozen=True, slots=True)
class Partition:
    """How the bundled kernel is told where this engine cuts a request's keys.

    The kernel is given as little as possible, so that what it then does is an observation and not a copy of the plan.
    """

    rule: str = SIZES
    """`count`: one split count for the batch; `counts`: one for each request; `size`: keys of a split, one number for
    the batch; `sizes`: one for each request; `irregular`: cuts that follow no number a request (not run)."""
    unit_keys: int | None = None
    """Splits are whole multiples of this many keys; None takes the plan's tile."""
    pads_grid: bool = False
    """The first grid extent holds blocks beyond the requests' own, as padding."""


@dataclass(frozen=True, slots=True)
class Traits:
    """One engine's traits. Every field has a default that is right for an engine without the feature."""

    server_names: tuple[str, ...] = ()
    """Names that servers use for this engine's kernel in their own options, for example `TRITON_ATTN`."""
    split_setting: SplitSetting | None = None
    """The setting that fixes the split count; None where no setting does."""
    invariant_option: tuple[str, object] | None = None
    """The option of our policy, and its value, that stands for the engine's reproducible mode."""
    by_hand_option: str | None = None
    """An option that fixes the size or count of splits, for engines without a reproducible mode."""
    time_kernels: tuple[str, str] | None = None
    """Kernels in a calibration that measure the unsplit and the split path; None takes the engine's name for both."""
    schedules_once_a_step: bool = False
    """The scheduler kernel serves all layers of a step, so that a layer's time does not hold it."""
    requests_in_turn: bool = False
    """Stage 1's blocks are handed out request by request (by a scheduler or a work list); otherwise the first splits of
    all requests start before their second ones."""
    partition: Partition = field(default_factory=Partition)
    """How the bundled kernel is told the engine's cuts."""
    sparse: bool = False
    """The kernel reads gathered lists: it plans sparse layers, and `Batches` then counts the entries of the lists."""

    @property
    def count_option(self) -> str | None:
        """The option of our policy that takes a split count; None where the engine takes none by hand."""
        if self.split_setting is None:
            return self.by_hand_option
        return None if self.split_setting.in_pages else self.split_setting.option

    def time_kernel(self, engine: str, is_split: bool) -> str:
        """The kernel whose measurements predict this path of `engine`."""
        return self.time_kernels[is_split] if self.time_kernels else engine
