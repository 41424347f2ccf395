"""Takes: which devices, layers and caches a version of an engine takes, beside what its own source refuses in words.

A policy lists its combinations (`Policy.takes`): a layer is planned where one of them admits it. Policies refuse most
of what they do not take themselves, as their engine does; what they let through and no combination admits is refused
here, so that no plan exists for a cache type or a kind of layer that the version does not serve. Lengths, batch sizes
and query tokens are not part of a combination: those conditions are the policies' own.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from decodecalc.errors import GateError, InputError
from decodecalc.geometry import Geometry
from decodecalc.kvcache import DTYPE_BYTES, KvCache
from decodecalc.units import in_number

if TYPE_CHECKING:
    from decodecalc.gpus import Gpu

# Words for devices beside compute capabilities (sm90: exactly that; sm10x: the family; sm80+: that and newer) and the
# beginnings of AMD's gfx names.
ANY_DEVICE, NVIDIA, AMD, UNKNOWN = "any", "nvidia", "amd", "unknown"
SIXTEEN_BITS = ("bf16", "fp16")
FLOATS = (*SIXTEEN_BITS, "fp32", "fp8")
SAME = ("same",)  # queries have the cache's element type


@dataclass(frozen=True, slots=True, kw_only=True)
class Numbers:
    """A set of positive whole numbers.

    >>> 48 in Numbers(step=16), 3 in Numbers(listed=(1, 2)), str(Numbers(step=16, high=256))
    (True, False, 'multiples of 16 up to 256')
    """

    listed: tuple[int, ...] = ()
    """The numbers, where they can be listed; the other fields then say nothing."""
    step: int = 1
    """They are multiples of this."""
    low: int = 1
    """The least of them."""
    high: int | None = None
    """The greatest of them; None for no bound."""
    powers_of_2: bool = False
    """Only powers of two are among them."""
    without: tuple[int, int] | None = None
    """The first and the last of a range of numbers that are not among them."""

    def __contains__(self, number: int) -> bool:
        if self.listed:
            return number in self.listed
        within = self.low <= number and (self.high is None or number <= self.high)
        if self.without is not None and self.without[0] <= number <= self.without[1]:
            return False
        return within and number % self.step == 0 and not (self.powers_of_2 and number & (number - 1))

    def near(self, number: int) -> int | None:
        """The least of them that `number` becomes when it is doubled, else the greatest listed one; None for none.

        >>> only(64).near(16), Numbers(step=32).near(16), only(8).near(16)
        (64, 32, 8)
        """
        doubled = (number << k for k in range(16))
        return next((n for n in doubled if n in self), max(self.listed, default=None))

    def __str__(self) -> str:
        if self.listed:
            return ", ".join(map(str, self.listed))
        what = "powers of two" if self.powers_of_2 else f"multiples of {self.step}" if self.step > 1 else "any number"
        low = f" from {self.low}" if self.low > self.step else ""
        high = "" if self.high is None else f" up to {self.high}"
        return what + low + high + ("" if self.without is None else f", but not {self.without[0]} to {self.without[1]}")


def only(*numbers: int) -> Numbers:
    """Just these numbers."""
    return Numbers(listed=numbers)


ANY_NUMBER = Numbers()


def runs_on(device: str, gpu: Gpu) -> bool:
    """Whether a GPU is what the word for devices means."""
    if device == ANY_DEVICE:
        return True
    if device == AMD:
        return gpu.is_hip
    if device.startswith("gfx"):
        return (gpu.gfx or "").startswith(device)
    if gpu.is_hip or gpu.vendor not in (None, "NVIDIA"):
        return device == (gpu.vendor or "").lower()
    if device == NVIDIA or gpu.sm is None:
        return device in (NVIDIA, UNKNOWN)
    if device == UNKNOWN:
        return False
    digits = device.removeprefix("sm")
    if digits.endswith("x"):
        return gpu.sm // 10 == int(digits[:-1])
    return gpu.sm >= int(digits[:-1]) if digits.endswith("+") else gpu.sm == int(digits)


@dataclass(frozen=True, slots=True, kw_only=True)
class Takes:
    """One combination that a version takes. A field that is left out does not restrict anything."""

    devices: tuple[str, ...] = (ANY_DEVICE,)
    """Devices: `any` (of the vendors that the engine runs on), `nvidia`, `amd` or another vendor's name, `unknown` (no
    vendor and no compute capability is known), `sm90` (exactly this compute capability), `sm10x` (the family), `sm80+`
    (this and newer), or the beginning of a gfx name."""
    mla: bool | None = None
    """MLA layers only (True), other layers only (False), or both (None)."""
    sparse: bool = False
    """Layers that gather their keys by a list are among them."""
    dense: bool = True
    """Layers that read whole sequences are among them."""
    windows: bool = True
    """Layers with a sliding window are among them."""
    sinks: bool = True
    """Layers with attention sinks are among them."""
    softcaps: bool = True
    """Layers with a logit soft cap are among them."""
    cache_dtypes: tuple[str, ...] = tuple(DTYPE_BYTES)
    """Element types of the cache."""
    query_dtypes: tuple[str, ...] = FLOATS
    """Element types of queries; `same` stands for the cache's."""
    head_dims: Numbers = ANY_NUMBER
    """Widths of a key (of MLA: of the latent with its rotary part)."""
    value_dims: Numbers | None = ANY_NUMBER
    """Widths of a value; None: as wide as the key."""
    rotary_dims: Numbers | None = None
    """Key width minus value width, where that is what the kernels depend on."""
    q_heads: Numbers = ANY_NUMBER
    """Query heads of a rank."""
    kv_heads: Numbers = ANY_NUMBER
    """KV heads of a rank."""
    groups: Numbers = ANY_NUMBER
    """Query heads that share a KV head."""
    page_sizes: Numbers = ANY_NUMBER
    """Keys of a page."""
    bf16_anywhere: bool = False
    """BF16 also on devices without BF16 arithmetic."""
    note: str = ""
    """What is worth knowing beside."""

    def against(self, geo: Geometry, kv: KvCache, gpu: Gpu) -> list[str]:
        """Codes of what this combination does not admit, the weightiest first; empty where it takes the layer."""
        widths = geo.v_dim == geo.head_dim if self.value_dims is None else geo.v_dim in self.value_dims
        rotary = self.rotary_dims is None or geo.head_dim - geo.v_dim in self.rotary_dims
        query = kv.dtype if self.query_dtypes == SAME else None
        checks = (
            ("arch", any(runs_on(device, gpu) for device in self.devices)),
            ("not_mla", geo.mla or self.mla is not True),
            ("mla", not geo.mla or self.mla is not False),
            ("sparse_layer", geo.gather is None or self.sparse),
            ("dense_layer", geo.gather is not None or self.dense),
            ("bf16", self.bf16_anywhere or gpu.half_type == "bf16" or not _runs_in_bf16(kv)),
            ("kv_dtype", kv.dtype in self.cache_dtypes),
            ("query_dtype", kv.query_dtype == query if query else kv.query_dtype in self.query_dtypes),
            ("head_dim", geo.head_dim in self.head_dims and rotary),
            ("head_dim_v", widths),
            ("heads", geo.q_heads in self.q_heads),
            ("kv_heads", geo.kv_heads in self.kv_heads),
            ("group", geo.group in self.groups),
            ("page_size", kv.page_size in self.page_sizes),
            ("window", geo.window is None or self.windows),
            ("sinks", not geo.sinks or self.sinks),
            ("softcap", geo.softcap is None or self.softcaps),
        )
        return [code for code, holds in checks if not holds]

    def to_dict(self) -> dict[str, Any]:
        """Plain values; sets of numbers as text."""
        plain = {f.name: getattr(self, f.name) for f in fields(self)}
        return {
            name: list(value) if isinstance(value, tuple) else str(value) if isinstance(value, Numbers) else value
            for name, value in plain.items()
        }

    def __str__(self) -> str:
        """One line for people, of what is restricted."""
        kinds = {True: "MLA layers", False: "layers other than MLA", None: "all layers"}[self.mla]
        if self.sparse:
            kinds = f"{kinds}, sparse ones too," if self.dense else f"sparse {kinds}"
        lacks = [
            word
            for word, has in (("windows", self.windows), ("sinks", self.sinks), ("soft caps", self.softcaps))
            if not has
        ]
        kinds += f" without {' and '.join(lacks)}" if lacks else ""
        parts = [", ".join(self.devices), kinds.rstrip(","), f"cache {', '.join(self.cache_dtypes)}"]
        if self.query_dtypes == SAME:
            parts.append("queries of the cache's type")
        elif self.query_dtypes != FLOATS:
            parts.append(f"queries {', '.join(self.query_dtypes)}")
        named = (
            ("head size", self.head_dims), ("values", self.value_dims), ("rotary part", self.rotary_dims),
            ("query heads", self.q_heads), ("KV heads", self.kv_heads), ("group", self.groups),
            ("pages", self.page_sizes),
        )  # fmt: skip
        parts += [f"{name} {numbers}" for name, numbers in named if numbers not in (None, ANY_NUMBER)]
        return "; ".join(parts) + (f" ({self.note})" if self.note else "")


