"""Server settings that a launch shows by itself, and settings that would explain a launch that differs.

The first are tried silently where the user said nothing about them (a graph replay was planned for a graph). The second
never make a launch agree: they say what must have been set for it to be right.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from decodecalc.batch import Batch
from decodecalc.trace.candidates import Candidate
from decodecalc.trace.infer import Inferred
from decodecalc.trace.kernel_names import function_name
from decodecalc.trace.pairing import LaunchGroup


@dataclass(frozen=True)
class Setting:
    """Options to plan with, on top of the user's, and what they mean. batch: instead of the candidate's."""

    options: Mapping[str, Any] = field(default_factory=dict)
    meaning: str = ""
    batch: Batch | None = None


def shown(engine: str, group: LaunchGroup, seen: Inferred, candidate: Candidate) -> Iterator[Setting]:
    """Settings to try in order: those that the launch shows, the likeliest first."""
    graph: dict[str, Any] = {}
    if group.graph and engine in ("flash-attention-3", "flashinfer"):
        graph = {"cuda_graph": True}
    if engine == "flashinfer":
        cores = "tensor_cores" if "Prefill" in function_name(group.stage1.name) else "cuda_cores"
        yield Setting(
            {"path": cores, **graph}, f"{cores.replace('_', ' ')} kernel" + (", planned for a graph" * bool(graph))
        )
        return
    padded = seen.batch if group.graph and seen.batch is not None and seen.batch > candidate.batch.size else None
    pad_name = {"vllm-triton": "padded_num_seqs", "sglang-triton": "padded_batch"}.get(engine)
    if padded is not None and pad_name is not None:
        yield Setting({pad_name: padded}, f"graph of {padded} requests replayed for {candidate.batch.size}")
    yield Setting(graph, "planned for a graph" if graph else "")
    if engine == "vllm-triton":
        yield Setting({"capture_sizes": None}, "no full CUDA graphs: the threshold is not snapped to a capture size")
    if graph:
        yield Setting({}, "planned without graph bounds")


def explanations(engine: str, group: LaunchGroup, seen: Inferred, candidate: Candidate) -> Iterator[Setting]:
    """Settings under which another launch than the default one is right."""
    splits = seen.splits_launched
    if engine == "vllm-triton":
        yield Setting({"batch_invariant": True}, "batch-invariant mode is on")
        yield Setting({"max_num_seqs": candidate.batch.size}, "max_num_seqs bounds the scratch at this batch")
    if engine == "sglang-triton" and splits is not None:
        yield Setting({"max_kv_splits_arg": splits}, f"--triton-attention-num-kv-splits {splits}")
        yield Setting({"deterministic": True}, "deterministic mode is on")
    if engine in ("flash-attention-2", "flash-attention-3"):
        yield Setting({"batch_invariant": True}, "num_splits is 1 (batch-invariant mode)")
    if engine == "flash-attention-3":
        yield Setting({"cuda_graph": True}, "num_splits is bounded for a CUDA graph")
    if engine == "flash-attention-2" and splits is not None:
        yield Setting({"num_splits_arg": splits}, f"num_splits is set to {splits}")
    if engine == "flashinfer":
        yield Setting({"disable_split_kv": True}, "splitting is disabled (batch-invariant mode)")
        yield Setting({"cuda_graph": True}, "the plan is made for a CUDA graph")
    if engine == "vllm-triton-mla":
        yield Setting({"batch_invariant": True}, "batch-invariant mode is on")
    if seen.batch is not None and seen.batch != candidate.batch.size:
        context, q_len = candidate.batch.max_seq_len, candidate.batch.max_q_len
        yield Setting({}, f"the batch is {seen.batch}", Batch.uniform(seen.batch, context, q_len))
