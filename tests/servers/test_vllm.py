"""What vLLM chooses: hand cases, and laws of its selection."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

import decodecalc as dc
from decodecalc.errors import GateError, InputError, UnknownNameError
from decodecalc.gpus import Gpu
from decodecalc.servers import Layer, MlaDims, Question, SglangSettings, VllmSettings, resolve
from decodecalc.servers.question import FLASHINFER_STATES
from decodecalc.servers.vllm.rules import RELEASES, release_of

DEEPSEEK = MlaDims(kv_lora_rank=512, qk_rope_head_dim=64, qk_nope_head_dim=128, v_head_dim=128)
SM8X, SM90, SM100, SM12X, AMD = "rtx4090", "h100-sxm", "b200-sxm", "rtx5090", "mi300x"


def dense(gpu: str, head_dim: int = 128, kv: str = "auto", page: int | None = None, **settings) -> Question:
    """A layer of 32 query and 8 KV heads; `sinks` and `dtype` belong to the layer, the rest to the settings."""
    layer = Layer(
        q_heads=32,
        kv_heads=8,
        head_dim=head_dim,
        sinks=settings.pop("sinks", False),
        dtype=settings.pop("dtype", "bf16"),
        state_bytes=settings.pop("state_bytes", None),
    )
    backend = settings.pop("backend", None)
    return Question(
        layer=layer,
        gpu=dc.load_gpu(gpu),
        kv_cache_dtype=kv,
        page_size=page,
        backend=backend,
        settings=VllmSettings(**settings),
    )


def latent(gpu: str, kv: str = "auto", page: int | None = None, q_heads: int = 16, **settings) -> Question:
    """DeepSeek's latent; `topk` makes the layer sparse."""
    topk = settings.pop("topk", None)
    layer = Layer(q_heads=q_heads, kv_heads=1, head_dim=576, mla=DEEPSEEK, index_topk=topk, sparse=topk is not None)
    return Question(
        layer=layer, gpu=dc.load_gpu(gpu), kv_cache_dtype=kv, page_size=page, settings=VllmSettings(**settings)
    )


@pytest.mark.parametrize(
    ("question", "backend", "kernel"),
    [
        (dense(SM90), "FLASH_ATTN", "fa3"),
        (dense(SM100), "FLASHINFER", "trtllm-gen"),
        (dense(SM8X), "FLASH_ATTN", "fa2"),
        (dense(SM12X), "FLASH_ATTN", "fa2"),
        (dense(AMD), "ROCM_ATTN", "rocm-paged"),
        (dense(SM8X, kv="fp8"), "FLASHINFER", "native"),
        (dense(SM12X, kv="fp8"), "FLASHINFER", "xqa"),
        (dense(SM90, kv="fp8"), "FLASH_ATTN", "fa3"),
        (dense(SM90, kv="fp8_e5m2"), "FLASHINFER", "xqa"),
        (dense(SM100, 80), "FLASH_ATTN", "fa4"),
        (dense(SM100, 192), "FLASH_ATTN", "fa2"),
        (dense(SM8X, sinks=True), "TRITON_ATTN", "triton"),
        (dense(SM12X, sinks=True), "FLASHINFER", "xqa"),
        (dense(SM12X, sinks=True, flashinfer="no_cubins"), "TRITON_ATTN", "triton"),
        (dense(SM100, batch_invariant=True), "FLASH_ATTN", "fa2"),
        (dense(SM8X, kv="fp8", batch_invariant=True), "TRITON_ATTN", "triton"),
        (dense(AMD, batch_invariant=True), "TRITON_ATTN", "triton"),
        (dense(SM90, dtype="fp32"), "TRITON_ATTN", "triton"),
        (dense(SM90, 512), "FLASH_ATTN", "fa4"),
        (dense(SM100, flashinfer="no_cubins"), "FLASHINFER", "native"),
        (latent(SM90), "FLASH_ATTN_MLA", "fa3-mla"),
        (latent(SM90, kv="fp8"), "FLASHMLA", "flashmla-fp8"),
        (latent(SM8X), "TRITON_MLA", "triton-mla"),
        (latent(SM100, page=32), "FLASHINFER_MLA", "trtllm-gen-mla"),
        (latent(SM100, page=16), "TRITON_MLA", "triton-mla"),
        (latent(AMD, env={"VLLM_ROCM_USE_AITER": "1"}), "ROCM_AITER_MLA", "aiter-mla"),
        (latent(SM12X, topk=2048), "FLASHINFER_MLA_SPARSE_SM120", "flashinfer-sparse-mla-sm120"),
        (latent(SM100, topk=2048, q_heads=64), "FLASHMLA_SPARSE", "flashmla-sparse-prefill"),
        (latent(SM100, topk=2048, q_heads=16), "FLASH_ATTN_MLA_SPARSE_FA4", "fa4-sparse-mla"),
    ],
)  # fmt: skip
def test_the_backend_of_0_33(question, backend, kernel):
    """vLLM 0.33.0 runs this backend and this kernel of it."""
    answer = resolve("vllm", "0.33.0", question)
    assert (answer.backend, answer.kernel) == (backend, kernel)


