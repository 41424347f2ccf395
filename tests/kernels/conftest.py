"""Problems for the kernel tests: a paged cache in which everything that must not be read is NaN.

Without a CUDA device the kernels run in Triton's interpreter, which has to be chosen before Triton is imported.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, field
from typing import Any

import pytest

try:
    import torch
except ImportError:
    torch = None
if torch is not None and not torch.cuda.is_available() and "triton" not in sys.modules:
    os.environ["TRITON_INTERPRET"] = "1"
try:
    import triton
except ImportError:
    triton = None

# Relative error ‖out - ref‖ / ‖ref‖ allowed against float64, per request, output kept in fp32. What dominates is the
# rounding of the softmax weights before the second product. To bf16, to nearest, it is an rms of 2^-7 / sqrt(12) ·
# sqrt(E[1/m²]) = 1.6e-3 of a weight (7 stored bits; mantissa m uniform in [1, 2), so sqrt(1/2)); the interpreter
# truncates, which at least doubles it. fp16 has 3 bits more. With p_parts = 2 the weights keep twice the bits, and
# what is left is fp32 accumulation and exp2.
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
BOUNDS = {"bf16": 4e-3 if INTERPRETED else 2e-3, "fp16": 5e-4 if INTERPRETED else 3e-4, "fp32": 2e-5}
BOUNDS |= dict.fromkeys(("fp8", "e5m2", "int8"), BOUNDS["fp16"])  # multiplied in fp16
INT8_STEP = 1 / 32  # of int8 caches: four standard deviations fit
TIGHT_BOUND = 5e-5


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    missing = "torch" if torch is None else "triton" if triton is None else ""
    for item in items:
        if item.get_closest_marker("gpu"):
            if torch is None or not torch.cuda.is_available():
                item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))
        elif missing and item.get_closest_marker("interpreter"):
            item.add_marker(pytest.mark.skip(reason=f"needs {missing} (pip install 'decodecalc[verify]')"))


@dataclass
class Problem:
    """One decode step with random data. See `decode_attention` for shapes."""

    seq_lens: list[int]
    q_heads: int = 2
    kv_heads: int = 1
    head_dim: int = 64
    v_dim: int | None = None
    page: int = 16
    flat: bool = False
    mla: bool = False
    dtype: str = "fp32"
    q_len: int = 1
    q_lens: list[int] | None = None
    sinks: bool = False
    options: dict[str, Any] = field(default_factory=dict)  # window, softcap, scale, k_scale, v_scale
    seed: int = 0

    def __post_init__(self) -> None:
        dev = self.device = "cuda" if torch.cuda.is_available() else "cpu"
        gen = torch.Generator(device=dev).manual_seed(self.seed)
        kv_dtype = {
            "fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16, "fp8": torch.float8_e4m3fn,
            "e5m2": torch.float8_e5m2, "int8": torch.int8,
        }[self.dtype]  # fmt: skip
        q_dtype = torch.bfloat16 if kv_dtype.itemsize == 1 else kv_dtype
        v_dim = self.v_dim or self.head_dim
        pages_of = [-(-n // self.page) for n in self.seq_lens]
        pages = sum(pages_of) + 3

        def rand(*shape: int) -> torch.Tensor:
            return torch.randn(shape, generator=gen, device=dev)

        k = rand(pages, self.page, self.kv_heads, self.head_dim)
        v = rand(pages, self.page, self.kv_heads, v_dim)
        order = torch.randperm(pages, generator=gen, device=dev).int()
        # Entries past a request's last page are not page numbers at all.
        table = torch.full((len(pages_of), max([*pages_of, 1]) + 1), 2**31 - 1, dtype=torch.int32, device=dev)
        used = torch.zeros(pages, self.page, dtype=torch.bool, device=dev)
        indices, indptr, next_page = [], [0], 0
        for b, (length, n) in enumerate(zip(self.seq_lens, pages_of)):
            own = order[next_page : next_page + n]
            next_page += n
            table[b, :n] = own
            slots = (own.long()[:, None] * self.page + torch.arange(self.page, device=dev)).flatten()[:length]
            used.view(-1)[slots] = True
            indices.append(slots.int())
            indptr.append(indptr[-1] + length)
        if self.dtype == "int8":  # has no NaN: the largest number then shows what was read that must not be
            k, v = ((x / INT8_STEP).round().clamp(-127, 127) for x in (k, v))
            self.options = {"k_scale": INT8_STEP, "v_scale": INT8_STEP, **self.options}
        k[~used] = 127 if self.dtype == "int8" else float("nan")
        v[~used] = 127 if self.dtype == "int8" else float("nan")
        self.k, self.v = k.to(kv_dtype), None if self.mla else v.to(kv_dtype)
        q_lens = self.q_lens or [self.q_len] * len(self.seq_lens)
        self.tokens = sum(q_lens)
        self.q = rand(self.tokens, self.q_heads, self.head_dim).to(q_dtype)
        self.lens = torch.tensor(self.seq_lens, dtype=torch.int32, device=dev)
        self.args: dict[str, Any] = dict(self.options, seq_lens=self.lens, q_len=max(q_lens))
        if self.q_lens:
            starts = [sum(q_lens[:i]) for i in range(len(q_lens) + 1)]
            self.args["query_start"] = torch.tensor(starts, dtype=torch.int32, device=dev)
        if self.mla:
            self.args["v_dim"] = v_dim
        if self.sinks:
            self.args["sinks"] = rand(self.q_heads)
        if self.flat:
            self.args["kv_indptr"] = torch.tensor(indptr, dtype=torch.int32, device=dev)
            self.args["kv_indices"] = torch.cat(indices) if indices else torch.zeros(0, dtype=torch.int32, device=dev)
        else:
            self.args["page_table"] = table
        self.out_shape = (self.tokens, self.q_heads, v_dim)

    def workspace(self, config: Any) -> Any:
        from decodecalc_kernels import Workspace

        tokens, q_heads, v_dim = self.out_shape
        space = Workspace.allocate(
            tokens, q_heads, v_dim, config.num_splits, self.device, len(self.seq_lens) * self.args["q_len"]
        )
        space.poison()
        return space

    def run(self, config: Any, **more: Any) -> Any:
        """Output fp32 and log-sum-exp of the kernels, from poisoned scratch and output."""
        from decodecalc_kernels import decode_attention

        out = torch.full(self.out_shape, float("nan"), device=self.device)
        lse = torch.full(self.out_shape[:2], float("nan"), device=self.device)
        if config is not None:
            more.setdefault("workspace", self.workspace(config))
        decode_attention(self.q, self.k, self.v, config=config, out=out, lse=lse, **self.args, **more)
        return out, lse

    def reference(self) -> Any:
        from decodecalc_kernels import decode_attention_reference

        return decode_attention_reference(self.q, self.k, self.v, **self.args)

    def error(self, out: Any, ref: Any) -> float:
        """The worst request's relative error."""
        assert not torch.isnan(out).any(), "NaN in the output: something unwritten or not to be read got in"
        starts = self.args.get("query_start")
        if starts is None:
            bounds = [(b * self.q_len, (b + 1) * self.q_len) for b in range(len(self.seq_lens))]
        else:
            bounds = list(zip(starts.tolist()[:-1], starts.tolist()[1:]))
        worst = 0.0
        for a, b in bounds:
            o, r = out[a:b].double(), ref[a:b]
            if a == b:
                continue
            if not r.any():
                assert not o.any(), "an empty request's output is not zero"
                continue
            worst = max(worst, float((o - r).norm() / r.norm()))
        return worst

    def check(self, config: Any, **more: Any) -> float:
        """Run, compare with the reference, return the relative error."""
        out, lse = self.run(config, **more)
        ref, ref_lse = self.reference()
        error = self.error(out, ref)
        bound = TIGHT_BOUND if config.p_parts == 2 else BOUNDS[self.dtype]
        assert error <= bound, f"relative error {error:.2e} > {bound:.1e}"
        finite = ref_lse > float("-inf")
        assert torch.equal(lse > float("-inf"), finite)
        assert torch.allclose(lse[finite].double(), ref_lse[finite], rtol=0, atol=2e-3)
        return error


@pytest.fixture
def problem() -> type[Problem]:
    return Problem
