"""Which kernels are attention, whose, and in what role."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from decodecalc.trace.load import knowledge
from decodecalc.trace.recognise import OTHER, PREFILL


@pytest.mark.parametrize(
    ("name", "family", "role"),
    [
        ("kernel_unified_attention", "unified-attention", "stage1"),
        ("kernel_unified_attention_3d", "unified-attention", "stage1"),
        ("reduce_segments", "unified-attention", "merge"),
        ("_fwd_grouped_kernel_stage1", "triton-decode", "stage1"),
        ("_fwd_kernel_stage1_0d1d2d", "triton-decode", "stage1"),
        ("_fwd_kernel_stage2", "triton-decode", "merge"),
        ("get_num_kv_splits_triton", "triton-decode", "scheduler"),
        ("void flash::flash_fwd_splitkv_kernel<T>(P)", "flash-attention-2", "stage1"),
        ("void pytorch_flash::flash_fwd_kernel<T>(P)", "flash-attention-2", "prefill"),
        ("void flash::prepare_varlen_num_blocks_kernel<1, false>(int)", "flash-attention-3", "scheduler"),
        ("void flash::flash_fwd_splitkv_mla_kernel<T>(P)", "flashmla", "stage1"),
        ("void flash_fwd_mla_combine_kernel<float>(P)", "flashmla", "merge"),
        ("get_mla_metadata_kernel(P)", "flashmla", "scheduler"),
        ("void flashinfer::PersistentVariableLengthMergeStatesKernel<8u>(P)", "flashinfer", "merge"),
        ("void flashinfer::BatchPrefillWithRaggedKVCacheKernel<T>(P)", "flashinfer", "prefill"),
        ("void vllm::paged_attention_v1_kernel<float>(P)", "paged-attention", "stage1"),
        ("void vllm::paged_attention_v2_reduce_kernel<float>(P)", "paged-attention", "merge"),
        ("void paged_attention_ll4mi_QKV_mfma4_kernel<float>(P)", "rocm-paged", "stage1"),
        ("_ZN5flash24flash_fwd_splitkv_kernelI23Flash_fwd_kernel_traits", "flash-attention-2", "stage1"),
        ("fmhaSm100aKernel_QkvE4m3OBfloat16H64PagedKvCausalP16VarSeqQ128Kv128PersistentContext",
         "generated-fmha", "prefill"),
        ("fmhaSm100aKernel_QkvBfloat16OBfloat16H128PagedKvDenseP32MultiCtasKvVarSeqQ8Kv128StaticSwapsAbForGen",
         "generated-fmha", "stage1"),
        ("fmhaSm100fKernel_QkvE4m3OBfloat16HQk576HV512HVPerCta256PagedKvDenseP32VarSeqQ64Kv128Persistent2CtaKeepsAbForGen",
         "generated-fmha", "stage1"),
        ("void fmhaReductionKernel<64, 128, false, __nv_bfloat16, __half>(KernelParams)", "generated-fmha", "merge"),
        ("kernel_mha", "xqa", "stage1"),
        ("void tensorrt_llm::kernels::mmha::masked_multihead_attention_kernel<unsigned short>(P)",
         "masked-multi-head-attention", "stage1"),
        ("void flash_attn_ext_vec<128, 1, (ggml_type)1, (ggml_type)1, false>(char const*)",
         "ggml-flash-attention", "stage1"),
        ("void flash_attn_ext_f16<128, 128, 8, 8, false, false>(char const*)", "ggml-flash-attention", "stage1"),
        ("void flash_attn_tile<64, 64, 4, 8, false>(char const*)", "ggml-flash-attention", "stage1"),
        ("void flash_attn_combine_results<128>(float const*)", "ggml-flash-attention", "merge"),
        ("void flash_attn_stream_k_fixup_uniform<128, 8, 8>(float*)", "ggml-flash-attention", "merge"),
        ("void flash_attn_stream_k_fixup<128, 8, 8>(float*)", "ggml-flash-attention", "merge"),
        ("void flash_attn_mask_to_KV_max<8>(__half2 const*)", "ggml-flash-attention", "scheduler"),
        ("void turbomind::attention_kernel<turbomind::AttentionUniversal<X, turbomind::DecodingCtaMap> >(P)",
         "turbomind", "stage1"),
        ("void turbomind::attention_kernel<turbomind::AttentionUniversal<X, turbomind::AttentionCtaMap> >(P)",
         "turbomind", "prefill"),
        ("void turbomind::attention::reduce<32, 4, 8, 128, __half>(__half*)", "turbomind", "merge"),
        ("void cutlass::device_kernel<cutlass::fmha::kernel::Sm100FmhaMlaKernelTmaWarpspecialized<X> >(P)",
         "cutlass-mla", "stage1"),
        ("void cutlass::device_kernel<cutlass::fmha::kernel::Sm100FmhaMlaReductionKernel<X> >(P)",
         "cutlass-mla", "merge"),
        ("kernel_cutlass_kernel_flash_attncuteflash_fwd_sm100FlashAttentionForwardSm100_object_at__tensor000o111_0",
         "flash-attention-4", "stage1"),
        ("kernel_cutlass_kernel_flash_attncuteflash_fwd_combineFlashAttentionForwardCombine_object_at__tensor_0",
         "flash-attention-4", "merge"),
        ("void sm90::decode::sparse_fp8::flash_fwd_splitkv_mla_fp8_sparse_kernel<X>(P)", "flashmla", "stage1"),
        ("_ZN5sm1006decode6sparse6head6439flash_fwd_splitkv_mla_fp8_sparse_kernelINS2_14KernelTemplate",
         "flashmla", "stage1"),
        ("aiter::mla_a8w8_qh16_qseqlen1_gqaratio16_ps", "aiter-mla", "stage1"),
        ("_ZN5aiter41mla_dec_stage1_bf16_a16w16_subQ128_mqa128E", "aiter-mla", "stage1"),
        ("void kn_mla_reduce_v1_ps<MlaReduceKernelV1Traits<512, 128, 1>, float>(P)", "aiter-mla", "merge"),
        ("void kn_get_mla_metadata_v1_2<64, 16>(P)", "aiter-mla", "scheduler"),
        ("paged_attention_decode_v2_gluon_dot_kernel", "gluon-paged-decode", "stage1"),
        ("paged_attention_decode_sliding_window_head_1", "gluon-paged-decode", "stage1"),
        ("paged_attention_decode_ps_reduce_kernel", "gluon-paged-decode", "merge"),
        ("triton_tem_fused_flex_attention_2", "flex-decoding", "stage1"),
        ("triton_per_fused_flex_attention_zeros_3", "flex-decoding", "merge"),
        ("_lean_attention_decode_kernel", "triton-decode", "stage1"),
        ("kernel_paged_attention_2d", "rocm-paged", "stage1"),
        ("_ZN7ck_tile6kentryILi2ENS_38FmhaBatchPrefillWithPagedKVCacheKernelINS_40Block", "not modelled", "prefill"),
        ("some_new_paged_attention_decode", "not modelled", "other"),
    ],
)  # fmt: skip
def test_attention_kernels(name: str, family: str, role: str) -> None:
    """Every name of the map, in the spellings that profilers have."""
    found = knowledge().recognise(name)
    assert found is not None
    assert (found.family, found.role) == (family, role)


@pytest.mark.parametrize(
    "name",
    [
        "void vllm::reshape_and_cache_flash_kernel<__nv_bfloat16>(int)",
        "create_flashinfer_kv_indices_triton",
        "void at::native::elementwise_kernel<128, 4>()",
        "nvjet_tst_128x64_64x10_1x2_h_bz_TNT",
        "void flash::flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel<T>(P)",
        "concat_and_cache_mla_kernel",
        "Memcpy DtoD (Device -> Device)",
        "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float> >(P)",
        "triton_per_fused_add_mean_3",
        "",
    ],
)
def test_other_kernels(name: str) -> None:
    """Cache writers, index builders, GEMMs and backward passes are not attention."""
    assert knowledge().recognise(name) is None


@given(st.one_of(st.text(max_size=200), st.from_regex(r"(void )?[a-z_:]{0,20}<[<>, 0-9a-z(]{0,60}\(?", fullmatch=True)))
def test_any_name_gets_a_verdict(name: str) -> None:
    """No name, however broken, is an error."""
    book = knowledge().name_book()
    assert book.wanted(name) == (knowledge().recognise(name) is not None)


def test_company_is_noted() -> None:
    """Whose kernels run beside attention settles shared names."""
    book = knowledge().name_book()
    for name in ("void vllm::rms_norm_kernel<float>(int)", "void sgl_kernel::moe<1>(int)", "aiter::add"):
        book.wanted(name)
    assert set(book.company) == {"vllm", "sglang", "aiter"}


@pytest.mark.parametrize(
    ("name", "role"),
    [
        ("void ck_tile::kentry<1, ck_tile::FmhaFwdSplitKVKernel<ck_tile::Quant<1> > >(Args)", OTHER),
        ("ck_tile::kentry<256, 1, ck_tile::FmhaBatchPrefillWithPagedKVCacheKernel<NoQuant> >", PREFILL),
        ("_ZN5aiter22pa_bf16_pertokenFp8_gqaE", OTHER),
        ("aiter::pa_bf16_noquant_gqa16", OTHER),
        ("pa_decode_gluon", OTHER),
        ("cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7_64x128", OTHER),
        ("fused_recurrent_gated_delta_rule_fwd_kernel", OTHER),
        ("void at::native::elementwise_kernel<128, attention>(int)", None),
    ],
)  # fmt: skip
def test_an_attention_kernel_is_listed_even_where_it_is_not_modelled(name: str, role: str | None) -> None:
    """By the function's own name: neither a wrapper around it nor a word among its template arguments hides it."""
    found = knowledge().recognise(name)
    assert (found.role if found else None) == role
