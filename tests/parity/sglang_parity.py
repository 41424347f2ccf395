"""Runs SGLang's own decode planning on the CPU, on random steps, and compares it with our plans.

    TRITON_INTERPRET is set by the script:  python tests/parity/sglang_parity.py [--scenarios 500] [--versions V ...]

The wheel of each version is downloaded with pip into the ignored folder `.parity/` (no dependencies, nothing is
installed). What runs is SGLang's: `TritonAttnBackend.__init__`, its metadata initialisation (eager, or CUDA-graph
capture and replay) and `forward_decode`, `get_num_kv_splits_triton` in the Triton interpreter, and the launchers of
`decode_attention.py`. What is faked: the rest of the package (model runner, KV pool, parallel state), the device's
name and SM count, and the stage-1, stage-2 and lean kernels, which become recorders of their grid and arguments.
Needs torch (CPU) and triton beside decodecalc.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import random
import subprocess
import sys
import types
import zipfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

ROOT = Path(__file__).resolve().parents[2]
CACHE = ROOT / ".parity" / "sglang"
VERSIONS = ("0.5.10.post1", "0.5.23")


# -- SGLang's sources -------------------------------------------------------------------------------------------------


def wheel_of(version: str) -> Path:
    """The version's wheel, downloaded once. The newer ones are tagged for Linux and Python 3.11, whatever runs this."""
    CACHE.mkdir(parents=True, exist_ok=True)
    have = [p for p in CACHE.glob("sglang-*.whl") if p.name.split("-")[1] == version]
    if not have:
        subprocess.run(
            [
                sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:",
                "--python-version", "3.11", "--platform", "manylinux_2_34_x86_64", "--platform", "any",
                "--dest", str(CACHE), f"sglang=={version}",
            ],
            check=True,
        )  # fmt: skip
        have = [p for p in CACHE.glob("sglang-*.whl") if p.name.split("-")[1] == version]
    return have[0]


def unpack(version: str) -> Path:
    """The wheel's Python files that run here, unpacked once."""
    target = CACHE / version
    if not target.exists():
        with zipfile.ZipFile(wheel_of(version)) as wheel:
            names = [
                n
                for n in wheel.namelist()
                if n.endswith(".py") and n.startswith(("sglang/srt/layers/attention/", "sglang/kernels/ops/attention/"))
            ]
            wheel.extractall(target, names)
    return target


class _Fakes:
    """An importer that answers every `sglang…` and `sgl_kernel…` import with an empty stand-in."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name.split(".")[0] not in ("sglang", "sgl_kernel"):
            return None
        return importlib.util.spec_from_loader(name, self, is_package=True)

    def create_module(self, spec: Any) -> types.ModuleType:
        module = types.ModuleType(spec.name)
        module.__getattr__ = lambda attr: _fake_attribute(module, attr)  # type: ignore[method-assign]
        return module

    def exec_module(self, module: types.ModuleType) -> None:
        module.__path__ = []


def _fake_attribute(module: types.ModuleType, attr: str) -> Any:
    if attr.startswith("__"):
        raise AttributeError(attr)
    value = MagicMock(name=f"{module.__name__}.{attr}")
    setattr(module, attr, value)
    return value


def _real(name: str, file: Path) -> types.ModuleType:
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


@dataclass
class Sglang:
    """The loaded modules of one version, and where the fakes hang that a scenario changes."""

    version: str
    backend: types.ModuleType
    decode: types.ModuleType
    launches: list[dict[str, Any]] = field(default_factory=list)

    def set_device(self, hip: bool, gfx: str | None, sm_count: int) -> None:
        for module in (self.backend, self.decode):
            vars(module).update(_is_hip=hip, _is_gfx942=gfx == "gfx942", is_gfx95_supported=lambda: gfx == "gfx950")
        vars(self.backend)["get_device_core_count"] = lambda *_: sm_count
        if hasattr(self.decode, "_lean_num_cus"):
            vars(self.decode)["_lean_num_cus"] = lambda: sm_count
        if hasattr(self.decode, "_CORE_COUNT"):
            self.decode._CORE_COUNT.clear()
            vars(self.decode)["get_device_core_count"] = lambda *_: sm_count
            vars(self.decode)["_KEEP_SCHEDULER_SPLITS"] = None


class _Recorder:
    """Stands for a Triton kernel: remembers grid and arguments, launches nothing."""

    def __init__(self, name: str, launches: list[dict[str, Any]]) -> None:
        self.name, self.launches = name, launches

    def __getitem__(self, grid: Any) -> Any:
        return lambda *args, **kwargs: self.launches.append(
            {"name": self.name, "grid": tuple(int(x) for x in grid), "args": args, **kwargs}
        )


class _SmallMemoryTorch:
    """torch, but large buffers have a shape and no storage: scratch for a million-key context takes hundreds of GB."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch

    def __getattr__(self, name: str) -> Any:
        return getattr(self._torch, name)

    def _make(self, make: Any, size: Any, kwargs: dict[str, Any]) -> Any:
        shape = size[0] if isinstance(size[0], (tuple, list)) else size
        if len(shape) > 2:
            kwargs = {**kwargs, "device": "meta"}
        return make(*size, **kwargs)

    def empty(self, *size: Any, **kwargs: Any) -> Any:
        return self._make(self._torch.empty, size, kwargs)

    def zeros(self, *size: Any, **kwargs: Any) -> Any:
        return self._make(self._torch.zeros, size, kwargs)


