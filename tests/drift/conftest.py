"""Small trees that look like engines: files of our own with the symbols that the checks look for."""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

# Our own spelling of FlashAttention 2's constants, enough for every check of the policy.
FA2 = """
bool few(int batch_nheads_mblocks, int num_SMs) { return batch_nheads_mblocks >= 0.8f * num_SMs; }
auto is_split_eligible = [](int n) { return n > 0; };
bool good(int n) { return efficiency[num_splits - 1] >= 0.85 * max_efficiency; }
void rule() {
    const int block_n = head_size <= 64 ? 256 : (head_size <= 128 ? 128 : 64);
    const int num_m_blocks = (max_seqlen_q + 64 - 1) / 64;
    n = num_splits_heuristic(b * num_m_blocks, num_sm * 2, blocks, 128);
    TORCH_CHECK(params.num_splits <= 128, "num_splits > 128 not supported");
    TORCH_CHECK(page_block_size % PAGE == 0, "page");
    const int seqlenq_ngroups_swapped = seqlen_q == 1 && num_heads > num_heads_k
        && window_size_left < 0 && window_size_right < 0;
}
"""

FLEX = """
def get_split_k(B, H, Mk):
    num_SM = device().multi_processor_count
    bh = max(B * H, 1)
    return max(num_SM // bh * 2, 1)

def _use_flex_decoding(query):
    return evaluate_expr(sympy.Lt(query.get_size()[-2], 128))

def flex_decoding_grid(batch_size, kv_heads, gqa_group_size, seq_len_q, d_model, meta):
    rows = ceildiv(seq_len_q * gqa_group_size, meta["BLOCK_M"])
    return (rows, batch_size * kv_heads, meta["SPLIT_KV"])
"""


@pytest.fixture
def tree(tmp_path: Path) -> Callable[[Mapping[str, str]], Path]:
    """tree({"a/b.py": "text"}) is a folder with these files."""

    def build(files: Mapping[str, str]) -> Path:
        for name, text in files.items():
            path = tmp_path / "tree" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return tmp_path / "tree"

    return build


@pytest.fixture
def wheel(tmp_path: Path) -> Callable[[Mapping[str, str]], Path]:
    """wheel({"a/b.py": "text"}) is a .whl with these members."""

    def build(files: Mapping[str, str]) -> Path:
        path = tmp_path / "some-1.0-py3-none-any.whl"
        with zipfile.ZipFile(path, "w") as archive:
            for name, text in files.items():
                archive.writestr(name, text)
        return path

    return build


@pytest.fixture
def flash_attn() -> Callable[..., dict[str, str]]:
    """flash_attn("2.8.3", page=256) is a flash-attn source tree."""

    def build(version: str, page: int = 256, text: str = FA2) -> dict[str, str]:
        return {
            "csrc/flash_attn/flash_api.cpp": text.replace("PAGE", str(page)),
            "flash_attn/__init__.py": f'__version__ = "{version}"\n',
            "flash_attn/flash_attn_interface.py": "",
        }

    return build


@pytest.fixture
def torch_tree() -> Callable[..., dict[str, str]]:
    """torch_tree("2.13.0") is a torch installation with a flex_decoding.py."""

    def build(version: str, text: str = FLEX) -> dict[str, str]:
        return {
            "torch/_inductor/kernel/flex/flex_decoding.py": text,
            f"torch-{version}.dist-info/METADATA": f"Name: torch\nVersion: {version}\n",
        }

    return build
