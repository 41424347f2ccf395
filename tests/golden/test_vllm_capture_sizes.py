"""vLLM's CUDA-graph capture sizes against what its own configuration method made (recorded)."""

from __future__ import annotations

from decodecalc.engines.vllm.capture import capture_sizes, round_for_drafts

GOLDEN = "vllm_capture_sizes"


def test_capture_sizes_are_the_engines(case, check):
    """Every recorded list of capture sizes, before and after the V1 runner's rounding, is reproduced."""
    given = case["in"]
    drafts = given["num_speculative_tokens"]
    sizes = capture_sizes(
        max_num_seqs=given["max_num_seqs"],
        max_num_batched_tokens=given["max_num_batched_tokens"],
        num_speculative_tokens=drafts,
        is_data_center_blackwell=given["compute_capability"][0] == 10,
        performance_mode=given["performance_mode"],
        user_capture_sizes=given["user_capture_sizes"],
        user_max_capture_size=given["user_max_capture_size"],
    )
    ours = {
        "capture_sizes": list(sizes),
        "capture_sizes_after_v1_runner_spec_rounding": list(round_for_drafts(sizes, 1 + drafts)) if drafts else None,
    }
    check(case["out"], ours, left_out={})
