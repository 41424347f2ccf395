"""The content of a trace: kernel shapes, their launches in columns, devices, annotations.

A launch of interest takes 24 bytes however long its name is, because shapes are stored once; of other kernels only a
count and a sum are kept. Memory therefore grows with the attention kernels of a trace, not with its size.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from decodecalc.errors import InputError

if TYPE_CHECKING:
    from decodecalc.gpus import Gpu

Dim3 = tuple[int, int, int]

MAX_NAME = 8192  # names with all template arguments reach 1 500 characters; a much longer one is no kernel's name
MAX_SHAPES = 200_000  # distinct (kernel, grid, block) of attention kernels: a real trace has tens
MAX_DURATION_S = 1e9  # no kernel runs for 30 years
MAX_NAME_CHARACTERS = 1 << 26  # of all names that are remembered, and of all shapes'
MAX_NAMES = 1 << 16  # decisions on names that are remembered; more distinct names only cost time


@dataclass(frozen=True)
class LaunchShape:
    """One kernel as it is launched. All launches with equal fields have the same shape.

    grid, block: their extents, None where the trace has none (graph replay on ROCm). smem_bytes: static and dynamic
    together.
    """

    name: str
    grid: Dim3 | None = None
    block: Dim3 | None = None
    registers: int | None = None
    smem_bytes: int | None = None

    @property
    def threads(self) -> int | None:
        """Threads of a block."""
        return None if self.block is None else math.prod(self.block)

    @property
    def blocks(self) -> int | None:
        """Blocks of the grid."""
        return None if self.grid is None else math.prod(self.grid)


@dataclass(frozen=True)
class KernelEvent:
    """One launch. Times are in seconds on the trace's own clock; the duration is NaN where that clock ran backwards.

    correlation: the id of the launching call, which all launches of one CUDA graph share. graph: the launch was
    replayed from a captured graph, and its grid is that of capture time.
    """

    shape: LaunchShape
    start_s: float
    duration_s: float
    device: int
    stream: int
    correlation: int
    graph: bool


@dataclass(frozen=True)
class TraceDevice:
    """What the trace says about a GPU."""

    index: int
    name: str = ""
    sm_count: int | None = None
    memory_bytes: int | None = None
    compute_capability: tuple[int, int] | None = None
    warp_size: int | None = None

    @property
    def gfx(self) -> str | None:
        """The AMD architecture. Kineto writes it as a compute capability (9.4 for gfx942, 9.5 for gfx950) with warps of
        64 threads."""
        if self.warp_size != 64 or self.compute_capability is None:
            return None
        return {(9, 0): "gfx90a", (9, 4): "gfx942", (9, 5): "gfx950"}.get(self.compute_capability)

    def gpu(self) -> Gpu | None:
        """The entry of the GPU table, or a GPU made of what the trace says; None when the trace does not even give the
        SM count."""
        from decodecalc.gpus.detect import DeviceProperties, gpu_from_device, match_device

        capability = None if self.gfx else self.compute_capability
        if self.sm_count is None:
            return match_device(self.name, None, self.memory_bytes, capability, self.gfx)
        return gpu_from_device(
            DeviceProperties(
                name=self.name,
                sm_count=self.sm_count,
                memory_bytes=self.memory_bytes,
                compute_capability=capability,
                gfx=self.gfx,
                warp_size=self.warp_size,
            )
        )


@dataclass(frozen=True)
class Annotation:
    """A named range, into which engines write what a step contains."""

    name: str
    start_s: float
    duration_s: float


@dataclass
class EventLog:
    """Launches of the kernels of interest, in columns; of all others two totals.

    `wanted` decides from a name whether a kernel is of interest. It is asked once for each distinct name.
    """

    wanted: Callable[[str], bool]
    shapes: list[LaunchShape] = field(default_factory=list)
    kernels: int = 0
    kernel_s: float = 0.0
    bad_times: int = 0
    malformed: int = 0
    start: array[float] = field(default_factory=lambda: array("d"))
    duration: array[float] = field(default_factory=lambda: array("f"))
    shape: array[int] = field(default_factory=lambda: array("I"))
    lane: array[int] = field(default_factory=lambda: array("I"))
    correlation: array[int] = field(default_factory=lambda: array("I"))
    verdicts: dict[str, bool] = field(default_factory=dict)
    lanes: list[tuple[int, int]] = field(default_factory=list)
    graph_correlations: array[int] = field(default_factory=lambda: array("I"))
    _name_characters: int = 0
    _shape_characters: int = 0
    _shape_ids: dict[Any, int] = field(default_factory=dict)
    _lane_ids: dict[tuple[int, int], int] = field(default_factory=dict)

    def is_wanted(self, name: str) -> bool:
        """Whether launches of this kernel are kept."""
        name = name[:MAX_NAME]
        verdict = self.verdicts.get(name)
        if verdict is None:
            self._name_characters += len(name)
            if len(self.verdicts) >= MAX_NAMES or self._name_characters > MAX_NAME_CHARACTERS:
                self.verdicts.clear()
                self._name_characters = len(name)
            verdict = self.verdicts[name] = self.wanted(name)
        return verdict

    def count(self, duration_s: float) -> bool:
        """Adds one kernel to the totals. Returns False when its duration is impossible (negative or not finite)."""
        self.kernels += 1
        if 0.0 <= duration_s < MAX_DURATION_S:
            self.kernel_s += duration_s
            return True
        self.bad_times += 1
        return False

    def add(
        self,
        name: str,
        start_s: float,
        duration_s: float,
        grid: Any = None,
        block: Any = None,
        device: int = 0,
        stream: int = 0,
        correlation: int = 0,
        registers: Any = None,
        smem_bytes: Any = None,
        graph: bool = False,
    ) -> None:
        """Adds one launch of any kernel and keeps it when its name is wanted. grid and block are sequences of up to 3
        counts."""
        wanted = self.is_wanted(name)  # first: a name that is no string must not be counted
        good = self.count(duration_s)
        if not wanted:
            return
        try:
            name = name[:MAX_NAME]
            extents = (tuple(grid[:4]) if grid else None, tuple(block[:4]) if block else None)
            key = (name, *extents, registers, smem_bytes)
            number = self._shape_ids.get(key)
        except TypeError:  # a grid that is no list, or a list of lists
            self.malformed += 1
            key = (name, None, None, None, None)
            number = self._shape_ids.get(key)
        if number is None:
            number = self._new_shape(key)
        place = (device, stream)
        lane = self._lane_ids.get(place)
        if lane is None:
            lane = self._lane_ids[place] = len(self.lanes)
            self.lanes.append(place)
        correlation &= 0xFFFFFFFF
        self.start.append(start_s if math.isfinite(start_s) else 0.0)
        self.duration.append(duration_s if good else math.nan)
        self.shape.append(number)
        self.lane.append(lane)
        self.correlation.append(correlation)
        if graph:
            self.mark_graph(correlation)

    def mark_graph(self, correlation: int) -> None:
        """Marks launches with this correlation id as graph replays."""
        if not self.graph_correlations or self.graph_correlations[-1] != correlation & 0xFFFFFFFF:
            self.graph_correlations.append(correlation & 0xFFFFFFFF)

    def _new_shape(self, key: tuple[Any, ...]) -> int:
        self._shape_characters += len(key[0])
        if len(self.shapes) >= MAX_SHAPES or self._shape_characters > MAX_NAME_CHARACTERS:
            raise InputError(
                f"the trace has more than {MAX_SHAPES} different attention launches: that is not a profile of a model"
            )
        name, grid, block, registers, smem = key
        number = self._shape_ids[key] = len(self.shapes)
        shape = LaunchShape(name[:MAX_NAME], dim3(grid), dim3(block), whole(registers), whole(smem))
        if grid is not None and shape.grid is None:
            self.malformed += 1
        self.shapes.append(shape)
        return number

    def __len__(self) -> int:
        return len(self.start)

    def events(self) -> Iterator[KernelEvent]:
        """Every kept launch, in the order read."""
        graphs = set(self.graph_correlations)
        for i in range(len(self)):
            device, stream = self.lanes[self.lane[i]]
            yield KernelEvent(
                self.shapes[self.shape[i]],
                self.start[i],
                self.duration[i],
                device,
                stream,
                self.correlation[i],
                self.correlation[i] in graphs,
            )


@dataclass(frozen=True)
class Trace:
    """One file that was read. `rank` is the rank of the process where the trace states it. `notes` are for the reader
    of the report."""

    path: str
    format: str
    log: EventLog = field(repr=False)
    devices: tuple[TraceDevice, ...] = ()
    rank: int | None = None
    annotations: tuple[Annotation, ...] = field(default=(), repr=False)
    notes: tuple[str, ...] = ()

    def device(self, index: int = 0) -> TraceDevice | None:
        """The device with this index, or the only one."""
        for device in self.devices:
            if device.index == index:
                return device
        return self.devices[0] if self.devices else None


def dim3(value: Sequence[Any] | None) -> Dim3 | None:
    """Grid or block extents as three positive ints, with 1 for missing ones; None when they are anything else."""
    if value is None or not 1 <= len(value) <= 3:
        return None
    out = [whole(v) for v in value] + [1] * (3 - len(value))
    return (out[0], out[1], out[2]) if all(v is not None and v >= 1 for v in out) else None  # type: ignore[return-value]


def whole(value: Any) -> int | None:
    """A non-negative whole number, or None."""
    if isinstance(value, bool) or value is None:
        return None
    try:
        number = int(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if number == value and 0 <= number < 1 << 40 else None