@pytest.mark.parametrize(
    ("version", "gpu", "kernel"),
    [
        ("0.24.0", SM90, "native"), ("0.24.0", SM100, "trtllm-api"), ("0.24.0", SM12X, "native"),
        ("0.27.1", SM90, "xqa"), ("0.27.1", SM100, "trtllm-gen"), ("0.27.1", SM12X, "native"),
        ("0.30.0", SM90, "xqa"), ("0.30.0", SM12X, "xqa"), ("0.33.0", SM8X, "native"),
    ],
)  # fmt: skip
def test_flashinfers_decode_kernel_by_release(version, gpu, kernel):
    """FLASHINFER's decode kernel moved from native to XQA on Hopper, then on 12.x."""
    assert resolve("vllm", version, dense(gpu, backend="FLASHINFER")).kernel == kernel


@pytest.mark.parametrize(
    ("question", "pages"),
    [
        (dense(SM8X, kv="fp8", page=48), (48, 16)),
        (dense(SM8X, kv="fp8", page=128), (128, 64)),
        (latent(SM100, page=128), (128, 64)),
        (latent(SM100), (32, 32)),
        (latent(SM90, kv="fp8"), (64, 64)),
        (dense(SM100, 256, backend="FLASH_ATTN"), (128, 128)),
        (dense(SM90, 512, kv="fp8", backend="FLASH_ATTN"), (64, 64)),
        (dense(AMD, sinks=True), (64, 64)),
        (dense(SM90, state_bytes=270336), (80, 80)),
    ],
)
def test_pages_of_the_manager_and_of_the_kernel(question, pages):
    """The manager's page is the user's, 16, or the backend's own; the kernel sees it or its largest divisor."""
    answer = resolve("vllm", "0.33.0", question)
    assert (answer.page_size, answer.kernel_page_size) == pages


@pytest.mark.parametrize(
    ("question", "options"),
    [
        (dense(SM90), {"cuda_graph": True, "max_num_splits_for_cuda_graph": 32}),
        (dense(SM90, cudagraph_mode="PIECEWISE"), {}),
        (dense(SM90, batch_invariant=True), {"batch_invariant": True}),
        (dense(SM90, flash_attn_max_num_splits_for_cuda_graph=8), {
            "cuda_graph": True, "max_num_splits_for_cuda_graph": 8,
        }),
        (dense(SM8X), {}),
    ],
)  # fmt: skip
def test_the_split_cap_is_an_option_of_the_engine(question, options):
    """Full graphs bound FlashAttention 3's splits, batch-invariant mode makes it one, and 2 has no bound."""
    assert dict(resolve("vllm", "0.33.0", question).options) == options


def test_a_version_that_the_device_cannot_run_leaves_no_kernel():
    """FlashAttention 4 forced on Ada: the backend is still selected, without an engine to plan it."""
    answer = resolve("vllm", "0.33.0", dense(SM8X, flash_attn_version=4))
    assert (answer.backend, answer.kernel, answer.engine) == ("FLASH_ATTN", None, None)


def test_a_refusal_says_what_was_asked_and_what_is_taken():
    """FLASHMLA forced on pages of 16 is refused with both numbers, and raises with its code when it is needed."""
    question = replace(latent(SM90, page=16), backend="FLASHMLA")
    answer = resolve("vllm", "0.33.0", question)
    assert answer.backend is None
    assert answer.refused.reasons == ("block_size not supported",)
    assert any("needs blocks of 64; asked 16" in line for line in answer.chain())
    with pytest.raises(GateError) as error:
        answer.need_backend()
    assert error.value.code == "backend_not_valid"


