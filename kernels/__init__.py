"""Split-K decode attention over a paged KV cache, in Triton: the kernels that prove decodecalc's predictions.

Importing this package imports neither torch nor Triton; the names below load on first use.

* `decode_attention(q, k_cache, v_cache, *, seq_lens, page_table | kv_indptr + kv_indices, config, …)`: the launcher.
  Shapes and every option: its docstring. CUDA-graph safe when given `workspace` and `out`.
* `LaunchConfig`: one launch in plain numbers. Any policy's plan is one: `LaunchConfig.fixed_count(16, unit=16)` is
  vLLM's 3D rule, `.per_request_counts(cap, unit=32)` with `split_values=counts` SGLang's, `.fixed_size(256, max_len)`
  a fixed split size (batch-invariant), `.per_request_sizes(cap)` with `split_values=sizes` anything else,
  `LaunchConfig()` unsplit.
* `register_chooser(function)`: who chooses the launch when `decode_attention` is given no config. Importing
  `decodecalc.cost.bundled` registers the time model's choice; without it a config must be given.
* `invariant_config(...)`: the batch-invariant one: it asks nothing about the batch.
* `Workspace.allocate(tokens, q_heads, v_dim, num_splits, device)`: scratch, reusable.
* `list_splits(config, seq_lens)`: the list of live splits of a listed launch (`config.listed`), once for all layers of
  a step whose requests differ in length.
* `record_launch(...)`: the same launch, with what every block did (key range, SM, early exit): a `LaunchRecord`.
* `merge_outputs`, `merge_peers`, `scale_outputs`, `fold_tokens`: outputs of disjoint keys merged by their log-sum-exps,
  for keys divided over GPUs and for shared prefixes.
* `decode_attention_reference(...)`: float64 PyTorch.
* `live`: which splits are live and what each walks, as plain functions (no torch, no Triton).

    config = LaunchConfig.fixed_count(16, unit=16)
    out = decode_attention(q, k, v, seq_lens=lens, page_table=table, config=config)

Requests for features that do not fit raise ValueError. Runs under Triton's interpreter (TRITON_INTERPRET=1 before the
first import of triton) on a CPU.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

_HOME = {
    "LaunchConfig": "config",
    "invariant_config": "config",
    "Problem": "choose",
    "register_chooser": "choose",
    "Workspace": "launch",
    "list_splits": "split_list",
    "split_list": "split_list",
    "decode_attention": "launch",
    "LaunchRecord": "instrument",
    "record_launch": "instrument",
    "decode_attention_reference": "reference",
    "fold_tokens": "states",
    "merge_outputs": "states",
    "merge_peers": "states",
    "scale_outputs": "states",
}
__all__ = [*_HOME, "live"]


def __getattr__(name: str) -> Any:
    if name == "live":
        return import_module("decodecalc_kernels.live")
    if name in _HOME:
        return getattr(import_module(f"decodecalc_kernels.{_HOME[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
