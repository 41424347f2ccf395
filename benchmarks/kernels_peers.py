"""The peers' decode kernels, fetched from their wheels and called beside ours. Nothing fetched is ever committed.

    python benchmarks/kernels_peers.py .peers        # once, needs the package registry, no GPU; about 15 MiB

fetches vLLM's Triton unified attention, SGLang's Triton decode attention and the FlashAttention-3 library that ships
inside the vLLM wheel (stable ABI: loads on torch >= 2.9), with stand-ins for the few modules that those files import.
`Peers(folder).calls(cell, state)` then gives one callable per peer, each taking a layer's (K, V).
"""

from __future__ import annotations

import lzma
import re
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

VLLM, SGLANG = "vllm==0.33.0", "sglang==0.5.10.post1"
GLIBC = ("2_39", "2_35", "2_34", "2_31", "2_28", "2_17")
STANDINS = {
    "vllm/envs.py": "VLLM_BATCH_INVARIANT = False",
    "vllm/logger.py": """
class Quiet:
    def __getattr__(self, name):
        return lambda *args, **kwargs: None

def init_logger(name):
    return Quiet()
""",
    "vllm/platforms.py": """
import torch

class Platform:
    def fp8_dtype(self):
        return torch.float8_e4m3fn

    def is_cuda(self):
        return True

    def __getattr__(self, name):
        return lambda *args, **kwargs: False

current_platform = Platform()
""",
    "vllm/triton_utils.py": "import triton\nimport triton.language as tl",
    "vllm/v1/kv_cache_interface.py": """
from enum import IntEnum

KVQuantMode = IntEnum("KVQuantMode", "NONE FP8_PER_TENSOR INT8_PER_TOKEN_HEAD FP8_PER_TOKEN_HEAD INT4_PER_TOKEN_HEAD "
                      "NVFP4", start=0)
""",
    "sglang/srt/utils.py": "def is_hip():\n    return False",
}  # fmt: skip


def download(requirement: str, into: Path) -> zipfile.ZipFile:
    """A wheel for x86-64 Linux and Python 3.12, whatever runs here."""
    command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary=:all:", "-d", str(into),
               "--python-version", "3.12", "--implementation", "cp"]  # fmt: skip
    for version in GLIBC:
        command += ["--platform", f"manylinux_{version}_x86_64"]
    command += ["--platform", "manylinux2014_x86_64", "--platform", "manylinux1_x86_64", requirement]
    subprocess.run(command, check=True)
    return zipfile.ZipFile(next(into.glob(requirement.split("==")[0] + "-*.whl")))


def prepare(folder: Path) -> None:
    """Fill `folder` with what `Peers` loads."""

    def write(name: str, content: bytes) -> None:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        for parent in path.relative_to(folder).parents:
            if str(parent) != ".":
                (folder / parent / "__init__.py").touch()

    for name, body in STANDINS.items():
        write(name, body.encode() + b"\n")
    with tempfile.TemporaryDirectory() as tmp:
        with download(VLLM, Path(tmp)) as wheel:
            for name in ("triton_unified_attention.py", "triton_attention_helpers.py"):
                write(f"vllm/v1/attention/ops/{name}", wheel.read(f"vllm/v1/attention/ops/{name}"))
            library = wheel.read("vllm/vllm_flash_attn/_vllm_fa3_C.abi3.so")
            write("fa3.so.xz", lzma.compress(library, preset=3))
        with download(SGLANG, Path(tmp)) as wheel:
            layers = "sglang/srt/layers/attention/"
            write("sglang_decode.py", wheel.read(layers + "triton_ops/decode_attention.py"))
            backend = wheel.read(layers + "triton_backend.py").decode()
            rule = re.search(r"@triton\.jit\ndef get_num_kv_splits_triton\(.*?\n(?=\n\ndef )", backend, re.S)
            assert rule is not None
            write("sglang_splits.py", b"import triton\nimport triton.language as tl\n\n\n" + rule.group(0).encode())