def _next_power_of_2(n: int) -> int:
    return 1 << (n - 1).bit_length() if n > 0 else 1


def load(version: str) -> Sglang:
    """Imports the version's backend and launchers with everything else faked."""
    folder = unpack(version) / "sglang"
    sys.meta_path.insert(0, _Fakes())
    import sglang.srt.layers.attention.base_attn_backend as base
    import sglang.srt.utils as utils

    base.AttentionBackend = type("AttentionBackend", (), {"__init__": lambda self: None, "dllm_attention": None})
    vars(utils).update(
        is_hip=lambda: False, is_cuda=lambda: False, is_xpu=lambda: False, is_gfx942_supported=lambda: False,
        is_gfx95_supported=lambda: False, is_gfx1250_supported=lambda: False, next_power_of_2=_next_power_of_2,
        get_bool_env_var=lambda name, default="false": os.environ.get(name, default).lower() in ("true", "1"),
        get_int_env_var=lambda name, default=0: int(os.environ.get(name, default)),
        get_device_core_count=lambda *_: 0,
    )  # fmt: skip
    old = folder / "srt/layers/attention/triton_ops"
    new = folder / "kernels/ops/attention"
    launches: list[dict[str, Any]] = []
    if new.exists():
        import sglang.kernels.ops.attention.score_mod as score_mod

        score_mod.unpack_aux_tensors = lambda *_: (None, 0, 0, 0)
        decode = _real("sglang.kernels.ops.attention.decode_attention", new / "decode_attention.py")
        _real("sglang.kernels.ops.attention.metadata", new / "metadata.py")
        import sglang.kernels.ops.attention.extend_attention as extend

        extend._get_block_sizes_for_extend_attention = lambda **_: (0, 0, 0, 64, 64, 4)
    else:
        decode = _real("sglang.srt.layers.attention.triton_ops.decode_attention", old / "decode_attention.py")
        if (old / "metadata.py").exists():
            _real("sglang.srt.layers.attention.triton_ops.metadata", old / "metadata.py")
    for name in ("_fwd_kernel_stage1", "_fwd_grouped_kernel_stage1", "_fwd_kernel_stage2"):
        vars(decode)[name] = _Recorder(name, launches)
    if hasattr(decode, "_lean_attention_decode_kernel"):
        vars(decode)["_lean_attention_decode_kernel"] = _Recorder("_lean_attention_decode_kernel", launches)
    # MagicMock is no class: isinstance needs one.
    for name, attr in (("swa_memory_pool", "SWAKVPool"), ("base_swa_memory_pool", "BaseSWAKVPool")):
        module = importlib.import_module(f"sglang.srt.mem_cache.{name}")
        setattr(module, attr, type(attr, (), {}))
    backend = _real("sglang.srt.layers.attention.triton_backend", folder / "srt/layers/attention/triton_backend.py")
    vars(backend)["torch"] = _SmallMemoryTorch(backend.torch)
    return Sglang(version, backend, decode, launches)


