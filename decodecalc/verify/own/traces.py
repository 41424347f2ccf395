"""The kernels of a checked step as a small profiler trace, beside what the step was."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from decodecalc.verify.own.trial import OwnTrial
    from decodecalc.verify.session.suites import Case


def trace_name(case_id: str) -> str:
    """A file name that says which case it is.

    >>> trace_name("llama3-8b/tp1/all/b1/c4096/bf16/p16/bundled@0.1.0")
    'bundled@0.1.0-llama3-8b-tp1-all-b1-c4096-bf16-p16'
    """
    scenario, _, engine = case_id.rpartition("/")
    return f"{engine}-{re.sub(r'[^A-Za-z0-9.=_]+', '-', scenario)}"


def inputs_of(case: Case, package: str) -> dict[str, Any]:
    """What the step was, in the form of the traces beside the tests."""
    geo, batch, plan = case.scenario.geometry, case.scenario.seen_batch, case.plan
    out: dict[str, Any] = {
        "h": geo.q_heads, "hk": geo.kv_heads, "head_dim": geo.head_dim, "lens": list(batch.seq_lens),
        "page": case.scenario.kv.page_size, "kv": str(case.scenario.kv.dtype), "engine": package,
        "policy": f"{case.policy.name}@{case.version}",
    }  # fmt: skip
    if geo.mla:
        out.update(head_dim_v=geo.v_dim, mla=True)
    if geo.window is not None:
        out["window"] = geo.window
    if batch.max_q_len > 1:
        out["q_len"] = batch.max_q_len
    chosen = {} if plan is None else plan.options.to_dict()
    plain = {} if plan is None else type(plan.options)().to_dict()
    changed = {name: value for name, value in chosen.items() if value != plain[name]}
    return {**out, "options": changed} if changed else out


def write_trace(folder: Path, case: Case, trial: OwnTrial) -> None:
    """NAME.json.gz and NAME.inputs.json; the same bytes for the same kernels."""
    folder.mkdir(parents=True, exist_ok=True)
    name = trace_name(case.id)
    text = json.dumps(trial.trace, separators=(",", ":"))
    (folder / f"{name}.json.gz").write_bytes(gzip.compress(text.encode(), mtime=0))
    package = f"{trial.runner.calls} of {trial.found.package} {trial.found.version}"
    (folder / f"{name}.inputs.json").write_text(json.dumps(inputs_of(case, package)) + "\n")