class Peers:
    """vLLM's Triton kernel under its own rule, SGLang's under its own (cap 8), FlashAttention-3 under its own."""

    def __init__(self, folder: str | Path) -> None:
        import torch

        folder = Path(folder)
        sys.path.insert(0, str(folder))
        library = Path(tempfile.gettempdir()) / "decodecalc_fa3_peer.so"
        if not library.exists():
            library.write_bytes(lzma.decompress((folder / "fa3.so.xz").read_bytes()))
        torch.ops.load_library(str(library))
        self.fa3 = torch.ops._vllm_fa3_C
        import sglang_decode
        import sglang_splits
        from vllm.v1.attention.ops.triton_unified_attention import unified_attention

        self.unified, self.sglang, self.sglang_rule = unified_attention, sglang_decode, sglang_splits

    def calls(self, cell: Any, state: Any) -> dict[str, Callable[[Any], Any]]:
        """One callable per peer that can run the cell; each writes `state.out`."""
        return {
            "vllm_triton": self.vllm(cell, state),
            "sglang_triton": self.sglang_decode(cell, state),
            "flash_attention_3": self.flash_attention_3(cell, state),
        }

    def vllm(self, cell: Any, s: Any) -> Callable[[Any], Any]:
        import torch

        segments, shape = 16, (cell.batch, cell.q_heads, 16)
        scratch = [torch.empty(n, device="cuda") for n in ((*shape, cell.head_dim), shape, shape)]
        starts = torch.arange(cell.batch + 1, device="cuda", dtype=torch.int32)
        return lambda kv: self.unified(
            s.q, kv[0], kv[1], s.out, starts, 1, s.seq_lens, cell.context, cell.head_dim**-0.5, True, (-1, -1),
            s.block_table, 0, None, None, None, 128 // cell.kv_heads, segments, *scratch,
        )  # fmt: skip

    def sglang_decode(self, cell: Any, s: Any, cap: int = 8) -> Callable[[Any], Any]:
        import torch

        lens, n = s.seq_lens.tolist(), cell.batch
        within = torch.arange(cell.page, device="cuda")
        slots = s.block_table.long()[:, :, None] * cell.page + within  # [batch, pages, page]
        index = torch.cat([slots[b].flatten()[: lens[b]] for b in range(n)])
        indptr = torch.tensor([sum(lens[:b]) for b in range(n + 1)], device="cuda", dtype=torch.int32)
        splits = torch.empty(n, device="cuda", dtype=torch.int32)
        sms = torch.cuda.get_device_properties(0).multi_processor_count
        self.sglang_rule.get_num_kv_splits_triton[(1,)](
            splits, s.seq_lens, n, 1, cell.q_heads, cell.kv_heads, cap, sms,
            MAX_NUM_SEQ=max(256, 1 << (n - 1).bit_length()),
        )  # fmt: skip
        logits = torch.empty(n, cell.q_heads, cap, cell.head_dim, device="cuda")
        lse = torch.empty(n, cell.q_heads, cap, device="cuda")
        flat = (-1, cell.kv_heads, cell.head_dim)
        return lambda kv: self.sglang.decode_attention_fwd(
            s.q, kv[0].view(flat), kv[1].view(flat), s.out, indptr, index, logits, lse, splits, cap,
            cell.head_dim**-0.5, 1.0, 1.0,
        )  # fmt: skip

    def flash_attention_3(self, cell: Any, s: Any) -> Callable[[Any], Any]:
        import torch

        starts = torch.arange(cell.batch + 1, device="cuda", dtype=torch.int32)
        n = None
        return lambda kv: self.fa3.fwd(
            s.q, kv[0], kv[1], n, n, n, s.out, starts, n, n, n, s.seq_lens, 1, cell.context, s.block_table,
            n, n, n, n, n, n, n, n, cell.head_dim**-0.5, True, -1, -1, 0.0, True, n, 0, n, 0, n, 1, 0, n,
        )  # fmt: skip


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    prepare(Path(sys.argv[1]))