# -- scenarios --------------------------------------------------------------------------------------------------------

GPUS = (("h100-sxm", 132), ("a100-sxm4-80gb", 108), ("b200", 148), ("mi300x", 304), ("mi355x", 256))
HEADS = ((32, 8), (32, 32), (8, 1), (64, 8), (28, 4), (40, 2), (71, 1), (48, 1), (16, 16), (96, 4), (12, 2), (5, 1))


def scenarios(version: str, count: int, seed: int) -> list[dict[str, Any]]:
    """Random steps over everything that reaches the launch, drawn from one seed."""
    rng = random.Random(f"{version} {seed}")
    out = []
    for _ in range(count):
        gpu, sm_count = rng.choice(GPUS)
        if rng.random() < 0.3:
            sm_count = rng.randint(20, 320)
        mla = rng.random() < 0.2
        q_heads, kv_heads = (rng.choice((8, 16, 64, 128)), 1) if mla else rng.choice(HEADS)
        head_dim, v_dim = (576, 512) if mla else (rng.choice((64, 80, 96, 128, 192, 256)),) * 2
        size = rng.choice((1, 1, 2, 3, 4, 8, 16, 33, 128, 300))
        top = rng.choice((64, 600, 5000, 40_000, 120_000))
        lens = [rng.randint(1, top)] * size if rng.random() < 0.4 else [rng.randint(1, top) for _ in range(size)]
        if rng.random() < 0.2:
            lens = [max(1, int(top * rng.uniform(0.78, 1))) for _ in range(size)]
        options: dict[str, Any] = {"max_context_len": rng.choice((131_072, 163_840, 1_048_576))}
        if rng.random() < 0.5:
            options["max_kv_splits_arg"] = rng.choice((1, 2, 4, 8, 16, 32, 64, 128))
        mode = rng.random()
        if mode < 0.12:
            options["static_kv_splits"] = True
        elif mode < 0.3:
            options["deterministic"] = True
        if rng.random() < 0.2:
            options["split_tile_size"] = rng.choice((128, 256, 512, 1000, 4096))
        window = None
        if rng.random() < 0.3:
            options["padded_batch"] = size + rng.choice((0, 0, 1, 7))
        elif rng.random() < 0.2:
            options.update(draft_topk=rng.choice((1, 2, 4)), draft_step=rng.randint(1, 4))
        if not mla and "draft_topk" not in options and rng.random() < 0.25:
            window = rng.choice((2, 128, 1024, 4096))
        if gpu == "mi355x" and rng.random() < 0.5:
            options["mla_decode_tune"] = True
        if gpu.startswith("mi3") and rng.random() < 0.5:
            options["enable_lean_attention"] = rng.random() < 0.7
        out.append({
            "gpu": gpu, "sm_count": sm_count, "q_heads": q_heads, "kv_heads": kv_heads, "head_dim": head_dim,
            "head_dim_v": v_dim, "mla": mla, "window": window, "lens": lens, "options": options,
        })  # fmt: skip
    return out


# -- SGLang's side ----------------------------------------------------------------------------------------------------


