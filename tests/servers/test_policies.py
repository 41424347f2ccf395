"""Policies as servers run them, by the names that servers use."""

from __future__ import annotations

import pytest

import decodecalc as dc
from decodecalc.engines.registry import out_of_scope
from decodecalc.errors import GateError, InputError, UnknownNameError
from decodecalc.servers.policies import Place, answers, as_policy, marks, policies_named, served_policies


def place(model: str = "llama3.1-70b", gpu: str = "h100-sxm", tp: int = 8, **more) -> Place:
    """A rank of a model on a GPU."""
    groups = dc.load_model(model).shard(tp).layer_groups
    return Place(groups=groups, gpu=dc.load_gpu(gpu), kv=dc.KvCache(), tp=tp, **more)


def planned(spec: str, where: Place, batch: int = 1, context: int = 32768):
    """The plan behind a name."""
    ((policy, version),) = policies_named(spec, where)
    group = where.groups[0]
    return policy.plan(
        group.geometry, dc.Batch.uniform(batch, context), where.kv, where.gpu, policy.own_options({}), version
    )


def test_a_server_runs_the_graphs_cap_and_the_engine_alone_does_not():
    """FlashAttention 3 would take 86 splits on 32 k keys; vLLM's graph bounds it at 32."""
    where = place()
    assert planned("vllm", where).splits.live == (32,)
    assert planned("FLASH_ATTN", where).splits.live == (32,)
    assert planned("flash-attention-3", place(eager=False)).splits.live == (32,)
    assert planned("flash-attention-3", place(eager=True)).splits.live == (86,)
    assert planned("flash-attention-3", where).splits.live == (86,)
    assert planned("vllm", place(eager=True)).splits.live == (86,)


@pytest.mark.parametrize(
    ("spec", "gpu", "engine"),
    [
        ("FLASH_ATTN", "a100-sxm", "flash-attention-2"),
        ("TRITON_ATTN", "h100-sxm", "vllm-triton"),
        ("fa3", "h100-sxm", "flash-attention-3"),
        ("triton", "h100-sxm", "sglang-triton"),
        ("trtllm_mha", "b200-sxm", "trtllm-gen"),
        ("sglang@0.5.23", "a100-sxm", "flashinfer"),
        ("vllm@0.27.1", "h100-sxm", "flash-attention-3"),
        ("flashinfer", "h100-sxm", "flashinfer"),
        ("tensorrt-llm", "h100-sxm", "tensorrt-llm-xqa"),
    ],
)
def test_names_that_servers_use_are_engines(spec, gpu, engine):
    """A server's name, or its backend's, plans with the engine that it runs on that GPU."""
    assert planned(spec, place(gpu=gpu)).engine == engine


def test_a_server_imposes_its_page():
    """SGLang's trtllm_mha keeps pages of 64 keys whatever the cache's layout says."""
    assert planned("trtllm_mha", place(gpu="b200-sxm")).kv.page_size == 64
    assert planned("fa3", place()).kv.page_size == 1


def test_presets_give_way_to_what_a_caller_gives():
    """An option given by hand replaces a server's."""
    ((policy, _),) = policies_named("vllm", place())
    assert policy.own_options({})["cuda_graph"] is True
    assert policy.own_options({"cuda_graph": False})["cuda_graph"] is False


def test_what_cannot_be_planned_says_so():
    """A backend without a policy, one that refuses the layer and a name that nobody has are told apart."""
    with pytest.raises(InputError, match="no policy"):
        as_policy(answers("sglang", "0.5.23", place("deepseek-v3.2", "h200-sxm"))[0])
    with pytest.raises(GateError, match="does not start"):
        policies_named("TURBOQUANT", place())
    with pytest.raises(UnknownNameError, match="FLASH_ATTN"):
        policies_named("FLASH_ATTEN", place())


def test_marks_name_the_defaults():
    """On Hopper both servers take FlashAttention 3, each in a version of its own."""
    found = marks(place())
    assert [(m.server, m.version) for m in found["all", "flash-attention-3"]] == [
        ("vllm", "vllm-0.33"),
        ("sglang", "3.0.0"),
    ]
    assert {engine for _, engine in marks(place(gpu="a100-sxm"))} == {"flash-attention-2", "flashinfer"}


def test_the_longest_sequence_reaches_launches_that_follow_it():
    """A captured launch follows the longest length that the server allows, not the batch's."""
    where = place(gpu="b200-sxm")
    (answer,) = answers("vllm", None, where)
    short, long = (as_policy(answer, max_model_len=most)[0].preset["max_kv_len"] for most in (4096, 131072))
    assert (short, long) == (4096, 131072)
    assert "max_kv_len" not in as_policy(answer, max_model_len=4096, eager=True)[0].preset


def test_a_backend_in_capitals_is_the_servers_and_not_the_engine_of_that_name() -> None:
    """FLASHINFER decodes with XQA on a Hopper GPU; `flashinfer` is the engine itself."""
    rank = dc.load_model("llama3-8b").shard(1)
    place = Place(groups=rank.layer_groups, gpu=dc.load_gpu("h100-sxm"), kv=dc.KvCache())
    assert [policy.name for policy, _ in policies_named("FLASHINFER", place)] == ["flashinfer-xqa"]
    assert [policy.name for policy, _ in policies_named("flashinfer", place)] == ["flashinfer"]


@pytest.mark.parametrize("gpu", ["a100-sxm", "l40s", "h100-sxm", "b200-sxm", "rtx4090", "mi300x", "mi355x"])
@pytest.mark.parametrize("model", ["llama3.1-70b", "deepseek-v3", "gpt-oss-120b"])
def test_served_engines_begin_with_the_defaults_and_end_with_the_bundled_kernel(model: str, gpu: str) -> None:
    """Every engine that a server runs by itself is among them, each engine once, none that is written for another
    kind of layer or device."""
    where = place(model, gpu)
    names = [policy.name for policy, _ in served_policies(where)]
    own = {engine for _, engine in marks(where)}
    assert len(set(names)) == len(names)
    assert set(names[: len(own)]) == own
    assert names[-1] == "bundled"
    geometries = [group.geometry for group in where.groups]
    assert all(out_of_scope(name, geometries, where.gpu) is None for name in names)


def test_what_a_server_takes_when_told_to_is_served() -> None:
    """On Hopper vLLM takes FlashInfer, FlexAttention and its own kernel for grouped heads; no FlashMLA."""
    names = {policy.name for policy, _ in served_policies(place())}
    assert {"flash-attention-3", "vllm-triton", "sglang-triton", "flashinfer", "flex-decoding"} <= names
    assert not names & {"flashmla", "paged-attention-v1", "turbomind", "llama-cpp"}


def test_where_no_server_runs_nothing_is_served() -> None:
    """Neither vLLM's nor SGLang's kernels run on a Gaudi: `grid` then lists what is left of all engines."""
    assert served_policies(place(gpu="gaudi3")) == []
