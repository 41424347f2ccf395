"""Which servers attend a shared prefix apart, by release, and by which rule.

Read from the wheels of vLLM 0.10.2 to 0.33.0: v1/attention/backends/flash_attn.py (`use_cascade_attention`,
`cascade_attention`) and flashinfer.py (`use_cascade_attention`), v1/worker/gpu_model_runner.py
(`_compute_cascade_attn_prefix_len`), config/model.py (`disable_cascade_attn`); the rule is the same text from 0.10.2 to
0.31.0, but for context parallelism from 0.11.2 on. And from SGLang 0.5.23: no decode backend for NVIDIA or AMD has it;
its radix cache shares the memory of a prefix, and every request reads it by itself. FlashInfer leaves the decision to
its caller (`MultiLevelCascadeAttentionWrapper`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from decodecalc.batch import Batch
from decodecalc.geometry import Geometry
from decodecalc.intmath import cdiv
from decodecalc.launch.policy import version_key

if TYPE_CHECKING:
    from decodecalc.gpus import Gpu

OFF_BY_DEFAULT, REMOVED = (0, 18), (0, 32)  # vLLM's releases
LEAST_KEYS, LEAST_REQUESTS, TILE = 256, 8, 128  # arbitrary thresholds and tile sizes, as its source says


def vllm_cascade(geo: Geometry, batch: Batch, keys: int, gpu: Gpu, page_size: int = 16) -> tuple[bool, str]:
    """Whether vLLM up to 0.31 attends a prefix of `keys` shared keys apart under FLASH_ATTN, and why.

    geo: the layer of one rank. page_size: keys of a block, of which the prefix is a whole number.
    """
    shared = keys // page_size * page_size
    if shared < LEAST_KEYS:
        return False, f"{shared} shared keys in whole blocks are fewer than {LEAST_KEYS}"
    if geo.window is not None:
        return False, "the layer has a sliding window"
    if batch.size < LEAST_REQUESTS:
        return False, f"{batch.size} requests are fewer than {LEAST_REQUESTS}"
    if geo.share is not None:
        return False, "the keys of a request are divided over ranks"
    if geo.group == 1 or any(q != 1 for q in batch.q_lens):
        return True, "keys are not split for such a step"
    tiles = cdiv(shared, TILE)
    apart = cdiv(geo.q_heads * cdiv(batch.size, TILE), gpu.sm_count) * tiles
    split = cdiv(batch.size * geo.kv_heads * cdiv(geo.group, TILE) * tiles, gpu.sm_count)
    return apart < split, f"it counts {apart} waves of tiles with the prefix separate and {split} with the keys split"


def prefix_rules(geo: Geometry, batch: Batch, keys: int, gpu: Gpu, page_size: int = 16) -> list[str]:
    """What servers do with a prefix that all requests of this step share, in whole sentences."""
    if gpu.is_hip:
        return ["No server that was read attends a shared prefix separately on this GPU."]
    uses, why = vllm_cascade(geo, batch, keys, gpu, page_size)
    rule = "would attend" if uses else "would not attend"
    latent = " Latent layers never do." if geo.mla else ""
    return [
        f"vLLM 0.32 and later read a shared prefix once for every request: cascade attention was removed.{latent}",
        f"vLLM up to 0.31 {rule} it separately with FLASH_ATTN ({why}); from 0.18 on only with "
        "--no-disable-cascade-attn, and such a step leaves the full CUDA graph.",
        "SGLang shares the memory of a prefix and reads it for every request.",
    ]


def on_by_default(version: str) -> bool | None:
    """Whether this release of vLLM attends shared prefixes apart without being asked; None where it cannot."""
    key = version_key(version)
    return None if key >= REMOVED else key < OFF_BY_DEFAULT