def sglang_launch(sgl: Sglang, s: dict[str, Any], gpu: Any) -> dict[str, Any]:
    """What SGLang launches for the scenario, from its recorded kernels."""
    import torch

    o = s["options"]
    hip = gpu.is_hip
    sgl.set_device(hip, gpu.gfx, s["sm_count"])
    topk, step = o.get("draft_topk", 1), o.get("draft_step", 0)
    padded = o.get("padded_batch")
    lens = s["lens"] + [1] * ((padded or len(s["lens"])) - len(s["lens"]))
    bs = len(lens)
    tile = o.get("split_tile_size")
    env = {
        "SGLANG_TRITON_DECODE_ATTN_STATIC_KV_SPLITS": "true" if o.get("static_kv_splits") else "false",
        "SGLANG_TRITON_DECODE_SPLIT_TILE_SIZE": str(tile or 256),
    }
    os.environ.update(env)
    runner = MagicMock(name="model_runner")
    runner.req_to_token_pool.size = bs + 1
    runner.req_to_token_pool.req_to_token = torch.empty((1, 1), dtype=torch.int32)
    window = None if s["window"] is None else s["window"] - 1
    runner.sliding_window_size = window
    runner.page_size = 1
    runner.is_draft_worker = False
    runner.device = "cpu"
    runner.dcp_size, runner.dcp_rank = 1, 0
    runner.hybrid_gdn_config = runner.kimi_linear_config = None
    runner.token_to_kv_pool_allocator = object()
    runner.decode_num_tokens_per_req.return_value = 1
    config = runner.model_config
    if hasattr(sgl.backend, "AttentionArch"):
        config.attention_arch = sgl.backend.AttentionArch.MLA if s["mla"] else sgl.backend.AttentionArch.MHA
    config.num_attention_heads = s["q_heads"]
    config.get_max_num_attention_heads.return_value = s["q_heads"]
    config.get_num_kv_heads.return_value = s["kv_heads"]
    config.v_head_dim = config.swa_v_head_dim = s["head_dim_v"]
    config.context_len = o["max_context_len"]
    config.is_encoder_decoder = False
    key = torch.empty((1, s["kv_heads"], s["head_dim"]), dtype=torch.bfloat16)
    value = torch.empty((1, s["kv_heads"], s["head_dim_v"]), dtype=torch.bfloat16)
    pool = runner.token_to_kv_pool
    pool.translate_loc_from_full_to_swa.side_effect = lambda indices: indices
    pool.get_v_head_dim.return_value = s["head_dim_v"]
    pool.get_value_buffer.return_value, pool.get_key_buffer.return_value = value, key
    cap = o.get("max_kv_splits_arg", 16 if hip else 8)
    args = runner.server_args
    args.triton_attention_num_kv_splits, args.triton_attention_split_tile_size = cap, tile
    args.enable_deterministic_inference = bool(o.get("deterministic"))
    args.speculative_num_draft_tokens = args.speculative_num_steps = None
    args.enable_lean_attention = o.get("enable_lean_attention")
    _fake_context(sgl, cap, tile, o)

    backend = sgl.backend.TritonAttnBackend(runner)
    seq_lens = torch.tensor(lens, dtype=torch.int64)
    spec = None
    if "draft_topk" in o:
        spec = MagicMock(name="spec_info")
        spec.window_kv_indices = None
        rows = (seq_lens + step).repeat_interleave(topk)
        spec.kv_indptr = torch.cat([torch.zeros(1, dtype=torch.int64), rows.cumsum(0)]).to(torch.int32)
    batch = MagicMock(name="forward_batch")
    batch.batch_size, batch.seq_lens, batch.spec_info = bs, seq_lens, spec
    # The draft runner leaves the sum unset where lengths stay on the device (the lean gate's reason to decline).
    batch.seq_lens_sum = None if spec is not None and hasattr(sgl.decode, "lean_capture_policy") else sum(lens)
    batch.out_cache_loc, batch.encoder_lens = torch.zeros(bs * topk, dtype=torch.int64), None
    batch.token_to_kv_pool = pool
    batch.req_pool_indices = torch.zeros(bs, dtype=torch.int64)
    batch.forward_mode.is_decode_or_idle.return_value = True
    if padded is None:
        backend.init_forward_metadata(batch)
    else:
        _replay(backend, batch, bs, seq_lens)

    layer = MagicMock(name="layer")
    layer.tp_q_head_num, layer.tp_k_head_num, layer.tp_v_head_num = s["q_heads"], s["kv_heads"], s["kv_heads"]
    layer.qk_head_dim, layer.v_head_dim = s["head_dim"], s["head_dim_v"]
    layer.logit_capping_method, layer.logit_cap, layer.xai_temperature_len = "tanh", 0.0, -1
    layer.sliding_window_size = -1 if window is None else window
    layer.k_scale = layer.v_scale = None
    layer.scaling = 1.0
    q = torch.empty((bs * topk, s["q_heads"] * s["head_dim"]), dtype=torch.bfloat16)
    if hasattr(sgl.decode, "lean_capture_policy"):
        capture_mode = importlib.import_module("sglang.srt.model_executor.runner_utils.capture_mode")
        capture_mode.get_is_capture_mode = lambda: padded is not None  # type: ignore[attr-defined]
    sgl.launches.clear()
    backend.forward_decode(q, None, None, layer, batch, save_kv_cache=False)
    rows = bs * topk
    if sgl.launches[0]["name"] == "_lean_attention_decode_kernel":
        return _lean_launch(sgl.launches[0], rows)
    stage1, stage2 = sgl.launches
    num_splits = stage1["args"][8][:rows].tolist()
    if stage1.get("USE_FORCED"):
        num_splits = [stage1["forced_kv_splits"]] * rows
    indptr = stage1["args"][4][: rows + 1].to(torch.int64)
    logits, lse = stage1["args"][6], stage1["args"][7]
    return {
        "kernel": stage1["name"],
        "stage1_grid": list(stage1["grid"]),
        "stage2_grid": list(stage2["grid"]),
        "tile_keys": stage1["BLOCK_N"],
        "warps": stage1["num_warps"],
        "num_kv_splits": num_splits,
        "kv_len_per_row": (indptr[1:] - indptr[:-1]).tolist(),
        "scratch_bytes": 4 * (logits[:rows].numel() + lse[:rows].numel()),
    }


