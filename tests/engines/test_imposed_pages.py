"""Pages that an engine needs stand in where the user names none: a layer is not refused for a default of ours."""

from __future__ import annotations

import csv
import io
from typing import Any

import pytest

import decodecalc as dc
from decodecalc.engines import engine_names, load_policy
from decodecalc.errors import GateError
from decodecalc.launch.policy import Policy
from decodecalc.launch.takes import Numbers, only

LAYERS = {
    "llama3-8b": dc.Geometry(32, 8, 128),
    "deepseek-v3": dc.Geometry(16, 1, 576, 512, mla=True),
    "gemma3-27b": dc.Geometry(32, 16, 128, window=1024),
}
GPUS = ("h100-sxm", "b200-sxm", "mi300x", "a100-sxm")


def _refusal(policy: Policy, geo: dc.Geometry, kv: dc.KvCache, gpu: dc.Gpu) -> str | None:
    """The code with which the policy refuses the layer; None where it plans it."""
    try:
        policy.plan(geo, dc.Batch.uniform(1, 2560), kv, gpu)
    except GateError as refused:
        return refused.code
    return None


@pytest.mark.parametrize("name", engine_names())
def test_a_page_that_is_imposed_is_taken_and_only_where_ours_is_not(name: str) -> None:
    """With the page, nothing speaks against the layer's pages any more; where 16 keys are fine none is imposed."""
    policy = load_policy(name)
    for geo in LAYERS.values():
        for gpu in map(dc.load_gpu, GPUS):
            for dtype in ("bf16", "fp8"):
                kv = dc.KvCache(dtype)
                page = policy.imposed_page(geo, kv, gpu)
                taken = [not one.against(geo, kv, gpu) for one in policy.takes()]
                if page is None:
                    continue
                assert not any(taken)
                assert _refusal(policy, geo, dc.KvCache(dtype, page), gpu) != "page_size"


def test_flashmla_serves_deepseek_without_a_flag(call: Any) -> None:
    """64 keys, as the kernel needs; the heading says so, and a page that the user names is not changed."""
    argv = ("grid", "--model", "deepseek-v3", "--tp", "8", "--engine", "flashmla")
    assert load_policy("flashmla").imposed_page(LAYERS["deepseek-v3"], dc.KvCache(), dc.load_gpu("h100-sxm")) == 64
    assert "page 16 (64 for flashmla)" in call(*argv).out
    assert "pages must hold 64 keys, not 16" in call(*argv, "--page-size", "16").err
    rows = csv.DictReader(
        io.StringIO(call("sweep", "--model", "deepseek-v3", "--engine", "flashmla", "--select", "engine,page_size").out)
    )
    assert [row["page_size"] for row in rows] == ["64"]


@pytest.mark.parametrize("command", ["grid", "choose", "predict", "explain", "segments", "merge", "roofline", "paging"])
@pytest.mark.parametrize("model", ["deepseek-v3", "kimi-k2", "deepseek-v3.2", "glm-5"])
def test_latent_models_work_in_every_command_by_themselves(call: Any, command: str, model: str) -> None:
    """No flag is needed, neither for an engine nor for its pages."""
    result = call(command, "--model", model, "--tp", "8")
    assert (result.code, result.err) == (0, "")


def test_the_nearest_number_of_a_set() -> None:
    """Doubling first, then what is listed; none where there is none."""
    assert Numbers(step=24).near(16) is None
    assert only(24, 40).near(16) == 40
