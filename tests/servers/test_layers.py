"""Questions from a model's layers: every engine that an answer names can plan the layer."""

from __future__ import annotations

import pytest

import decodecalc as dc
from decodecalc.errors import InputError, UnknownNameError
from decodecalc.servers import architecture_of, question_of, resolve_layers

GPUS = ("a100-sxm", "rtx4090", "h100-sxm", "b200-sxm", "rtx5090", "mi300x")
MODELS = ("llama3-8b", "gpt-oss-120b", "deepseek-v3", "gemma3-27b", "qwen3-next-80b")
SERVERS = (("vllm", "0.33.0"), ("vllm", "0.27.1"), ("vllm", "0.24.0"), ("sglang", "0.5.23"), ("sglang", "0.5.10.post1"))


@pytest.mark.parametrize("model_name", MODELS)
@pytest.mark.parametrize("gpu_name", GPUS)
@pytest.mark.parametrize(("server", "version"), SERVERS)
def test_the_named_engine_plans_the_layer(server, version, gpu_name, model_name):
    """An answer's engine, version and options plan one decode step of the layer on the page it imposes."""
    model, gpu = dc.load_model(model_name), dc.load_gpu(gpu_name)
    settings = {"architecture": architecture_of(model)} if server == "sglang" else {}
    for group, answer in resolve_layers(server, version, model.shard(4), gpu, **settings):
        answer.need_backend()
        if answer.engine is None:
            continue
        engine = answer.engine + (f"@{answer.engine_version}" if answer.engine_version else "")
        kv = dc.KvCache(dtype="bf16", page_size=answer.kernel_page_size)
        plan = dc.plan(engine, group.geometry, dc.Batch.uniform(4, 4096), kv=kv, gpu=gpu, **answer.options)
        assert plan.engine == answer.engine
        assert plan.kernels


def test_flashmla_is_planned_by_what_its_cache_holds():
    """FP8 rows go to the kernel of index lists, FP8 latents to the dense FP8 one, and bfloat16 rows to none."""
    gpu = dc.load_gpu("h100-sxm")
    fp8 = dc.KvCache(dtype="fp8")
    sparse, dense = dc.load_model("deepseek-v3.2").shard(4), dc.load_model("deepseek-v3").shard(4)
    ((_, rows),) = resolve_layers("vllm", "0.24.0", sparse, gpu, fp8)
    assert (rows.backend, rows.engine, dict(rows.options)) == ("FLASHMLA_SPARSE", "flashmla-sparse", {"topk": 2048})
    ((_, plain),) = resolve_layers("vllm", "0.24.0", sparse, gpu)
    assert (plain.backend, plain.engine) == ("FLASHMLA_SPARSE", None)
    for group, answer in resolve_layers("vllm", "0.33.0", dense, gpu, fp8, backend="FLASHMLA"):
        assert (answer.backend, answer.query_dtype) == ("FLASHMLA", "float8_e4m3fn")
        kv = dc.KvCache(dtype="fp8", query_dtype="fp8", page_size=answer.kernel_page_size)
        plan = dc.plan(answer.engine, group.geometry, dc.Batch.uniform(4, 4096), kv=kv, gpu=gpu, **answer.options)
        assert plan.engine == "flashmla-sparse"


def test_cache_types_are_given_in_the_servers_words():
    """A cache of the model's own type is `auto`; FP8 is `fp8` to vLLM and `fp8_e4m3` to SGLang."""
    group = dc.load_model("llama3-8b").shard(1).layer_groups[0]
    gpu = dc.load_gpu("h100-sxm")
    words = {
        (server, dtype): question_of(server, group, gpu, dc.KvCache(dtype=dtype)).kv_cache_dtype
        for server in ("vllm", "sglang")
        for dtype in ("bf16", "fp16", "fp8")
    }
    assert words == {
        ("vllm", "bf16"): "auto",
        ("vllm", "fp16"): "float16",
        ("vllm", "fp8"): "fp8",
        ("sglang", "bf16"): "auto",
        ("sglang", "fp16"): "fp16",
        ("sglang", "fp8"): "fp8_e4m3",
    }


def test_a_setting_that_the_server_has_not_is_refused_by_name():
    """A misspelt setting names the nearest one; a cache type without a word at the server says so."""
    group, gpu = dc.load_model("llama3-8b").shard(1).layer_groups[0], dc.load_gpu("h100-sxm")
    with pytest.raises(UnknownNameError, match="batch_invariant"):
        question_of("vllm", group, gpu, batch_invariance=True)
    with pytest.raises(InputError, match="mxfp4"):
        question_of("vllm", group, gpu, dc.KvCache(dtype="mxfp4"))
