"""Engine policies: (geometry, batch, KV cache, GPU) -> LaunchPlan. One file per engine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from decodecalc.batch import Batch
from decodecalc.engines.registry import engine_names, load_policies, load_policy, split_version
from decodecalc.geometry import Geometry
from decodecalc.kvcache import KvCache
from decodecalc.launch.plan import LaunchPlan

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
    **options: Any,
) -> LaunchPlan:
    """The launch that `engine` (`name` or `name@version`) makes for one layer of one decode step.

    kv defaults to bf16 with pages of 16 keys; gpu takes a name too. `options` are the engine's own
    (`decodecalc engines NAME` lists them). Raises UnknownNameError for names that do not exist, InputError for values
    that cannot be, GateError for what the engine refuses at start-up.
    """
    from decodecalc.gpus import load_gpu

    name, version = split_version(engine)
    device = load_gpu(gpu) if isinstance(gpu, str) else gpu
    return load_policy(name).plan(geometry, batch, kv or KvCache(), device, options, version)
