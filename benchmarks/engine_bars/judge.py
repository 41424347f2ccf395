"""Every bar beside its number."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from benchmarks.engine_bars.cells import ADVISED

INSIDE = (0.85, 0.95)
GOOD, SLOWER = 1.05, 1.02  # "within 5 % of the best", "slower than the default by more than 2 %"


@dataclass(frozen=True, slots=True, kw_only=True)
class Timed:
    """One launch with what was predicted and measured, in microseconds."""

    cell: int
    ragged: bool
    kind: str
    engine: str
    mode: str
    default: bool
    option: Any
    us: float
    predicted: float
    low: float
    high: float

    @property
    def error(self) -> float:
        """How far off, as a share of the measured time."""
        return abs(self.predicted / self.us - 1)

    @property
    def inside(self) -> bool:
        """Whether the interval holds the measured time."""
        return self.low <= self.us <= self.high


def timed(cells: Sequence[Mapping[str, Any]]) -> list[Timed]:
    """Every launch that was predicted and measured."""
    out = []
    for number, cell in enumerate(cells):
        for launch in cell["launches"]:
            if "us" in launch and "predicted" in launch:
                said, options = launch["predicted"], launch["options"]
                option = next((v for k, v in options.items() if k in ADVISED.values()), None)
                out.append(
                    Timed(
                        cell=number, ragged=len(set(cell["seq_lens"])) > 1, kind=cell["kind"],
                        engine=launch["engine"], mode=launch.get("mode", ""), default=launch.get("default", False),
                        option=option, us=launch["us"], predicted=said["us"], low=said["low"], high=said["high"],
                    )
                )  # fmt: skip
    return out


Chosen = Callable[[Timed], bool]


def _of(kind: str, engine: str, mode: str = "", only_default: bool = False) -> Chosen:
    return lambda t: t.kind == kind and t.engine == engine and t.mode == mode and (t.default or not only_default)


# (what, which launches, bar of the mean error over all steps).
KERNELS: tuple[tuple[str, Chosen, float], ...] = (
    ("vLLM Triton", _of("gqa", "vllm-triton"), 0.08),
    ("SGLang Triton, caps 8 to 128", _of("gqa", "sglang-triton"), 0.08),
    ("FlashAttention-3, its rule and num_splits 1 to 128", _of("gqa", "flash-attention-3"), 0.08),
    ("FlashAttention-3 as under vLLM's CUDA graphs", _of("gqa", "flash-attention-3", "graph"), 0.08),
    ("FlashAttention-3, FP8", _of("fp8", "flash-attention-3"), 0.10),
    ("vLLM Triton, FP8", _of("fp8", "vllm-triton"), 0.10),
    ("FlashMLA", _of("mla", "flashmla"), 0.10),
    ("vLLM Triton MLA", _of("mla", "vllm-triton-mla"), 0.10),
    ("SGLang Triton MLA", _of("mla", "sglang-triton"), 0.10),
    ("FlashInfer MLA", _of("mla", "flashinfer-mla"), 0.10),
    ("FlashInfer, tensor cores", _of("gqa", "flashinfer", "tensor cores"), 0.10),
    ("FlashInfer, CUDA cores", _of("gqa", "flashinfer", "CUDA cores"), 0.10),
    ("XQA of FlashInfer", _of("gqa", "flashinfer-xqa"), 0.10),
    ("FlashAttention-2", _of("gqa", "flash-attention-2"), 0.10),
)  # fmt: skip
RAGGED_BAR = 0.12


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """One bar."""

    what: str
    number: str
    bar: str
    holds: bool


def judge(cells: Sequence[Mapping[str, Any]]) -> list[Judged]:
    """All bars, in order."""
    rows = timed(cells)
    out: list[Judged] = []
    for what, chosen, bar in KERNELS:
        mine = [t for t in rows if chosen(t)]
        out += _error(f"{what}: mean error", mine, bar)
        out += _error(f"{what}: mean error, ragged steps", [t for t in mine if t.ragged], RAGGED_BAR)
    for what, chosen, _ in KERNELS:
        mine = [t for t in rows if chosen(t)]
        out += _inside(f"{what}: inside the interval, equal requests", [t for t in mine if not t.ragged])
        out += _inside(f"{what}: inside the interval, ragged steps", [t for t in mine if t.ragged])
    several = [t for t in rows if t.kind != "example"]
    out += _inside("all kernels: inside the interval, equal requests", [t for t in several if not t.ragged])
    out += _inside("all kernels: inside the interval, ragged steps", [t for t in several if t.ragged])
    for engine in ADVISED:
        out += _advice(engine, cells)
    for engine in ("flash-attention-3", "vllm-triton"):
        out += _sign(engine, cells)
    return out


def _error(what: str, rows: Sequence[Timed], bar: float) -> Iterator[Judged]:
    if not rows:
        return
    errors = sorted(t.error for t in rows)
    mean, p90 = fmean(errors), errors[math.ceil(0.9 * len(errors)) - 1]
    number = f"{mean:.1%} (90th percentile {p90:.0%}, worst {errors[-1]:.0%}, {_counted(rows)})"
    yield Judged(what=what, number=number, bar=f"at most {bar:.0%}", holds=mean <= bar)


def _inside(what: str, rows: Sequence[Timed]) -> Iterator[Judged]:
    if not rows:
        return
    share = fmean(t.inside for t in rows)
    yield Judged(
        what=what, number=f"{share:.0%} of {_counted(rows)}", bar="85 to 95 %",
        holds=INSIDE[0] <= round(share, 2) <= INSIDE[1],
    )  # fmt: skip


def _counted(rows: Sequence[Timed]) -> str:
    steps = len({t.cell for t in rows})
    return f"{len(rows)} times" if steps == len(rows) else f"{len(rows)} times of {steps} steps"


def outcomes(
    engine: str, cells: Sequence[Mapping[str, Any]]
) -> Iterator[tuple[Mapping[str, Any], float, float, float]]:
    """(cell, time with the advice, time by default, least time of all settings) of every step of the engine."""
    option = ADVISED[engine]
    for cell in cells:
        times = {
            launch["options"].get(option): launch["us"]
            for launch in cell["launches"]
            if launch["engine"] == engine and "us" in launch and not launch.get("mode")
        }
        advised = cell.get("advice", {}).get(engine, {}).get("value")
        if None in times and len(times) > 1 and (advised is None or advised in times):
            yield cell, times[advised], times[None], min(times.values())


def _advice(engine: str, cells: Sequence[Mapping[str, Any]]) -> Iterator[Judged]:
    found = list(outcomes(engine, [c for c in cells if c["kind"] == "gqa"]))
    if not found:
        return
    regrets = [then / best for _, then, _, best in found]
    gains = [now / then for _, then, now, _ in found]
    good = fmean(r <= GOOD for r in regrets)
    slower = sum(g < 1 / SLOWER for g in gains)
    changed = sum(c["advice"][engine]["value"] is not None for c, *_ in found)
    geometric = math.exp(fmean(map(math.log, gains)))
    yield Judged(
        what=f"{engine}: what the advice comes to, within 5 % of the best tried setting",
        number=f"{good:.0%} of {len(found)} steps (worst {max(regrets) - 1:.0%} slower; a setting advised in {changed} "
        f"of them; {geometric:.3f} times as fast as by default in the geometric mean)",
        bar="at least 95 %", holds=good >= 0.95,
    )  # fmt: skip
    yield Judged(
        what=f"{engine}: slower than the default by more than 2 % with the advice",
        number=f"{slower} of {len(found)} steps (worst {1 / min(gains) - 1:.1%})", bar="none", holds=slower == 0,
    )  # fmt: skip


def _sign(engine: str, cells: Sequence[Mapping[str, Any]]) -> Iterator[Judged]:
    """Steps that ran with a 16-bit and an FP8 cache: whether the faster one was predicted to be it."""
    plain: dict[tuple[Any, ...], Timed] = {}
    right, clear = [], []
    for t in timed(cells):
        if t.engine != engine or t.mode or not t.default or t.kind not in ("gqa", "fp8"):
            continue
        cell = cells[t.cell]
        key = (cell["q_heads"], cell["kv_heads"], cell["head_dim"], tuple(cell["seq_lens"]))
        if t.kind == "gqa":
            plain[key] = t
        elif key in plain:
            other = plain[key]
            ok = (t.us < other.us) == (t.predicted < other.predicted)
            right.append(ok)
            clear += [ok] if abs(math.log(t.us / other.us)) > math.log(GOOD) else []
    if right:
        share = fmean(right)
        more = f"; {fmean(clear):.0%} of the {len(clear)} that differ by more than 5 %" if clear else ""
        yield Judged(
            what=f"{engine}: FP8 or bf16, the faster one was predicted to be it",
            number=f"{share:.0%} of {len(right)} matched steps{more}", bar="at least 90 %", holds=share >= 0.9,
        )  # fmt: skip