def _runs_in_bf16(kv: KvCache) -> bool:
    """Whether a model over this cache computes in BF16: a cache of another float says that it does not."""
    return kv.dtype == "bf16" or (kv.query_dtype == "bf16" and kv.dtype not in ("fp16", "fp32"))


def admit(engine: str, version: str, taken: tuple[Takes, ...], geo: Geometry, kv: KvCache, gpu: Gpu) -> None:
    """GateError where no combination takes the layer, with what the nearest combinations have instead."""
    missed = [(one.against(geo, kv, gpu), one) for one in taken]
    if any(not codes for codes, _ in missed):
        return
    if not missed:
        raise InputError(f"{engine} {version} lists no combination that it takes")
    fewest = min(len(codes) for codes, _ in missed)
    code = min((codes[0] for codes, _ in missed if len(codes) == fewest), key=list(_VALID).index)
    near = [one for codes, one in missed if len(codes) == fewest and codes[0] == code]
    what, valid = _VALID[code]
    told = "; ".join(dict.fromkeys(valid(one) for one in near))
    raise GateError(f"{engine} {version} does not take {in_number(what(geo, kv, gpu))}; valid: {told}", code)


def _text(values: Iterable[Any]) -> str:
    return ", ".join(map(str, values))


# Code -> (what is refused, what a combination has instead).
_VALID: dict[str, tuple[Any, Any]] = {
    "arch": (lambda geo, kv, gpu: gpu.label, lambda one: _text(one.devices)),
    "not_mla": (lambda geo, kv, gpu: f"{geo.kind} layers", lambda one: "MLA layers"),
    "mla": (lambda geo, kv, gpu: "MLA layers", lambda one: "layers other than MLA"),
    "sparse_layer": (lambda geo, kv, gpu: "layers that gather their keys", lambda one: "layers that read every key"),
    "dense_layer": (lambda geo, kv, gpu: "layers that read every key", lambda one: "layers that gather their keys"),
    "bf16": (lambda geo, kv, gpu: f"bf16 on {gpu.label}", lambda one: "fp16 below compute capability 8.0"),
    "kv_dtype": (lambda geo, kv, gpu: f"{kv.dtype} caches", lambda one: _text(one.cache_dtypes)),
    "query_dtype": (
        lambda geo, kv, gpu: f"{kv.query_dtype} queries with a {kv.dtype} cache",
        lambda one: "queries of the cache's type" if one.query_dtypes == SAME else _text(one.query_dtypes),
    ),
    "head_dim": (
        lambda geo, kv, gpu: f"head size {geo.head_dim}",
        lambda one: f"{one.head_dims}" + (f" with a rotary part of {one.rotary_dims}" if one.rotary_dims else ""),
    ),
    "head_dim_v": (
        lambda geo, kv, gpu: f"values of {geo.v_dim} with keys of {geo.head_dim}",
        lambda one: "as wide as the key" if one.value_dims is None else str(one.value_dims),
    ),
    "heads": (lambda geo, kv, gpu: f"{geo.q_heads} query heads", lambda one: str(one.q_heads)),
    "kv_heads": (lambda geo, kv, gpu: f"{geo.kv_heads} KV heads", lambda one: str(one.kv_heads)),
    "group": (lambda geo, kv, gpu: f"{geo.group} query heads of a KV head", lambda one: str(one.groups)),
    "page_size": (lambda geo, kv, gpu: f"pages of {kv.page_size} keys", lambda one: str(one.page_sizes)),
    "window": (lambda geo, kv, gpu: "sliding windows", lambda one: "full attention"),
    "sinks": (lambda geo, kv, gpu: "attention sinks", lambda one: "a softmax without sinks"),
    "softcap": (lambda geo, kv, gpu: "logit soft caps", lambda one: "logits without a cap"),
}
