"""Codes of refusals and gates that only the engines of this folder use."""

from __future__ import annotations

from decodecalc.launch.codes import Codes

CODES = Codes(
    refusals={
        "dequant_not_paged": "An fp8 cache is widened on Hopper from pages only.",
        "dequant_page_size": "An fp8 cache is widened on Hopper in pages of whole tiles only.",
        "dequant_query_dtype": "An fp8 cache is widened on Hopper for 16-bit queries only.",
        "dequant_widths": "An fp8 cache is widened on Hopper for keys and values of one width only.",
        "dtypes_differ": "Queries and cache need one element type.",
        "fp8_arch": "The kernel computes in fp8 on compute capability 10.x only.",
        "fp8_needs_hopper": "The kernel takes fp8 on Hopper only.",
        "hd256_max_seqlen": "The kernel for heads of 256 needs a longest length of whole pages.",
        "hd256_page_table": "The kernel for heads of 256 needs a page table as wide as the longest length.",
        "irregular_head_dim": "Pages that are no whole tile need head widths in steps of 16.",
        "mla_arch": "Absorbed MLA runs on compute capability 10.x and 11.x only.",
        "mla_fp8": "MLA takes 16-bit caches only.",
        "mla_softcap": "MLA has no logit cap, and no sinks where the code base has none.",
        "mla_widths": "MLA takes a latent of 512 with 64 for the positions only.",
        "mla_window": "MLA has no sliding window.",
        "not_cuda": "The rule is that of the CUDA kernels, and ROCm builds launch others.",
        "num_splits_varlen": "The entry point for packed queries does not take this split count.",
        "num_splits_varlen_paged": "Packed queries split pages only where the group is swapped into the query axis.",
        "page_size_not_multiple_of_16": "Pages have to hold a multiple of 16 keys.",
        "page_size_not_multiple_of_256": "Pages have to hold a multiple of 256 keys.",
        "paged_sm120": "No paged cache is read on compute capability 12.x.",
        "paged_sm80": "No paged cache is read on compute capability 8.x.",
        "sparse_heads": "Gathered keys take one KV head and up to 128 query heads.",
        "sparse_not_mla": "Keys are gathered for MLA only.",
        "sparse_paged": "Keys are gathered from a cache without a page table only.",
        "sparse_split": "Gathered keys are never split.",
        "split_sm120": "Nothing is split on compute capability 12.x, and the argument asks for it.",
        "split_sm80": "Nothing is split on compute capability 8.x, and the rule or the argument asks for it.",
        "split_sm90": "Nothing is split on compute capability 9.0, and the rule or the argument asks for it.",
        "topk_not_multiple_of_128": "The width of the list has to be a multiple of 128.",
        "v_head_dim_unsupported": "No kernel serves these widths of keys and values together.",
        "varlen_only": "The build has kernels for packed queries only.",
    },
    gates={
        "cuda_graph_bound": "The bound under CUDA graphs does not cut what the rule would take.",
        "fork": "The page size is one that this code base takes: the original, or a server's fork of it.",
        "gqa_swap": "The group is swapped into the query axis.",
        "kernel_supported": "The kernel that the interface chooses takes the layer.",
        "paged_kv_tma": "Pages are loaded by TMA.",
    },
)
