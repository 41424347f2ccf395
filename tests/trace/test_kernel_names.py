"""Names taken apart: real demangled names give the tile, path and head dim that their templates fix."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from decodecalc.trace import kernel_names
from decodecalc.trace.kernel_names import NameFacts, function_name, template_arguments

# As the profilers of torch 2.x print them; shortened where `…` stood for types.
FA3 = (
    "void "
    "cutlass::device_kernel<flash::enable_sm90_or_later<flash::FlashAttnFwdSm90<flash::CollectiveMainloopFwdSm90<2, "
    "cute::tuple<cute::C<1>, cute::C<1>, cute::C<1> >, cute::tuple<cute::C<64>, cute::C<128>, cute::C<192> >, 128, "
    "cutlass::bfloat16_t, float, cutlass::arch::Sm90, true, {local}, false, true, true, false, false, false, true, "
    "true, true, true, false, cutlass::bfloat16_t, 1>, flash::CollectiveEpilogueFwd<cute::tuple<cute::C<64>, "
    "cute::C<128>, cute::C<128> >, cute::tuple<cute::C<1>, cute::C<1>, cute::C<1> >, cutlass::bfloat16_t, "
    "cutlass::arch::Sm90, 128, true, true, {split}, false, 1>, flash::VarlenDynamicPersistentTileScheduler<64, "
    "128, 128, 128, true, true, true, true, false, true> > > >(flash::FlashAttnFwdSm90<int>::Params)"
)
TRAITS = (
    "Flash_fwd_kernel_traits<128, 64, 128, 4, false, false, cutlass::bfloat16_t, Flash_kernel_traits<128, 64, 128, 4> >"
)


@pytest.mark.parametrize(
    ("name", "own"),
    [
        ("kernel_unified_attention_2d", "kernel_unified_attention_2d"),
        ("_fwd_grouped_kernel_stage1_0d1d2d3de4", "_fwd_grouped_kernel_stage1"),
        ("void flash::flash_fwd_splitkv_kernel<A<1>, true>(int)", "flash_fwd_splitkv_kernel"),
        ("void at::native::(anonymous namespace)::f<int>(int)", "f"),
        (FA3, "FlashAttnFwdSm90"),
        ("", ""),
        ("void cutlass::device_kernel<", ""),
    ],
)
def test_function_name(name: str, own: str) -> None:
    """Return type, namespaces, arguments, Triton's specialisation and CUTLASS wrappers go."""
    assert function_name(name) == own


@given(st.text(alphabet="ab_1:<>(), Zvoid", max_size=120))
def test_any_text_is_taken_apart_without_harm(name: str) -> None:
    """Unbalanced brackets and nonsense give some name and some arguments, never an error."""
    assert isinstance(function_name(name), str)
    assert isinstance(template_arguments(name, "a"), list)


def test_flash_attention_3() -> None:
    """The epilogue has the split flag; the mainloop tile, widths and the window flag."""
    found = kernel_names.flash_attention_3(FA3.format(split="true", local="false"))
    assert found == NameFacts(
        split=True, tile_rows=64, tile_keys=128, head_dim=192, head_dim_v=128, windowed=False,
    )  # fmt: skip
    found = kernel_names.flash_attention_3(FA3.format(split="false", local="true"))
    assert (found.split, found.windowed) == (False, True)


@pytest.mark.parametrize(("log", "served"), [(5, (2, 32)), (6, (33, 64)), (7, (65, 128)), (8, (129, 256))])
def test_flash_attention_3_combine_serves_a_range_of_splits(log: int, served: tuple[int, int]) -> None:
    """kLogMaxSplits bounds the split count from both sides; 5 is the smallest with tiles of 8 rows."""
    combine = f"flash::FlashAttnFwdCombine<cute::tuple<cute::C<8>, cute::C<128> >, {log}, 256>"
    name = f"void cutlass::device_kernel<{combine} >({combine}::Params)"
    assert kernel_names.flash_attention_3_combine(name).split_range == served


def test_flash_attention_2() -> None:
    """The traits have head dim and tile; the seventh flag is Split, and the combine's logarithm bounds the count."""
    flags = "true, false, false, false, true, false, {}, false"
    name = f"void flash::flash_fwd_splitkv_kernel<{TRAITS}, {flags.format('true')}>(Flash_fwd_params)"
    found = kernel_names.flash_attention_2(name)
    assert (found.split, found.head_dim, found.tile_rows, found.tile_keys) == (True, 128, 64, 128)
    assert kernel_names.flash_attention_2(name.replace(flags.format("true"), flags.format("false"))).split is False
    combine = f"void flash::flash_fwd_splitkv_combine_kernel<{TRAITS}, 4, 5, true>(Flash_fwd_params)"
    assert kernel_names.flash_attention_2_combine(combine).split_range == (17, 32)


def test_flashinfer() -> None:
    """Tensor cores: 16 times the MMA counts; CUDA cores: vec size times bdx, and bdy is the group."""
    traits = (
        "flashinfer::KernelTraits<(flashinfer::MaskMode)0, 16u, 1u, 2u, 8u, 4u, 1u, 4u, (flashinfer::PosEncodingMode)0>"
    )
    found = kernel_names.flashinfer_prefill(f"void flashinfer::BatchPrefillWithPagedKVCacheKernel<{traits}, P>(P)")
    assert (found.tile_rows, found.tile_keys, found.head_dim, found.head_dim_v) == (16, 128, 128, 64)
    numbers = "(flashinfer::PosEncodingMode)0, 2u, 4u, 8u, 16u, 4u, 2u"
    name = f"void flashinfer::BatchDecodeWithPagedKVCacheKernel<{numbers}, Variant, P>(P)"
    found = kernel_names.flashinfer_decode(name)
    assert (found.head_dim, found.group, found.tile_keys) == (128, 4, 32)


def test_paged_attention_and_rocm() -> None:
    """Head size, block size, partition and group stand in the template arguments."""
    plain = "(vllm::Fp8KVCacheDataType)0"
    v2 = f"void vllm::paged_attention_v2_kernel<unsigned short, unsigned short, 96, 32, 128, {plain}, false, 512>(X)"
    found = kernel_names.paged_attention(v2)
    assert (found.head_dim, found.page_size, found.partition_keys, found.split) == (96, 32, 512, True)
    types = f"0, __hip_bfloat16, __hip_bfloat16, {plain}"
    rocm = f"void paged_attention_ll4mi_QKV_mfma16_kernel<{types}, 16, 128, 256, false, 8, 1, V>(int)"
    found = kernel_names.rocm_paged(rocm)
    assert (found.head_dim, found.page_size, found.group) == (128, 16, 8)