def _lean_launch(kernel: dict[str, Any], rows: int) -> dict[str, Any]:
    """Facts of a launch of the persistent kernel: partial states for every block, no stage 2."""
    args = kernel["args"]
    partials, indptr = (args[3], args[4], args[5], args[8]), args[9]
    return {
        "kernel": kernel["name"],
        "stage1_grid": list(kernel["grid"]),
        "stage2_grid": None,
        "tile_keys": kernel["BLOCK_N"],
        "warps": kernel["num_warps"],
        "kv_len_per_row": (indptr[1 : rows + 1] - indptr[:rows]).tolist(),
        "scratch_bytes": 4 * sum(t.numel() for t in partials),
        "tiles": int(args[7][-1]) * kernel["num_rows"],
    }


def _fake_context(sgl: Sglang, cap: int, tile: int | None, o: dict[str, Any]) -> None:
    """The run-time context of newer versions: server arguments, parallel sizes, environment."""
    context = MagicMock(name="exec")
    context.kernel.triton_attention_num_kv_splits = cap
    context.kernel.triton_attention_split_tile_size = tile
    context.kernel.enable_lean_attention = o.get("enable_lean_attention")
    context.deterministic.enable_deterministic_inference = bool(o.get("deterministic"))
    context.dllm.dllm_algorithm = None
    parallel = MagicMock(name="parallel")
    parallel.attn_dcp_size, parallel.attn_dcp_rank, parallel.attn_tp_size = 1, 0, 1
    speculative = MagicMock(name="spec")
    speculative.speculative_eagle_topk = o.get("draft_topk")
    vars(sgl.backend).update(
        get_attention_tp_size=lambda: 1, get_exec=lambda: context, get_parallel=lambda: parallel,
        get_spec=lambda: speculative, mambaish_config=lambda *_: None,
    )  # fmt: skip
    # Stand-ins until the fakes are asked for them: older versions have neither module.
    importlib.import_module("sglang.srt.runtime_context").get_exec = lambda: context  # type: ignore[attr-defined]
    envs = importlib.import_module("sglang.srt.environ").envs
    envs.SGLANG_MLA_DECODE_TUNE.get.return_value = bool(o.get("mla_decode_tune"))
    envs.SGLANG_DISABLE_LEAN_ATTENTION.get.return_value = False
    envs.SGLANG_FORCE_LEAN_GRID_CU_MULT.get.return_value = 1.0
    envs.SGLANG_TRITON_DECODE_ATTN_STATIC_KV_SPLITS.get.return_value = bool(o.get("static_kv_splits"))


