"""CUDA-graph capture sizes of vLLM: the token counts for which it records a graph, and to which it pads a decode step.

Read from vllm/config/vllm.py (`VllmConfig._set_cudagraph_sizes`) and vllm/config/compilation.py
(`CompilationConfig.adjust_cudagraph_sizes_for_spec_decode`) of the vLLM wheels 0.12.0 to 0.33.0.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from decodecalc.errors import GateError
from decodecalc.intmath import round_up

MODES = ("balanced", "interactivity", "throughput")
_FINE_GRAINED_TOKENS = 32  # interactivity mode captures every size up to here


class CaptureRules(NamedTuple):
    """What differs between vLLM versions.

    blackwell_ceiling: largest default size on compute capability 10.x. interactivity: the mode's own list exists.
    append_max_tokens: max_num_batched_tokens joins the list when it is under the ceiling. append_decode_sizes: whole
    decode batches of a speculative server join it; append_max_seqs: so does max_num_seqs without speculation.
    ceiling_counts_drafts: the ceiling is 2 * max_num_seqs * query tokens, not 2 * max_num_seqs.
    """

    blackwell_ceiling: int = 1024
    interactivity: bool = True
    append_max_tokens: bool = True
    append_decode_sizes: bool = True
    append_max_seqs: bool = True
    ceiling_counts_drafts: bool = True


NEWEST_CAPTURE_RULES = CaptureRules()
_CEILING = 512


def capture_sizes(
    max_num_seqs: int = 256,
    max_num_batched_tokens: int = 8192,
    num_speculative_tokens: int = 0,
    is_data_center_blackwell: bool = False,
    performance_mode: str = "balanced",
    user_capture_sizes: Sequence[int] | None = None,
    user_max_capture_size: int | None = None,
    rules: CaptureRules = NEWEST_CAPTURE_RULES,
) -> tuple[int, ...]:
    """The sizes (tokens, ascending) that a server with these settings captures.

    `is_data_center_blackwell` stands for compute capability 10.x. Raises GateError (code `capture_sizes`) where the
    server refuses to start: when no size is left, or when the largest entry of a list contradicts a maximum that is
    also given.

    >>> capture_sizes(max_num_seqs=12)
    (1, 2, 4, 8, 12, 16, 24)
    """
    default_ceiling = rules.blackwell_ceiling if is_data_center_blackwell else _CEILING
    query_len = 1 + num_speculative_tokens
    ceiling, whole_batches = user_max_capture_size, []
    if ceiling is None:
        per_request = query_len if rules.ceiling_counts_drafts else 1
        ceiling = min(max_num_seqs * per_request * 2, default_ceiling)
        whole_batches = _whole_batches(max_num_seqs, query_len, ceiling, default_ceiling, rules)
    ceiling = min(max_num_batched_tokens, ceiling)
    if ceiling < 1:
        raise GateError(f"vLLM needs a largest capture size of at least 1, not {ceiling}", "capture_sizes")

    if user_capture_sizes is not None:
        if not user_capture_sizes:
            raise GateError("vLLM refuses an empty list of capture sizes", "capture_sizes")
        sizes = sorted({size for size in user_capture_sizes if size <= max_num_batched_tokens})
        largest = sizes[-1] if sizes else 0
        if user_max_capture_size is not None and user_max_capture_size != largest:
            raise GateError(
                f"vLLM refuses to start: max_cudagraph_capture_size {user_max_capture_size} must equal the largest of "
                f"cudagraph_capture_sizes, {largest}",
                "capture_sizes",
            )
        return tuple(sizes)

    found = set(_grid(ceiling))
    if rules.interactivity and performance_mode == "interactivity":
        found.update(range(1, min(ceiling, _FINE_GRAINED_TOKENS) + 1))
    if rules.append_max_tokens and max_num_batched_tokens <= ceiling:
        found.add(max_num_batched_tokens)
    found.update(size for size in whole_batches if size <= max_num_batched_tokens)
    return tuple(sorted(found))


def round_for_drafts(sizes: Sequence[int], query_len: int) -> tuple[int, ...]:
    """`sizes` rounded as the V1 model runner does: to multiples of the tokens that a request has in a decode step.

    Raises GateError (code `capture_sizes`) where no multiple is left under the largest size.

    >>> round_for_drafts((1, 2, 4, 8, 16), 3)
    (3, 6, 9)
    """
    if not sizes or query_len <= 1:
        return tuple(sizes)
    largest = max(sizes)
    rounded = sorted({up for size in sizes if (up := round_up(size, query_len)) <= largest})
    if not rounded and query_len <= largest:
        rounded = [query_len]
    if not rounded:
        raise GateError(
            f"vLLM refuses to start: no capture size up to {largest} is a multiple of {query_len} "
            f"(num_speculative_tokens + 1)",
            "capture_sizes",
        )
    return tuple(rounded)


def _grid(ceiling: int) -> list[int]:
    """The sizes 1, 2, 4, every multiple of 8 below 256 and every multiple of 16 from there on, up to `ceiling`."""
    return [n for n in (1, 2, 4, *range(8, 256, 8), *range(256, ceiling + 1, 16)) if n <= ceiling]


def _whole_batches(
    max_num_seqs: int, query_len: int, ceiling: int, default_ceiling: int, rules: CaptureRules
) -> list[int]:
    """Token counts of decode batches that are not among the regular sizes."""
    if query_len > 1:
        if not rules.append_decode_sizes:
            return []
        most = min(max_num_seqs, default_ceiling)
        return [n * query_len for n in (*_grid(most), most) if n * query_len <= ceiling]
    return [max_num_seqs] if rules.append_max_seqs and max_num_seqs <= ceiling else []