def test_a_backend_for_one_kind_of_group_wins_over_the_global_one():
    """backend_per_kind is looked at first, and only for layers of its kind."""
    full = dense(SM90, backend="FLASH_ATTN", backend_per_kind={"full_attention": "TRITON_ATTN"})
    sliding = replace(full, layer=replace(full.layer, window=128))
    assert resolve("vllm", "0.33.0", full).backend == "TRITON_ATTN"
    assert resolve("vllm", "0.33.0", sliding).backend == "FLASH_ATTN"


def test_what_cannot_be_asked():
    """Unknown releases, another server's settings and a GPU without capability have their own errors."""
    with pytest.raises(UnknownNameError, match=r"0\.1"):
        resolve("vllm", "0.1", dense(SM90))
    with pytest.raises(InputError, match="VllmSettings"):
        resolve("vllm", None, replace(dense(SM90), settings=SglangSettings()))
    with pytest.raises(InputError, match="compute capability"):
        resolve("vllm", None, replace(dense(SM90), gpu=Gpu("mystery", 10)))


def test_every_release_from_0_20_on_has_rules():
    """Minor releases without an entry of their own fall to the one that covers them; a short name does too."""
    assert {release_of(f"0.{minor}.0").name for minor in range(20, 34)} == {release.name for release in RELEASES}
    assert release_of("0.33").name == "0.33.0"
    assert release_of("0.27").name == "0.27.1"


questions = st.builds(
    lambda gpu, mla, head_dim, kv, page, sinks, window, dtype, batch_invariant, flashinfer, topk: Question(
        layer=Layer(
            q_heads=16,
            kv_heads=1 if mla else 4,
            head_dim=576 if mla else head_dim,
            mla=DEEPSEEK if mla else None,
            index_topk=topk if mla else None,
            sparse=mla and topk is not None,
            sinks=sinks,
            window=window,
            dtype=dtype,
        ),
        gpu=dc.load_gpu(gpu),
        kv_cache_dtype=kv,
        page_size=page,
        settings=VllmSettings(batch_invariant=batch_invariant, flashinfer=flashinfer),
    ),
    gpu=st.sampled_from(["a100-sxm", SM8X, SM90, SM100, "b300-sxm", SM12X, AMD, "mi355x"]),
    mla=st.booleans(),
    head_dim=st.sampled_from([40, 64, 80, 128, 192, 256, 512]),
    kv=st.sampled_from(["auto", "bfloat16", "fp8", "fp8_e5m2", "nvfp4", "turboquant_k8v4"]),
    page=st.sampled_from([None, 8, 16, 32, 64, 128]),
    sinks=st.booleans(),
    window=st.sampled_from([None, 1024]),
    dtype=st.sampled_from(["bf16", "fp16", "fp32"]),
    batch_invariant=st.booleans(),
    flashinfer=st.sampled_from(FLASHINFER_STATES),
    topk=st.sampled_from([None, 512, 2048]),
)
versions = st.sampled_from([release.name for release in RELEASES])


@given(questions, versions)
def test_the_first_candidate_without_a_reason_is_chosen(question, version):
    """Nothing speaks against the chosen backend, something against every candidate before it; none: a refusal."""
    answer = resolve("vllm", version, question)
    if answer.backend is None:
        assert not answer.valid
        assert answer.refused.code == "no_valid_backend"
        return
    names = [candidate.name for candidate in answer.candidates]
    before = answer.candidates[: names.index(answer.backend)]
    assert all(not candidate.valid for candidate in before)
    assert answer.valid[0] == answer.backend


@given(questions, versions, st.sampled_from(sorted(RELEASES[0].backends)))
def test_a_forced_backend_stands_or_falls_alone(question, version, name):
    """A forced backend is the answer or is refused: no other backend ever takes its place."""
    answer = resolve("vllm", version, replace(question, backend=name))
    assert answer.forced
    assert answer.backend in (name, None)
    assert (answer.backend is None) == (answer.refused is not None and answer.refused.stage != "start")
    automatic = resolve("vllm", version, question)
    if name in automatic.valid:
        assert answer.backend == name


@given(questions, versions)
def test_the_kernels_page_divides_the_managers(question, version):
    """A kernel page is the manager's page or divides it, and the manager keeps what the user gave."""
    answer = resolve("vllm", version, question)
    if answer.backend is None:
        return
    assert answer.page_size % answer.kernel_page_size == 0
    if question.page_size is not None:
        assert answer.page_size == question.page_size