def _replay(backend: Any, batch: Any, bs: int, seq_lens: Any) -> None:
    """CUDA-graph capture, then replay with the padded batch. The index buffers are sized by the context: kept small."""
    context, backend.max_context_len = backend.max_context_len, 1
    backend.init_cuda_graph_state(bs, bs)
    backend.max_context_len = context
    if hasattr(backend, "init_forward_metadata_out_graph"):
        backend.init_forward_metadata_out_graph(batch, in_capture=True)
        backend.init_forward_metadata_out_graph(batch, in_capture=False)
        return
    backend.init_forward_metadata_capture_cuda_graph(
        bs, bs, batch.req_pool_indices, seq_lens, None, batch.forward_mode, None
    )
    backend.init_forward_metadata_replay_cuda_graph(
        bs, batch.req_pool_indices, seq_lens, int(seq_lens.sum()), None, batch.forward_mode, None, None
    )


# -- our side, and the comparison -------------------------------------------------------------------------------------


def our_launch(version: str, s: dict[str, Any], gpu: Any) -> dict[str, Any]:
    """The same facts from our plan."""
    from decodecalc.batch import Batch
    from decodecalc.engines import plan
    from decodecalc.geometry import Geometry
    from decodecalc.kvcache import KvCache

    geo = Geometry(s["q_heads"], s["kv_heads"], s["head_dim"], s["head_dim_v"], window=s["window"], mla=s["mla"])
    p = plan(f"sglang-triton@{version}", geo, Batch(s["lens"]), kv=KvCache(page_size=1), gpu=gpu, **s["options"])
    d = p.detail

    def rows(values: Any, padding: int) -> list[int]:
        return [v for v in values for _ in range(d.draft_topk)] + [padding] * (d.padded_requests * d.draft_topk)

    keys = rows(p.keys_read, d.padded_kv_len)
    if p.merge is None:
        return {
            "kernel": p.stage1.name,
            "stage1_grid": list(p.stage1.grid),
            "stage2_grid": None,
            "tile_keys": p.tile_keys,
            "warps": p.stage1.threads // (gpu.warp_size or 64),
            "kv_len_per_row": keys,
            "scratch_bytes": p.scratch_bytes,
            "tiles": sum(-(-k // p.tile_keys) for k in keys) * geo.kv_heads * -(-geo.group // 16),
        }
    return {
        "kernel": p.stage1.name,
        "stage1_grid": list(p.stage1.grid),
        "stage2_grid": list(p.merge.grid),
        "tile_keys": p.tile_keys,
        "warps": p.stage1.threads // (gpu.warp_size or 32),
        "num_kv_splits": rows(p.splits.requested, d.padded_num_kv_splits),
        "kv_len_per_row": keys,
        "scratch_bytes": p.scratch_bytes,
    }


def compare(version: str, count: int, seed: int) -> dict[str, Any]:
    """Counts of equal and different launches; the first differences in full."""
    from decodecalc.gpus import load_gpu

    sgl = load(version)
    different = []
    todo = scenarios(version, count, seed)
    for s in todo:
        gpu = load_gpu(s["gpu"]).with_(sm_count=s["sm_count"])
        theirs, ours = sglang_launch(sgl, s, gpu), our_launch(version, s, gpu)
        if theirs != ours:
            wrong = {k: (v, ours.get(k)) for k, v in theirs.items() if v != ours.get(k)}
            different.append({"scenario": s, "sglang, ours": wrong})
    return {"version": version, "scenarios": len(todo), "equal": len(todo) - len(different), "different": different}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--versions", nargs="+", default=list(VERSIONS))
    parser.add_argument("--scenarios", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--one", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        result = compare(args.one, args.scenarios, args.seed)
        print(f"sglang {args.one}: {result['equal']} of {result['scenarios']} launches equal")
        for case in result["different"][:3]:
            print(json.dumps(case)[:2000])
        return int(bool(result["different"]))
    failed = 0
    env = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": str(ROOT)}
    for version in args.versions:
        unpack(version)
        # A process per version: the fakes and SGLang's modules are process-wide.
        command = [
            sys.executable,
            __file__,
            "--one",
            version,
            "--scenarios",
            str(args.scenarios),
            "--seed",
            str(args.seed),
        ]
        failed |= subprocess.run(command, env=env, check=False).returncode
    return failed


if __name__ == "__main__":
    sys.exit(main())
