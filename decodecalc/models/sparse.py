"""Reads what the sparse layers of a configuration gather: the budget, the blocks and the indexer, under all names in
use.

Sources of the names: transformers 5.24.0 (configuration classes), vLLM 0.33 (model_executor/models/deepseek_v2.py,
minimax_m3.py, config of Qwen sparse attention) and the configurations that the models publish.
"""

from __future__ import annotations

from decodecalc.geometry import Gather, Indexer
from decodecalc.models.fields import Fields, whole

MOST = 1 << 20
INDEXED_RATIO = 128  # layers with a lower ratio (compressed sparse attention) have an indexer, the others have none
INDEX_HEAD_DIM = 128  # width of an index key in every configuration class that has one


def gather_of(fields: Fields) -> Gather | None:
    """What a sparse layer gathers, by whichever budget the configuration states; None without a budget."""
    sparse = fields.mapping("sparse_attention_config")
    blocks = sparse.get("sparse_topk_blocks", fields.value("index_topk_blocks", quiet=True))
    size = sparse.get("sparse_block_size", fields.value("index_block_size", quiet=True))
    budget = fields.count("index_topk", quiet=True)
    if budget is not None:  # DeepSeek sparse attention; GLM pools index keys and keeps the incomplete pool
        pool = _count(fields, "index_kpool") or 1
        tail = pool > 1 and fields.raw("index_kpool_always_select_tail") is not False
        indexer = indexer_of(fields, "index_n_heads", "index_head_dim", pool)
        return Gather(topk=budget, block=pool, tail=tail, indexer=indexer)
    if blocks is not None and size is not None:  # MiniMax sparse attention: a list of blocks for every KV head
        width = whole("sparse_block_size", size, 1, MOST)
        heads = sparse.get("sparse_num_index_heads", fields.raw("index_n_heads")) or 1
        dim = sparse.get("sparse_index_dim", fields.raw("index_head_dim")) or INDEX_HEAD_DIM
        return Gather(
            topk=whole("sparse_topk_blocks", blocks, 1, MOST) * width,
            block=width,
            per_kv_head=True,
            indexer=Indexer(
                heads=whole("sparse_num_index_heads", heads, 1, MOST),
                head_dim=whole("sparse_index_dim", dim, 1, MOST),
                dtype="bf16",
                scale_bytes=0,
            ),
        )
    budget = _count(fields, "indexer_budget")
    if budget is not None:  # Qwen sparse attention: blocks of keys by their pooled index key, and the incomplete block
        pool = _count(fields, "indexer_compress_ratio") or 1
        indexer = indexer_of(fields, "indexer_n_heads", "indexer_head_dim", pool, "indexer_kv_heads", "bf16")
        return Gather(topk=budget, block=pool, tail=pool > 1, indexer=indexer)
    return None


def compressed_gather(fields: Fields, ratio: int, window: int, topk: int | None) -> Gather:
    """What a layer of DeepSeek-V4 gathers: its window, and the selected or all entries of the compressed copy."""
    indexed = topk is not None and ratio < INDEXED_RATIO
    return Gather(
        topk=topk if indexed else None,
        compress=ratio,
        window=window,
        indexer=indexer_of(fields, "index_n_heads", "index_head_dim", ratio) if indexed else None,
    )


def indexer_of(
    fields: Fields, heads: str, head_dim: str, pool: int = 1, key_heads: str | None = None, dtype: str = "fp8"
) -> Indexer:
    """The indexer under these field names. One index key of a key (or pool of keys) serves all its query heads."""
    return Indexer(
        heads=_count(fields, heads) or 1,
        head_dim=_count(fields, head_dim) or INDEX_HEAD_DIM,
        key_heads=(_count(fields, key_heads) if key_heads else None) or 1,
        keys_per_entry=pool,
        dtype=dtype,
        scale_bytes=4 if dtype == "fp8" else 0,
    )


def unknown_budget(fields: Fields, words: set[str]) -> str:
    """The warning for layers that a configuration calls sparse without a budget that is known here."""
    near = sorted(
        name for name in fields.config
        if any(part in name.lower() for part in ("topk", "top_k", "budget", "index", "sparse", "select"))
        and "expert" not in name.lower()
    )  # fmt: skip
    seen = f"; fields that may hold it: {', '.join(near[:6])}" if near else ""
    return (
        f"{', '.join(sorted(words))} layers select their keys, but no budget field is known here (index_topk, "
        f"indexer_budget, sparse_attention_config): they are counted as reading every key{seen}"
    )


def _count(fields: Fields, name: str) -> int | None:
    value = fields.raw(name)
    return None if value is None else whole(name, value, 1, MOST)
