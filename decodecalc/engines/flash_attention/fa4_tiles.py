"""Tiles and widths of FlashAttention 4's forward kernels, in the wheel and in vLLM's copy.

Source: flash_attn/cute/interface.py of flash-attn-4 4.0.0b36 and vllm/vllm_flash_attn/cute/interface.py of vLLM 0.33.0:
_tile_size_fwd_sm90, _get_fwd_config, _validate_head_dims.
"""

from __future__ import annotations

SPLIT_TILE_N = 64  # keys of a Blackwell tile when K and V widths differ and the keys are split


def tile(arch: int, head_dim: int, v_dim: int, causal: bool, local: bool) -> tuple[int, int]:
    """(rows, keys) of a tile. arch: compute capability as 90."""
    family = arch // 10
    if family == 9:
        return _sm90(head_dim, v_dim, causal, local)
    narrow = family == 8 or (family == 12 and head_dim > 64)
    return 128, 64 if narrow else 128


def _sm90(head_dim: int, v_dim: int, causal: bool, local: bool) -> tuple[int, int]:
    if head_dim <= 64:
        return 192, 128
    if head_dim <= 96:
        return 192, 128 if causal or local else 144
    if head_dim <= 128:
        return 128, 128
    if head_dim <= 192:
        return 128, 96 if local else 128 if v_dim <= 128 else 112
    if head_dim <= 256:
        return 128, 64 if local else 80
    return 64, 64


def widths_fit(arch: int, head_dim: int, v_dim: int, element_bytes: int, widest_sm90: int) -> bool:
    """Whether kernels exist for these K and V widths. widest_sm90: widest head on Hopper."""
    family, multiple = arch // 10, 16 // element_bytes
    if family in (8, 12):
        return True
    if head_dim % multiple or v_dim % multiple:
        return False
    if family == 9:
        return 8 <= head_dim <= widest_sm90 and 8 <= v_dim <= widest_sm90
    plain = 8 <= head_dim <= 128 and 8 <= v_dim <= 128
    absorbed = v_dim == 512 and head_dim in (64, 512)
    return plain or absorbed or (head_dim, v_dim) in ((192, 128), (256, 256))


def sm90_threads(tile_m: int, head_dim: int, v_dim: int) -> int:
    """Threads of a Hopper block: a warp group for each 64 rows (two of them for wide heads), and one that loads."""
    wide = 2 if max(head_dim, v_dim) > 256 else 1
    return 128 * (tile_m // 64 * wide + 1)
