"""Which published table is which of our policies, as its collector launched it.

The tables are those of the package `aiconfigurator-core` 0.12.0 (NVIDIA, Apache-2.0). Its collectors
(github.com/ai-dynamo/aiconfigurator, collector/{vllm,sglang,trtllm}/collect_attn.py, collector/helper.py
benchmark_with_power) capture one call of the engine's attention backend in a CUDA graph and replay it back to back
without flushing the L2; the table's latency is the mean of the replays. So a row times an *operation*: beside the
attention kernels it holds the write of the new key and value, the casts of the query, and kernels that prepare the
launch, where the backend runs them inside the call.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

PACKAGE, VERSION = "aiconfigurator-core", "0.12.0"

GPUS = {
    "a100_sxm": "a100-sxm",
    "l40s": "l40s",
    "rtx_pro_6000_server": "rtx-pro-6000-server",
    "h100_sxm": "h100-sxm",
    "h200_sxm": "h200-sxm",
    "b200_sxm": "b200-sxm",
    "b300_sxm": "b300-sxm",
    "gb200": "gb200",
    "gb300": "gb300",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """One kernel of one published table, and what launches it here."""

    framework: str
    """Folder of the engine: vllm, sglang or trtllm."""
    kind: str = "attention"
    """Which of the published tables it is: `attention` or `mla`."""
    source: str
    """Value of the column `kernel_source`."""
    policy: str
    """Name of our policy."""
    version: str | None
    """Version of the policy whose rule that engine's version follows; None takes the newest."""
    page_size: int
    """Keys of a page, as the collector sets it."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Options of the policy that say how the collector calls the engine."""
    graph_options: Mapping[str, Any] = field(default_factory=dict)
    """Further options of batches that the engine captures in full CUDA graphs (`rows.MOST_GRAPHED`)."""
    groups: tuple[int, int] = (1, 1 << 20)
    """Fewest and most query heads of a KV head that the framework gives to this kernel."""
    equal_v: bool = True
    """Whether V is as wide as K where K is 192 wide; SGLang's only such model has V of 128."""
    quantized_query: bool = False
    """Whether an FP8 cache is read with FP8 queries."""
    promised_keys: int = 0
    """Longest length that the backend promises the kernel, where requests are shorter."""
    fp8_options: Mapping[str, Any] = field(default_factory=dict)
    """Further options with an FP8 cache."""
    dtypes: tuple[str, ...] = ("bf16", "fp8")
    """KV types of the rows that the policy is about."""
    sms: tuple[int, ...] = ()
    """Compute capabilities on which the published name means this kernel; empty for all."""
    xqa: bool | None = None
    """TensorRT-LLM: the rows that its rule gives to XQA (true) or to MMHA (false)."""

    @property
    def name(self) -> str:
        """Framework and kernel as the table calls it, and the policy."""
        kind = "" if self.kind == "attention" else f" {self.kind.upper()}"
        return f"{self.framework} {self.source}{kind}, {self.policy}"


# TensorRT-LLM's dispatcher (kernels/xqaDispatcher.cpp, shouldUse) gives more query heads of a KV head to MMHA. It once
# did so above 16; the times say where the limit is now: 32 heads take as long as 16, 64 take ten times as long.
TRTLLM_GEN_GROUP = 32
# Blocks of a kernel that an SM may hold; the fit takes the best. One where the kernel is persistent.
SLOTS = {
    "flash-attention-3": (1,),
    "trtllm-gen": (1, 2),
    "flash-attention-2": (1, 2),
    "flashinfer": (1, 2, 4),
    "vllm-triton": (2, 4),
    "sglang-triton": (2, 4),
    "tensorrt-llm-xqa": (1, 2),
    "tensorrt-llm-mmha": (1, 2, 4),
    "flashmla": (1,),
}

