"""Registers of engines' Triton kernels, compiled for compute capability 9.0: they decide how many blocks an SM holds.

    python -m benchmarks.compiled_registers vllm-triton

prints the tables of `decodecalc/engines/vllm/triton_registers.py` (or, for sglang-triton, of the file in that engine's
folder). No GPU is needed: the engine's own launcher runs on CPU tensors, and Triton compiles what it would launch
without loading it. The engines come from the installed packages or the folder `.peers`. The tables were made with
Triton 3.6.0, the release that torch 2.11 brings.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.kernels_resources import usage
from decodecalc.verify.own.peers import peer_folder, use_folder

CAPABILITY, WARP_SIZE = 90, 32
GROUPS, WIDTHS, PAGE = range(1, 17), (64, 128, 256), 16
REQUESTS, KEYS = 4, 1024


class Compiler:
    """Catches the launches of Triton kernels and compiles them instead."""

    def __init__(self) -> None:
        import torch
        from triton.backends.compiler import GPUTarget
        from triton.runtime import driver
        from triton.runtime.jit import JITFunction

        class NoDevice:
            """What Triton asks of a driver before it compiles."""

            def get_current_target(self) -> Any:
                return GPUTarget("cuda", CAPABILITY, WARP_SIZE)

            def get_current_device(self) -> int:
                return 0

            def get_current_stream(self, device: int | None = None) -> int:
                return 0

            def get_active_torch_device(self) -> Any:
                return torch.device("cpu")

        self.compiled: list[Any] = []
        driver.set_active(NoDevice())
        plain = JITFunction.run

        def run(kernel: Any, *args: Any, grid: Any, warmup: bool, **options: Any) -> Any:
            found = plain(kernel, *args, grid=grid, warmup=True, **options)
            self.compiled.append(found)
            return found

        JITFunction.run = run

    def first(self) -> tuple[int, int, int]:
        """(registers of a thread, warps, bytes of shared memory) of the first kernel since the last call: stage 1."""
        kernel = self.compiled[0]
        self.compiled.clear()
        return registers(kernel.asm["cubin"]), kernel.metadata.num_warps, kernel.metadata.shared


def registers(cubin: bytes) -> int:
    """Registers of a thread, as ptxas allotted them."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        return usage(Path(file.name))[0]


def vllm(compiler: Compiler) -> Iterator[tuple[tuple[Any, ...], list[tuple[int, int, int]]]]:
    """Rows of vLLM's tables: ((bytes of an element, width, split, one KV head), what groups of 1 to 16 need)."""
    import torch
    from vllm.v1.attention.ops.triton_unified_attention import unified_attention
    from vllm.v1.kv_cache_interface import KVQuantMode

    def call(group: int, heads: int, width: int, dtype: Any, split: bool) -> None:
        fp8 = dtype == torch.float8_e4m3fn
        cache = torch.empty(KEYS // PAGE, 2, PAGE, heads, width, dtype=dtype)
        queries = torch.empty(REQUESTS, group * heads, width, dtype=dtype if fp8 else torch.bfloat16)
        scale = torch.ones(()).expand(REQUESTS, heads) if fp8 else None
        shape = (REQUESTS, group * heads, 16)
        unified_attention(
            q=queries, k=cache[:, 0], v=cache[:, 1], out=torch.empty_like(queries, dtype=torch.bfloat16),
            cu_seqlens_q=torch.arange(REQUESTS + 1, dtype=torch.int32), max_seqlen_q=1,
            seqused_k=torch.full((REQUESTS,), KEYS, dtype=torch.int32), max_seqlen_k=KEYS, softmax_scale=0.1,
            causal=True, window_size=(-1, -1), block_table=torch.zeros(REQUESTS, KEYS // PAGE, dtype=torch.int32),
            softcap=0.0, q_descale=torch.ones(()) if fp8 else None, k_descale=scale, v_descale=scale,
            kv_quant_mode=KVQuantMode.FP8_PER_TENSOR if fp8 else KVQuantMode.NONE,
            seq_threshold_3D=1 << 20 if split else 0, num_par_softmax_segments=16,
            softmax_segm_output=torch.empty(*shape, width), softmax_segm_max=torch.empty(shape),
            softmax_segm_expsum=torch.empty(shape),
        )  # fmt: skip

    for dtype in (torch.bfloat16, torch.float8_e4m3fn):
        for width in WIDTHS:
            for split in (False, True):
                for heads in (4, 1):
                    found = []
                    for group in GROUPS:
                        call(group, heads, width, dtype, split)
                        found.append(compiler.first())
                    yield (dtype.itemsize, width, split, heads == 1), found


def sglang(compiler: Compiler) -> Iterator[tuple[tuple[Any, ...], list[tuple[int, int, int]]]]:
    """Rows of SGLang's table: ((width, one KV head), what groups of 1 to 16 need)."""
    import torch
    from sglang.srt.layers.attention.triton_ops.decode_attention import decode_attention_fwd

    for width in WIDTHS:
        for heads in (4, 1):
            found = []
            for group in GROUPS:
                keys = torch.empty(REQUESTS * KEYS, heads, width, dtype=torch.bfloat16)
                queries = torch.empty(REQUESTS, group * heads, width, dtype=torch.bfloat16)
                decode_attention_fwd(
                    queries, keys, keys, torch.empty_like(queries), torch.arange(REQUESTS + 1, dtype=torch.int32),
                    torch.arange(REQUESTS * KEYS), torch.empty(REQUESTS, group * heads, 8, width),
                    torch.empty(REQUESTS, group * heads, 8), torch.full((REQUESTS,), 4, dtype=torch.int32), 8, 0.1, 1.0,
                    1.0, logit_cap=0.0, sinks=None,
                )  # fmt: skip
                found.append(compiler.first())
            yield (width, heads == 1), found


ENGINES = {"vllm-triton": vllm, "sglang-triton": sglang}


def main(argv: Sequence[str] | None = None) -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("engine", choices=sorted(ENGINES))
    given = parser.parse_args(argv)
    folder = peer_folder()
    if folder is not None:
        use_folder(folder)
    for key, found in ENGINES[given.engine](Compiler()):
        counts = ", ".join(str(count) for count, _, _ in found)
        print(
            f"{key}: ({counts}), warps {found[0][1]}, shared memory up to {max(shared for *_, shared in found)} bytes"
        )


if __name__ == "__main__":
    main()
