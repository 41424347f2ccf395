"""Policy: one engine's rule, in every version we know, behind one scalar and one whole-array door."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from decodecalc.batch import Batch
from decodecalc.errors import GateError, UnknownNameError
from decodecalc.geometry import Geometry
from decodecalc.kvcache import KvCache
from decodecalc.launch.arrays import Batches, KernelArray, Launches, at, row
from decodecalc.launch.options import EngineOptions
from decodecalc.launch.plan import Gate, KernelLaunch, KeyRanges, LaunchPlan, Splits
from decodecalc.launch.traits import Traits

if TYPE_CHECKING:
    from decodecalc.gpus import Gpu


@dataclass(frozen=True, slots=True)
class PolicyVersion:
    """A version of a policy.

    name: the release it was read from. covers: (first, last) release it is known to hold for, both included.
    source: repository, files and symbols. rules: what differs between versions, as a frozen dataclass of parameters.
    """

    name: str
    source: str
    covers: tuple[str, str] | None = None
    rules: Any = None
    note: str = ""


def version_key(text: str) -> tuple[int, ...]:
    """Release numbers in order: 0.27.1 after 0.27, post releases after their base; 0.27 and 0.27.0 are the same."""
    digits = [int(d) for d in "".join(c if c.isdigit() else " " for c in text).split()]
    while len(digits) > 1 and digits[-1] == 0:
        digits.pop()
    return tuple(digits) or (0,)


class Policy:
    """Base of every engine's policy. Subclasses set the class attributes and write `launches`."""

    name: ClassVar[str]
    title: ClassVar[str]
    word_for_split: ClassVar[str] = "split"
    versions: ClassVar[tuple[PolicyVersion, ...]]
    options_type: ClassVar[type[EngineOptions]] = EngineOptions
    rule: ClassVar[str] = ""
    split_flag: ClassVar[str | None] = None
    traits: ClassVar[Traits] = Traits()

    def launches(
        self, geo: Geometry, batches: Batches, kv: KvCache, gpu: Gpu, options: Any, version: PolicyVersion
    ) -> Launches:
        """The rule itself, on arrays. Raises GateError for a setting that the engine refuses at start-up."""
        raise NotImplementedError

    def check_layer(self, geo: Geometry) -> None:
        """GateError (`sparse_layer`) where the layer gathers its keys and the engine reads whole sequences."""
        if geo.gather is not None and not self.traits.sparse:
            raise GateError(
                f"{self.name}: this layer gathers its keys by a list and the engine reads whole sequences "
                f"(as_dense=True, on the command line --as-dense, plans it as if every key were read)",
                "sparse_layer",
            )

    def on_layer(
        self, geo: Geometry, batches: Batches, kv: KvCache, gpu: Gpu, options: Any, version: PolicyVersion
    ) -> tuple[Batches, Launches]:
        """`launches` for a layer that may be sparse, and the batches as its kernel sees them."""
        self.check_layer(geo)
        seen = batches.seen_by(geo)
        return seen, self.launches(geo, seen, kv, gpu, options, version)

    def version(self, name: str | None = None) -> PolicyVersion:
        """The version called `name`, or the one whose range covers it; the newest when None."""
        if name is None:
            return self.versions[0]
        for version in self.versions:
            if version.name == name:
                return version
        for version in self.versions:
            if version.covers and version_key(version.covers[0]) <= version_key(name) <= version_key(version.covers[1]):
                return version
        raise UnknownNameError(f"version of {self.name}", name, [v.name for v in self.versions])

    @classmethod
    def option_names(cls) -> tuple[str, ...]:
        """Names of the options that this engine has."""
        return tuple(f.name for f in fields(cls.options_type))

    def own_options(self, given: Mapping[str, Any], model_kv_heads: int | None = None) -> dict[str, Any]:
        """Those of the given options that this engine has. model_kv_heads: the model-wide KV-head count of the rank,
        for engines whose rule looks at it; an option given under that name comes first."""
        own = self.option_names()
        taken = {name: value for name, value in given.items() if name in own}
        if model_kv_heads is not None and "model_kv_heads" in own:
            taken.setdefault("model_kv_heads", model_kv_heads)
        return taken

    def plan(
        self,
        geo: Geometry,
        batch: Batch,
        kv: KvCache,
        gpu: Gpu,
        options: Mapping[str, Any] | EngineOptions | None = None,
        version: str | None = None,
    ) -> LaunchPlan:
        """The plan of one step: the array rule at N = 1, with its gates put into words.

        GateError (`sparse_layer`) for a sparse layer where the engine reads whole sequences only.
        """
        self.check_layer(geo)
        batch = batch.seen_by(geo)
        chosen = self.version(version)
        opts = (
            options if isinstance(options, EngineOptions) else self.options_type.from_mapping(self.name, options or {})
        )
        step = Batches.single(batch)
        found = self.launches(geo, step, kv, gpu, opts, chosen)
        if __debug__:
            found.check(step)
        return self._plan_at(found, step, geo, batch, kv, gpu, opts, chosen)

    def _plan_at(
        self,
        found: Launches,
        step: Batches,
        geo: Geometry,
        batch: Batch,
        kv: KvCache,
        gpu: Gpu,
        opts: EngineOptions,
        chosen: PolicyVersion,
    ) -> LaunchPlan:
        r, seq_lens = batch.size, batch.seq_lens
        live = row(found.live, 0, r)
        blocks = row(found.blocks_per_split, 0, r)
        first, size = row(found.first_key, 0, r), row(found.split_keys, 0, r)
        dealt = found.interleave_at(0)
        keys = found.key_ranges(0) if found.key_ranges else KeyRanges(first, size, live, seq_lens, dealt)
        is_split = bool(at(found.is_split, 0))
        read = seq_lens if found.keys_read is None else row(found.keys_read, 0, r)
        return LaunchPlan(
            engine=self.name,
            version=chosen.name,
            path=found.path_names[is_split],
            is_split=is_split,
            merge_in=str(at(found.merge_in, 0)) if is_split else None,
            geometry=geo,
            batch=batch,
            kv=kv,
            gpu=gpu,
            kernels=tuple(_kernel_at(k) for k in found.kernels if at(k.when, 0)),
            splits=Splits(
                requested=row(found.requested, 0, r),
                launched=at(found.launched, 0),
                live=live,
                working=live if found.working is None else row(found.working, 0, r),
                keys=keys,
                interleave_keys=dealt,
            ),
            gates=tuple(Gate(g.name, bool(at(g.passed, 0)), g.reason(0)) for g in found.gates),
            scratch_bytes=int(at(found.scratch_bytes, 0)),
            blocks_per_split=blocks,
            keys_read=read,
            partial_splits=row(found.partials(), 0, r),
            shared_slots=found.shared_slots,
            unsplit_blocks=int(found.unsplit(step)[0]),
            tile_keys=at(found.tile_keys, 0),
            block_rows=at(found.block_rows, 0),
            live_rows=at(found.live_rows, 0),
            state_values=at(found.state_values, 0) if is_split else 0,
            determinism=found.determinism,
            detail=_detail_at(found.detail, r),
            options=opts,
            merge_walks=None if found.merge_walks is None else int(at(found.merge_walks, 0)),
            pieces_in_turn=None if found.pieces_in_turn is None else found.pieces_in_turn(0),
        )


def _detail_at(detail: Any, r: int) -> Any:
    """The engine's own quantities of step 0: [N] arrays become numbers, [N, R] arrays tuples."""
    if detail is None:
        return None
    values = {}
    for f in fields(detail):
        value = getattr(detail, f.name)
        values[f.name] = row(value, 0, r) if isinstance(value, np.ndarray) and value.ndim == 2 else at(value, 0)
    return replace(detail, **values)


def _kernel_at(kernel: KernelArray) -> KernelLaunch:
    return KernelLaunch(
        name=kernel.name,
        role=kernel.role,
        grid=tuple(int(at(extent, 0)) for extent in kernel.grid),
        threads=kernel.threads,
        live_blocks=int(at(kernel.live_blocks, 0)),
        tile_keys=None if kernel.tile_keys is None else int(at(kernel.tile_keys, 0)),
    )