TABLES = (
    Table(framework="vllm", source="vllm_flash_attn_fa3", policy="flash-attention-3", version="vllm-0.33", page_size=64,
          options={"paged": True}, graph_options={"cuda_graph": True}, quantized_query=True),
    Table(framework="sglang", source="fa3", policy="flash-attention-3", version="3.0.0", page_size=1,
          options={"paged": True}, equal_v=False, quantized_query=True),
    Table(framework="sglang", source="flash_attention", policy="flash-attention-3", version="3.0.0", page_size=1,
          options={"paged": True}),
    Table(framework="vllm", source="vllm_flash_attn_fa2", policy="flash-attention-2", version="vllm-0.33",
          page_size=64),
    Table(framework="vllm", source="vllm_flash_attn", policy="flash-attention-2", version="vllm-0.33", page_size=64),
    Table(framework="vllm", source="vllm_flashinfer_fidecode", policy="flashinfer", version="0.6.13", page_size=64,
          graph_options={"cuda_graph": True}),
    Table(framework="sglang", source="flashinfer", policy="flashinfer", version="0.6.13", page_size=1,
          options={"path": "auto"}, equal_v=False),
    Table(framework="vllm", source="vllm_triton_attn", policy="vllm-triton", version="0.24.0", page_size=64),
    Table(framework="sglang", source="triton", policy="sglang-triton", version="0.5.14", page_size=1, equal_v=False),
    Table(framework="vllm", source="vllm_flashinfer_trtllmdecode", policy="trtllm-gen", version="0.6.13", page_size=64,
          quantized_query=True),
    Table(framework="sglang", source="trtllm_mha", policy="trtllm-gen", version="0.6.13", page_size=64,
          quantized_query=True, promised_keys=32768, equal_v=False),
    Table(framework="trtllm", source="torch_flow", policy="trtllm-gen", version="0.6.13", page_size=64,
          quantized_query=True, fp8_options={"o_dtype": "fp8"}, sms=(100, 103), groups=(1, TRTLLM_GEN_GROUP)),
    Table(framework="trtllm", source="torch_flow", policy="tensorrt-llm-mmha", version=None, page_size=64,
          sms=(100, 103), groups=(TRTLLM_GEN_GROUP + 1, 1 << 20)),
    Table(framework="trtllm", source="torch_flow", policy="tensorrt-llm-xqa", version="2026", page_size=64,
          sms=(80, 90), xqa=True),
    # With an FP8 cache these collectors ask for FP8 outputs, and the Ampere-style kernel then does not cut sequences:
    # at batch 1 the published times grow with the whole length.
    Table(framework="trtllm", source="torch_flow", policy="tensorrt-llm-xqa", version="2026", page_size=64,
          fp8_options={"multi_block_mode": False}, sms=(89, 120), xqa=True),
    Table(framework="trtllm", source="torch_flow", policy="tensorrt-llm-mmha", version=None, page_size=64,
          sms=(80, 89, 90, 120), xqa=False),
    Table(framework="sglang", kind="mla", source="flash_attention", policy="flash-attention-3", version="3.0.0",
          page_size=1, options={"paged": True}, dtypes=("bf16",)),
    Table(framework="sglang", kind="mla", source="triton", policy="sglang-triton", version="0.5.14", page_size=1),
    Table(framework="sglang", kind="mla", source="trtllm_mla", policy="trtllm-gen", version="0.6.13", page_size=64,
          quantized_query=True),
    Table(framework="trtllm", kind="mla", source="default", policy="trtllm-gen", version="0.6.13", page_size=32,
          quantized_query=True, sms=(100, 103)),
    Table(framework="trtllm", kind="mla", source="default", policy="flashmla", version=None, page_size=64,
          sms=(90,), dtypes=("bf16",)),
)  # fmt: skip

# Published tables that no policy is fitted to, and why: (table, GPUs, reason).
NOT_FITTED = (
    ("sglang generation_mla, fp8 on sm90", "h100-sxm, h200-sxm",
     "the backend casts the whole cache to bf16 in every call, which takes most of the time"),
    ("trtllm generation_mla, fp8 on sm90", "h100-sxm, h200-sxm",
     "FlashMLA with an FP8 cache is another kernel than the policy's"),
    ("trtllm generation_mla, fp8 on sm120", "rtx-pro-6000-server",
     "XQA's MLA kernel works in clusters of four blocks: a trial fit was 45 % off"),
    ("trtllm generation_mla, bf16 on sm120, and all on sm80 and sm89", "rtx-pro-6000-server, a100-sxm, l40s",
     "TensorRT-LLM's fmha_v2 generation kernel has no policy here"),
    ("mla_generation_module, wideep_generation_mla, dsa, dsv4, msa (`module`)", "all",
     "they time projections and indexers too; vLLM publishes its MLA and sparse layers only so"),
    ("linear_attention (gdn, mamba2), kda", "all", "linear attention keeps no keys: there is no launch to plan"),
)  # fmt: skip
