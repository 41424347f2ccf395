"""Traits: what the rest of the project may ask about an engine, apart from its launch.

A policy says what is launched. Its traits say by which names servers call the engine, which setting fixes its splits,
how its reproducible mode is entered, whose measurements predict its time, and how the bundled kernel can run its
partition to verify it. Code outside an engine's folder reads these fields; it never asks for an engine by name.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

# How the bundled kernel is told an engine's partition (`Partition.rule`).
COUNT, COUNTS, SIZE, SIZES, IRREGULAR = "count", "counts", "size", "sizes", "irregular"


class SplitSetting(NamedTuple):
    """The setting of a server or library that fixes an engine's split count."""

    text: str
    """What a user types; `{splits}` stands for the count, `{pages}` for the pages that one split then holds."""
    option: str
    """The option of this policy that corresponds to the setting."""
    server: str | None = None
    """The server that takes the text on its command line or in its environment; None where no server does, and only a
    program that calls the library can pass it."""
    checked: tuple[int, ...] = ()
    """Values of the setting whose predicted times were held against measured ones: advice stays among them."""

    @property
    def in_pages(self) -> bool:
        """Whether the setting takes the size of a split in pages instead of a count."""
        return "{pages}" in self.text


class Partition(NamedTuple):
    """How the bundled kernel is told where this engine cuts the keys of a request.

    The kernel is told as little as possible, so that what it then does is an observation and not a copy of the plan.
    """

    rule: str = SIZES
    """`count` gives one split count for the batch and `counts` one for each request; `size` gives the keys of a split
    for the batch and `sizes` for each request. `irregular` cuts follow no single number per request and are not run."""
    unit_keys: int | None = None
    """Splits are whole multiples of this many keys; None takes the plan's tile."""
    pads_grid: bool = False
    """Whether the first grid extent holds padding: blocks beyond those of the requests."""


@dataclass(frozen=True, slots=True)
class Traits:
    """One engine's traits. Every field has a default that is right for an engine without the feature."""

    server_names: tuple[str, ...] = ()
    """Names that servers use for this engine's kernel in their own options, for example `TRITON_ATTN`."""
    split_setting: SplitSetting | None = None
    """The setting that fixes the split count; None where no setting does."""
    graph_setting: SplitSetting | None = None
    """The setting of a server that bounds the split count under CUDA graphs; None where that is `split_setting`."""
    invariant_option: tuple[str, object] | None = None
    """The option of this policy, with its value, that selects the engine's reproducible mode."""
    by_hand_option: str | None = None
    """An option that fixes the size or count of splits, for engines without a reproducible mode."""
    time_kernels: tuple[str, str] | None = None
    """Kernels in a calibration that measure the unsplit and the split path; None takes the engine's name for both."""
    schedules_once_a_step: bool = False
    """Whether one scheduler kernel serves all layers of a step, so that the time of a layer does not contain it."""
    requests_in_turn: bool = False
    """Stage 1's blocks are handed out request by request (by a scheduler or a work list); otherwise the first splits of
    all requests start before their second ones."""
    partition: Partition = field(default_factory=Partition)
    """How the bundled kernel is told the engine's cuts."""
    graph_option: tuple[str, object] | None = None
    """The option of our policy, and its value, that stands for decode steps in CUDA graphs; None where graphs change
    nothing, or where the policy's defaults already are a server with graphs."""
    eager_option: tuple[str, object] | None = None
    """The option, and its value, that stands for a server without graphs, where the defaults have them."""
    replay_option: tuple[str, object] | None = None
    """The option, and its value, that stands for the padding of a step to the captured batch that is replayed."""
    longest_option: str | None = None
    """The option that takes the longest length that a server allows, where a captured launch follows that length."""
    longest_in_pages: bool = False
    """Whether that option, or `frozen_option`, counts pages instead of keys."""
    frozen_option: str | None = None
    """The option that takes the length from which a captured launch was made, for rules that follow a length: replays
    keep its split counts, however long their requests have become."""
    vendors: tuple[str, ...] = ("NVIDIA", "AMD")
    """Vendors of the devices that the kernel can run on at all; a policy refuses single devices of theirs itself. A
    device of no vendor is taken for one of these."""
    sparse: bool = False
    """Whether the kernel reads lists of gathered keys. It then plans sparse layers, and `Batches` counts the entries of
    the lists."""
    own_keys_apart: bool = False
    """Whether the server that divides keys over ranks with this kernel attends a step's own keys in a launch of its
    own, on the rank's own heads, and merges once more. Latent layers are exempt: their keys are stored before."""
    folds_queries: bool = False
    """Whether the queries of all requests become further heads of one token where a shared prefix is attended apart,
    because the kernel masks the query tokens of a request causally; otherwise they become tokens of one request."""
    returns_lse: bool = False
    """Whether the kernel hands out the log-sum-exp of every row, without which its output cannot be merged with that of
    another rank's keys. A policy whose versions differ overrides `Policy.returns_lse`."""

    @property
    def count_option(self) -> str | None:
        """The option of this policy that takes a split count; None where no option does."""
        if self.split_setting is None:
            return self.by_hand_option
        return None if self.split_setting.in_pages else self.split_setting.option

    def time_kernel(self, engine: str, is_split: bool) -> str:
        """The kernel whose measurements predict this path of `engine`."""
        return self.time_kernels[is_split] if self.time_kernels else engine
