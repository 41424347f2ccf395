"""Policy: the rule of one engine in every known version, for one step and for whole arrays of steps."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np

from decodecalc.batch import Batch
from decodecalc.errors import GateError, UnknownNameError
from decodecalc.geometry import Geometry
from decodecalc.kvcache import KvCache
from decodecalc.launch.arrays import Batches, GateArray, KernelArray, Launches, at, row
from decodecalc.launch.options import EngineOptions
from decodecalc.launch.plan import Gate, KernelLaunch, KeyRanges, LaunchPlan, Splits, parts_of
from decodecalc.launch.takes import ANY_DEVICE, Takes, admit
from decodecalc.launch.traits import Traits

if TYPE_CHECKING:
    from decodecalc.gpus import Gpu


class PolicyVersion(NamedTuple):
    """A version of a policy."""

    name: str
    """The release that it was read from."""
    source: str
    """Repository, files and symbols."""
    covers: tuple[str, str] | None = None
    """The first and the last release for which it is known to hold; None where that was not established."""
    rules: Any = None
    """What differs between versions: a frozen dataclass of parameters."""
    note: str = ""
    """What this version changed."""


def version_key(text: str) -> tuple[int, ...]:
    """A key that orders releases: 0.27.1 is after 0.27, a post release after its base; 0.27 and 0.27.0 are equal."""
    digits = [int(d[:18]) for d in "".join(c if c.isdecimal() else " " for c in text).split()]
    while len(digits) > 1 and digits[-1] == 0:
        digits.pop()
    return tuple(digits) or (0,)


# Pre-releases: nobody has read one unless it is named.
_PRE_RELEASE = r"(?<![a-z])(a|b|rc|dev)\.?\d"


def _is_named(name: str, among: Iterable[str]) -> bool:
    """Whether a release is one of these, as text: `0.27` and `0.27.0` are the same, `0.7.2.1` is no post release."""

    def plain(text: str) -> str:
        return re.sub(r"(\.0)+$", "", text.strip().lower().removeprefix("v"))

    return plain(name) in {plain(text) for text in among}


def _neighbours(name: str, versions: Sequence[PolicyVersion]) -> list[str]:
    """Names of the versions just below and just above a release; empty where it holds no number."""
    if not any(c.isdigit() for c in name):
        return []
    key, ranges = version_key(name), [v for v in versions if v.covers]
    below = [v for v in ranges if v.covers and version_key(v.covers[0]) <= key]
    above = [v for v in ranges if v.covers and version_key(v.covers[0]) > key]
    near = [max(below, key=_begins)] if below else []
    near += [min(above, key=_begins)] if above else []
    return [v.name for v in near]


def _begins(version: PolicyVersion) -> tuple[int, ...]:
    return version_key(version.covers[0]) if version.covers else ()


class Policy:
    """Base of every engine's policy. Subclasses set the class attributes and write `launches`.

    releases: releases of the engine that exist, where they are listed; others are in no version's range.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    word_for_split: ClassVar[str] = "split"
    versions: ClassVar[tuple[PolicyVersion, ...]]
    options_type: ClassVar[type[EngineOptions]] = EngineOptions
    rule: ClassVar[str] = ""
    split_flag: ClassVar[str | None] = None
    traits: ClassVar[Traits] = Traits()
    releases: ClassVar[tuple[str, ...]] = ()
    preset: Mapping[str, Any] = {}
    """Options that stand in where a caller gives none: those of a server (`configured`)."""
    preset_page: int | None = None
    """Keys of a page that a server imposes on the kernel, whatever the cache's layout says; None leaves the layout."""

    def configured(self, options: Mapping[str, Any], page_size: int | None = None) -> Policy:
        """This policy as a server runs it: with these options where a caller gives none, and on pages of this size."""
        own = copy.copy(self)
        own.preset = {**self.preset, **options}
        own.preset_page = page_size or self.preset_page
        return own

    def graph_options(self, version: PolicyVersion) -> Mapping[str, Any]:
        """Options that stand for decode steps in CUDA graphs, in this version; empty where graphs change nothing."""
        return {} if self.traits.graph_option is None else dict([self.traits.graph_option])

    def eager_options(self, version: PolicyVersion) -> Mapping[str, Any]:
        """Options that stand for decode steps without CUDA graphs, where the defaults have them."""
        return {} if self.traits.eager_option is None else dict([self.traits.eager_option])

    def cache_of(self, kv: KvCache) -> KvCache:
        """The cache as the kernel sees it: on the pages that a server imposes."""
        return kv if self.preset_page in (None, kv.page_size) else replace(kv, page_size=self.preset_page)

    def launches(
        self, geo: Geometry, batches: Batches, kv: KvCache, gpu: Gpu, options: Any, version: PolicyVersion
    ) -> Launches:
        """The rule itself, on arrays. Raises GateError for a setting that the engine refuses at start-up."""
        raise NotImplementedError

    def check_layer(self, geo: Geometry) -> None:
        """Raises GateError (`sparse_layer`) where the layer gathers its keys and the engine reads whole sequences."""
        if geo.gather is not None and not self.traits.sparse:
            raise GateError(
                f"{self.name}: this layer reads a list of selected keys, but the engine reads whole sequences "
                f"(as_dense=True, on the command line --as-dense, plans it as if every key were read)",
                "sparse_layer",
            )

    def returns_lse(self, version: PolicyVersion) -> bool:
        """Whether this version's kernel hands out the log-sum-exp of every row."""
        return self.traits.returns_lse

    def check_ranks(self, geo: Geometry, version: PolicyVersion) -> None:
        """GateError (`context_parallel`) where keys are divided over ranks and the kernel's output cannot be merged."""
        if geo.share is not None and not self.returns_lse(version):
            raise GateError(
                f"{self.name} {version.name}: the keys of a request cannot be divided over ranks, because the kernel "
                "does not hand out the log-sum-exp with which the ranks' outputs are merged",
                "context_parallel",
            )

    def check_device(self, gpu: Gpu) -> None:
        """GateError (`other_vendor`) where the kernel does not exist for devices of the GPU's vendor."""
        if gpu.vendor is not None and gpu.vendor not in self.traits.vendors:
            raise GateError(
                f"{self.name}: its kernel runs on {' and '.join(self.traits.vendors)} devices; {gpu.label} is one of "
                f"{gpu.vendor}",
                "other_vendor",
            )

    def on_layer(
        self, geo: Geometry, batches: Batches, kv: KvCache, gpu: Gpu, options: Any, version: PolicyVersion
    ) -> tuple[Batches, Launches]:
        """`launches` for a layer that may be sparse, together with the batches as its kernel sees them."""
        self.check_device(gpu)
        self.check_layer(geo)
        self.check_ranks(geo, version)
        seen = batches.seen_by(geo)
        return seen, self._launches(geo, seen, self.cache_of(kv), gpu, options, version)

    def _launches(
        self, geo: Geometry, seen: Batches, kv: KvCache, gpu: Gpu, options: Any, version: PolicyVersion
    ) -> Launches:
        """`launches` of what the version takes, with the gate that every rule of its kind has."""
        found = self.launches(geo, seen, kv, gpu, options, version)
        self.check_taken(geo, kv, gpu, options, version)
        gate = self._within_capture(seen, kv, options)
        return found if gate is None else replace(found, gates=(*found.gates, gate))

    def _within_capture(self, seen: Batches, kv: KvCache, options: Any) -> GateArray | None:
        """Whether the requests are within the length that a CUDA graph was captured with, for rules that follow a
        length; None for other rules."""
        name = self.traits.frozen_option
        if name is None:
            return None
        longest, given = seen.max_seq_len, getattr(options, name)
        if given is None:
            return GateArray(
                "within_capture",
                True,
                lambda n: f"the rule follows the longest request of this step, {at(longest, n)} keys; a CUDA graph "
                f"keeps what its capture was planned for ({name} says for how many)",
            )
        most = given * kv.page_size if self.traits.longest_in_pages else given
        fits = longest <= most
        return GateArray(
            "within_capture",
            fits,
            lambda n: f"the launch was captured for {most} keys, and the longest request has {at(longest, n)}"
            + ("" if at(fits, n) else ": the replay keeps the splits of the capture, which are too few or too long"),
        )

    def combinations(self, options: Any, version: PolicyVersion) -> tuple[Takes, ...]:
        """What the version takes under these options; a policy that does not say so takes everything."""
        return (Takes(sparse=self.traits.sparse, bf16_anywhere=True),)

    def takes(
        self, version: str | None = None, options: Mapping[str, Any] | EngineOptions | None = None
    ) -> tuple[Takes, ...]:
        """The combinations of device, layer and cache that a version takes; the newest version when None.

        Lengths, batch sizes and query tokens have conditions of their own. UnknownNameError for a version or an option
        that does not exist.
        """
        found = self.combinations(self._options(options), self.version(version))
        vendors = tuple(vendor.lower() for vendor in self.traits.vendors)
        return tuple(replace(one, devices=vendors) if ANY_DEVICE in one.devices else one for one in found)

    def imposed_page(
        self,
        geo: Geometry,
        kv: KvCache,
        gpu: Gpu,
        options: Mapping[str, Any] | EngineOptions | None = None,
        version: str | None = None,
    ) -> int | None:
        """The keys of a page that the version needs for this layer where only the size of the cache's pages speaks
        against it; None where it takes the pages as they are, or where more speaks against it."""
        missed = [(one, one.against(geo, self.cache_of(kv), gpu)) for one in self.takes(version, options)]
        if not all(codes for _, codes in missed):
            return None
        pages = [one.page_sizes.near(kv.page_size) for one, codes in missed if codes == ["page_size"]]
        return min((page for page in pages if page is not None), default=None)

    def check_taken(self, geo: Geometry, kv: KvCache, gpu: Gpu, options: Any, version: PolicyVersion) -> None:
        """GateError where no combination takes the layer, for what `launches` has let through."""
        admit(self.name, version.name, self.combinations(options, version), geo, kv, gpu)

    def _options(self, given: Mapping[str, Any] | EngineOptions | None) -> EngineOptions:
        return given if isinstance(given, EngineOptions) else self.options_type.from_mapping(self.name, given or {})

    def version(self, name: str | None = None) -> PolicyVersion:
        """The version called `name`, or the one whose range covers it; the newest one when `name` is None.

        UnknownNameError names the nearest, for a release that no version was read from or that does not exist.
        """
        if name is None:
            return self.versions[0]
        for version in self.versions:
            if version.name == name:
                return version
        exists = _is_named(name, self.releases) if self.releases else not re.search(_PRE_RELEASE, name)
        for version in self.versions:
            if version.covers and (
                _is_named(name, version.covers)
                or (exists and version_key(version.covers[0]) <= version_key(name) <= version_key(version.covers[1]))
            ):
                return version
        names = [v.name for v in self.versions]
        raise UnknownNameError(f"version of {self.name}", name, names, nearest=_neighbours(name, self.versions))

    @classmethod
    def option_names(cls) -> tuple[str, ...]:
        """Names of the options that this engine has."""
        return tuple(f.name for f in fields(cls.options_type))

    def own_options(self, given: Mapping[str, Any], model_kv_heads: int | None = None) -> dict[str, Any]:
        """The given options that this engine has. Engines whose rule depends on it also get `model_kv_heads`, the
        model-wide KV-head count of the rank, unless an option of that name is given."""
        own = self.option_names()
        taken = {name: value for name, value in {**self.preset, **given}.items() if name in own}
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

        Raises GateError (`sparse_layer`) for a sparse layer where the engine reads whole sequences only.
        """
        self.check_device(gpu)
        self.check_layer(geo)
        chosen = self.version(version)
        self.check_ranks(geo, chosen)
        batch, kv = batch.seen_by(geo), self.cache_of(kv)
        opts = self._options(options)
        step = Batches.single(batch)
        found = self._launches(geo, step, kv, gpu, opts, chosen)
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
            scheduled_once=found.scheduled_once,
            pieces_in_turn=None if found.pieces_in_turn is None else found.pieces_in_turn(0),
            repeating_blocks=int(at(found.repeating_blocks, 0)),
            copies=int(at(found.copies, 0)),
            resident_blocks=int(at(found.resident_blocks, 0)),
            loads_value_apart=found.loads_value_apart,
            listed=bool(at(found.listed, 0)),
        )


def _detail_at(detail: Any, r: int) -> Any:
    """The engine's own quantities of step 0: [N] arrays become numbers, [N, R] arrays tuples."""
    if detail is None:
        return None
    values = {
        name: row(value, 0, r) if isinstance(value, np.ndarray) and value.ndim == 2 else at(value, 0)
        for name, value in parts_of(detail).items()
    }
    return type(detail)(**values)


def _kernel_at(kernel: KernelArray) -> KernelLaunch:
    return KernelLaunch(
        name=kernel.name,
        role=kernel.role,
        grid=tuple(int(at(extent, 0)) for extent in kernel.grid),
        threads=kernel.threads,
        live_blocks=int(at(kernel.live_blocks, 0)),
        tile_keys=None if kernel.tile_keys is None else int(at(kernel.tile_keys, 0)),
    )
