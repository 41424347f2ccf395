"""The engines: one folder for each project, with a policy for each of its decode kernels, and `plan`, which asks one.

A folder's policy modules say what is launched; beside them `trace.py` says how a trace shows it, `sources.py` where the
engine's own source says it, and `run.py` how the installed engine is run. `registry.py` lists the policies.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from decodecalc.batch import Batch
from decodecalc.engines.registry import engine_names, load_policies, load_policy, split_version, with_sparse_engines
from decodecalc.errors import GateError, check_type
from decodecalc.geometry import Geometry
from decodecalc.kvcache import KvCache
from decodecalc.launch.plan import LaunchPlan, check_step

if TYPE_CHECKING:
    from decodecalc.gpus import Gpu

__all__ = ["engine_names", "load_policies", "load_policy", "plan", "split_version"]


def plan(
    engine: str,
    geometry: Geometry,
    batch: Batch,
    *,
    kv: KvCache | None = None,
    gpu: Gpu | str = "h100-sxm",
    as_dense: bool = False,
    **options: Any,
) -> LaunchPlan:
    """The launch that `engine` (`name` or `name@version`) makes for one layer of one decode step.

    kv defaults to bf16 with pages of 16 keys; gpu takes a name too. as_dense plans a sparse layer as if every key were
    read. `options` are the engine's own (`decodecalc engines NAME` lists them). Raises UnknownNameError for names that
    do not exist, InputError for values that cannot be, GateError for what the engine refuses at start-up.
    """
    from decodecalc.gpus import load_gpu

    check_type("engine", engine, str, "its name, for example 'vllm-triton'")
    check_step(geometry, batch, kv)
    name, version = split_version(engine)
    layer = geometry.as_dense() if as_dense else geometry
    try:
        return load_policy(name).plan(layer, batch, kv or KvCache(), load_gpu(gpu), options, version)
    except GateError as refused:
        raise with_sparse_engines(refused) from None
