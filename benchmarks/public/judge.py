"""How good the fits are: on rows held out, on GPUs left out, and between FP8 and 16-bit caches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from benchmarks.public.rows import Rows
from benchmarks.public.table_fit import TableFit
from decodecalc.cost.extrapolate import Scale
from decodecalc.cost.load import unlikeness
from decodecalc.gpus import Gpu, load_gpu

INTERVAL = 0.92
"""Share of the rows used to fit that the interval holds. Families and lengths that no fit saw err a little more, so
that it then holds about nine tenths of them."""
MATTERS = 0.05
"""FP8 and 16-bit times that differ by less than this share are a tie."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """One table and KV type: its rows, its fit and the fit's errors."""

    fit: TableFit
    rows: Rows
    error: Any
    """Logarithm of predicted over measured [n]; NaN where no kernel was fitted."""

    @classmethod
    def of(cls, found: TableFit, rows: Rows, gpu: Gpu) -> Judged:
        """The errors of a fit on its own GPU's rows."""
        return cls(fit=found, rows=rows, error=np.log(found.predict(rows, gpu) / rows.measured_s))

    @property
    def name(self) -> str:
        """Framework and kernel as the table calls it, and the policy."""
        return self.fit.table.name

    @property
    def residual(self) -> float:
        """Relative error that INTERVAL of the rows used to fit stayed within: the interval's half width."""
        used = self.error[~self.rows.held_out & np.isfinite(self.error)]
        return float(np.expm1(np.quantile(np.abs(used), INTERVAL)))

    def held_out(self) -> dict[str, Any]:
        """Numbers of the rows that were held out."""
        tested = self.rows.held_out & np.isfinite(self.error)
        return {
            "gpu": self.fit.gpu,
            "kernel": self.name,
            "dtype": self.fit.dtype,
            "rows": len(self.error),
            "not_fitted": int((~np.isfinite(self.error)).sum()),
            "operation_s": self.fit.shared["operation_s"],
            "residual_p90": self.residual,
            **summary(self.error[tested]),
            "inside": float((np.abs(self.error[tested]) <= np.log1p(self.residual)).mean()),
        }


def summary(error: Any) -> dict[str, Any]:
    """Rows, mean, median and 90th percentile of the absolute relative error, and its mean with its sign."""
    relative = np.expm1(error[np.isfinite(error)])
    size = np.abs(relative)
    return {
        "tested": len(relative),
        "mean": float(size.mean()),
        "median": float(np.median(size)),
        "p90": float(np.quantile(size, 0.9)),
        "bias": float(relative.mean()),
    }


def moved(found: TableFit, gpu: Gpu) -> TableFit:
    """The fit of one GPU's table taken to another GPU by the ratios that `extrapolate` uses, nothing of the other
    fitted."""
    base = load_gpu(found.gpu)
    scale = Scale(base, gpu)

    def scaled(values: Mapping[str, float]) -> dict[str, float]:
        return {name: value * _ratio(name, scale) for name, value in values.items()}

    return replace(
        found,
        gpu=gpu.name,
        shared=scaled(found.shared),
        kernels={key: replace(kernel, values=scaled(kernel.values)) for key, kernel in found.kernels.items()},
    )


def _ratio(name: str, scale: Scale) -> float:
    if name == "hbm_bytes_per_s" or name == "moved_bytes_per_s":
        return scale.bandwidth
    if name == "l2_bytes_per_s":
        return scale.l2_rate
    if name.endswith("_bytes_per_s"):
        return 1 / scale.latency
    return scale.latency if name.endswith("_s") else 1.0


def left_out(judged: Sequence[Judged]) -> Iterator[dict[str, Any]]:
    """Every table predicted from the nearest other GPU that has it."""
    for one in judged:
        gpu = load_gpu(one.fit.gpu)
        same = [other for other in judged if other.fit.gpu != gpu.name and _kernel(other.fit) == _kernel(one.fit)]
        if not same:
            continue
        base = min(same, key=lambda other: unlikeness(load_gpu(other.fit.gpu), gpu))
        error = np.log(moved(base.fit, gpu).predict(one.rows, gpu) / one.rows.measured_s)
        if not np.isfinite(error).any():
            continue
        architectures = [(load_gpu(name).architecture or "").split()[0] for name in (gpu.name, base.fit.gpu)]
        yield {
            "gpu": gpu.name,
            "kernel": one.name,
            "dtype": one.fit.dtype,
            "from": base.fit.gpu,
            "same_architecture": architectures[0] == architectures[1],
            **summary(error),
        }


def _kernel(found: TableFit) -> tuple[str, str, str, str]:
    return found.table.framework, found.table.kind, found.table.policy, found.dtype


def windowed(found: TableFit, rows: Rows, gpu: Gpu) -> dict[str, Any] | None:
    """Errors on the table's layers with a window, to which nothing was fitted; None where no kernel of theirs was."""
    error = np.log(found.predict(rows, gpu) / rows.measured_s)
    if not np.isfinite(error).any():
        return None
    return {"gpu": found.gpu, "kernel": found.table.name, "dtype": found.dtype, **summary(error)}


def left_out_width(rows: Sequence[Mapping[str, Any]], same: bool) -> float:
    """Half width of an interval that holds 90 % of the rows of GPUs left out, of tables weighted by their rows, whose
    stand-in has the same architecture or another one."""
    mine = sorted((row["p90"], row["tested"]) for row in rows if row["same_architecture"] == same)
    tested = np.array([n for _, n in mine], dtype=float)
    return float(np.average([p90 for p90, _ in mine], weights=tested)) if mine else float("nan")


def fp8_signs(judged: Sequence[Judged]) -> Iterator[dict[str, Any]]:
    """Rows that one framework on one GPU timed with both KV types: whether the faster one is predicted."""
    for gpu, framework in dict.fromkeys((j.fit.gpu, j.fit.table.framework) for j in judged):
        times: dict[str, dict[tuple[int, ...], tuple[float, float]]] = {"bf16": {}, "fp8": {}}
        for one in judged:
            if (one.fit.gpu, one.fit.table.framework) != (gpu, framework):
                continue
            c = one.rows.columns
            keys = np.stack([c[name] for name in ("q_heads", "kv_heads", "head_dim", "batch", "context")], axis=1)
            predicted = one.rows.measured_s * np.exp(one.error)
            for key, time, measured in zip(keys.tolist(), predicted.tolist(), one.rows.measured_s.tolist()):
                if time == time:
                    times[one.fit.dtype][tuple(key)] = (time, measured)
        both = sorted(times["bf16"].keys() & times["fp8"].keys())
        if not both:
            continue
        pairs = np.array([[*times["bf16"][key], *times["fp8"][key]] for key in both])
        predicted, measured = np.log(pairs[:, 2] / pairs[:, 0]), np.log(pairs[:, 3] / pairs[:, 1])
        right, matters = np.sign(predicted) == np.sign(measured), np.abs(measured) > MATTERS
        yield {
            "gpu": gpu,
            "framework": framework,
            "matched": len(both),
            "right": float(right.mean()),
            "matters": int(matters.sum()),
            "right_where_it_matters": float(right[matters].mean()),
        }
