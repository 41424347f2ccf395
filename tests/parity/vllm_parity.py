"""Compares our vLLM policies with vLLM's own Python, taken from the release's wheel, on random scenarios.

    python tests/parity/vllm_parity.py --version 0.33.0 --cases 500

Needs torch and triton (CPU is enough) and, once per release, the package registry. See README.md beside this file.
"""

from __future__ import annotations

import argparse
import inspect
import random
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import vllm_host as host
from vllm_programs import Pointer, kernel_until_tile_loop
from vllm_wheel import source_of

import decodecalc as dc
from decodecalc.engines.vllm.capture import capture_sizes, round_for_drafts
from decodecalc.engines.vllm.triton import POLICY as TRITON
from decodecalc.engines.vllm.triton_mla import POLICY as MLA

ROOT = Path(__file__).resolve().parents[2]
META = torch.device("meta")
H100 = dc.load_gpu("h100-sxm")
MOST_PROGRAMS = 3000
QUERY_TYPES = {"fp8": torch.float8_e4m3fn, "bf16": torch.bfloat16, "fp32": torch.float32}


class Loose(SimpleNamespace):
    """A configuration object: attributes that nobody set are None."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return None


# --- unified attention ---


class UnifiedAttention:
    """vLLM's metadata builder, launcher and kernel text of one release."""

    def __init__(self) -> None:
        self.ops = host.load(
            "vllm.v1.attention.ops.triton_unified_attention", "vllm.attention.ops.triton_unified_attention"
        )
        self.backend = host.load("vllm.v1.attention.backends.triton_attn")
        self.int4 = host.load("vllm.v1.attention.ops.int4_per_token_head")
        helpers = host.load("vllm.v1.attention.ops.triton_attention_helpers")
        modules = [module for module in (helpers, self.ops) if module]
        self.log: list[host.Recorder.Call] = []
        self.programs = {
            name: kernel_until_tile_loop(modules, name)
            for name in vars(self.ops)
            if name.startswith("kernel_unified_attention")
        }
        if self.int4:
            self.programs["_attn_packed"] = kernel_until_tile_loop([helpers, self.int4], "_attn_packed")
            self.int4.single_rht = lambda x, inverse=False: x  # rotates values; launches none of what is compared
        for module in filter(None, (self.ops, self.int4)):
            for name in (*self.programs, "reduce_segments"):
                if hasattr(module, name):
                    setattr(module, name, host.Recorder(name, self.log))

    def launch(self, case: dict[str, Any]) -> dict[str, Any]:
        """What vLLM launches for a case."""
        geo, batch, options = case["geometry"], case["batch"], case["options"]
        host.PLATFORM.capability, host.PLATFORM.sm_count = case["capability"], case["sm_count"]
        sys.modules["vllm.envs"].VLLM_BATCH_INVARIANT = options["batch_invariant"]
        if hasattr(self.ops, "is_batch_invariant"):
            self.ops.is_batch_invariant = options["batch_invariant"]
        seqs = options["padded_num_seqs"] or batch.size
        q_lens = [*batch.q_lens, *[0] * (seqs - batch.size)]
        seq_lens = [*batch.seq_lens, *[0] * (seqs - batch.size)]
        tokens = seqs * batch.max_q_len if options["padded_num_seqs"] else batch.query_tokens
        metadata = self._metadata(case, seqs, tokens)
        q = torch.empty(tokens, geo.q_heads, geo.head_dim, dtype=QUERY_TYPES[case["query"]], device=META)
        cache = torch.empty(64, 16, geo.kv_heads, geo.head_dim, dtype=torch.bfloat16, device=META)
        window = (-1, -1) if geo.window is None else (geo.window - 1, 0)
        given = {
            "q": q, "k": cache, "v": cache, "out": torch.empty_like(q, dtype=torch.bfloat16),
            "cu_seqlens_q": torch.empty(seqs + 1, device=META), "max_seqlen_q": batch.max_q_len,
            "seqused_k": torch.empty(seqs, device=META), "max_seqlen_k": batch.max_seq_len, "softmax_scale": 1.0,
            "causal": options["causal"], "window_size": window, "block_table": torch.empty(seqs, 64, device=META),
            "softcap": 0, "q_descale": None, "k_descale": None, "v_descale": None, **metadata["launch"],
        }  # fmt: skip
        if case["int4"]:
            given["kv_quant_mode"] = self.ops.KVQuantMode.INT4_PER_TOKEN_HEAD
            given["k_scale_cache"] = given["v_scale_cache"] = torch.empty(64, 16, geo.kv_heads, device=META)
        known = inspect.signature(self.ops.unified_attention).parameters
        self.log.clear()
        self.ops.unified_attention(**{name: value for name, value in given.items() if name in known})
        main, *merge = self.log
        out = {
            "kernel": main.name, "grid": list(main.grid), "merge_grid": list(merge[0].grid) if merge else None,
            "block_m": main.kwargs["BLOCK_M"], "block_q": main.kwargs["BLOCK_Q"], "tile": main.kwargs["TILE_SIZE"],
            "head_dim_padded": main.kwargs["HEAD_SIZE_PADDED"], "warps": main.kwargs.get("num_warps"),
            **metadata["seen"],
        }  # fmt: skip
        return {**out, **self._walk(main, q_lens, seq_lens, batch.size)}

    def _metadata(self, case: dict[str, Any], seqs: int, tokens: int) -> dict[str, Any]:
        geo, batch, options = case["geometry"], case["batch"], case["options"]
        sizes, drafts = options["capture_sizes"], options["num_speculative_tokens"]
        mode = host.CUDAGraphMode.FULL_AND_PIECEWISE if sizes else host.CUDAGraphMode.NONE
        model = Loose(
            get_num_attention_heads=lambda parallel: geo.q_heads,
            get_num_kv_heads=lambda parallel: options["model_kv_heads"] or geo.kv_heads,
            get_head_size=lambda: geo.head_dim,
        )
        speculative = None
        if drafts is not None:
            speculative = Loose(num_speculative_tokens=drafts, parallel_drafting=options["parallel_drafting"])
        config = Loose(
            model_config=model,
            compilation_config=Loose(cudagraph_mode=mode, cudagraph_capture_sizes=sizes and list(sizes)),
            scheduler_config=Loose(max_num_seqs=options["max_num_seqs"]),
            speculative_config=speculative,
        )
        quant = self.backend.KVQuantMode.INT4_PER_TOKEN_HEAD if case["int4"] else 0
        builder = self.backend.TritonAttentionMetadataBuilder(
            Loose(block_size=16, kv_quant_mode=quant), [], config, META
        )
        if not hasattr(builder, "seq_threshold_3D") or isinstance(builder.seq_threshold_3D, type(lambda: None)):
            return {"launch": {}, "seen": {}}  # up to 0.12 the launcher decides and allocates alone
        common = Loose(
            num_reqs=seqs, num_actual_tokens=tokens, max_query_len=batch.max_q_len, max_seq_len=batch.max_seq_len,
            seq_lens=torch.empty(seqs, device=META), causal=options["causal"],
        )  # fmt: skip
        metadata = builder.build(0, common)
        names = ("seq_threshold_3D", "num_par_softmax_segments", "softmax_segm_output", "softmax_segm_max",
                 "softmax_segm_expsum")  # fmt: skip
        launch = {name: getattr(metadata, name) for name in names}
        buffers = [launch[name] for name in names[2:]]
        return {
            "launch": launch,
            "seen": {
                "threshold": launch["seq_threshold_3D"],
                "scratch": list(buffers[1].shape),
                "scratch_bytes": sum(b.numel() * b.element_size() for b in buffers),
            },
        }

    def _walk(self, main: host.Recorder.Call, q_lens: list[int], seq_lens: list[int], real: int) -> dict[str, Any]:
        function, language = self.programs[main.name]
        starts = [sum(q_lens[:r]) for r in range(len(q_lens) + 1)]
        known = inspect.signature(function).parameters
        given = {}
        for name in known:
            value = main.kwargs.get(name, inspect.Parameter.empty)
            if name.endswith("_ptr") or isinstance(value, torch.Tensor):
                given[name] = Pointer()
            elif value is not inspect.Parameter.empty:
                given[name] = value
        given["query_start_len_ptr"], given["seq_lens_ptr"] = Pointer(starts), Pointer(seq_lens)
        block_q, kv_heads = main.kwargs["BLOCK_Q"], main.grid[1]
        segments = main.grid[2] if len(main.grid) == 3 else 1
        live: list[set[int]] = [set() for _ in range(real)]
        working: list[set[int]] = [set() for _ in range(real)]
        first_key = [10**9] * real
        programs = with_tiles = 0
        for block in range(main.grid[0]):
            for segment in range(segments):
                language.program = (block, 0, segment)
                bounds = function(**given)
                if bounds is None:
                    continue
                r = max(i for i in range(len(q_lens)) if starts[i] // block_q + i <= block)
                programs += 1
                live[r].add(segment)
                if bounds[0] < bounds[1]:
                    with_tiles += 1
                    working[r].add(segment)
                    first_key[r] = min(first_key[r], int(bounds[0]) * main.kwargs["TILE_SIZE"])
        return {
            "live_programs": programs * kv_heads, "programs_with_tiles": with_tiles * kv_heads,
            "live": [len(s) for s in live], "working": [len(s) for s in working], "first_key": first_key,
        }  # fmt: skip


def ours(case: dict[str, Any], version: str) -> dict[str, Any]:
    """Our plan in the same terms."""
    gpu = H100.with_(compute_capability=case["capability"], sm_count=case["sm_count"])
    kv = dc.KvCache("int4" if case["int4"] else "bf16", query_dtype=case["query"])
    plan = dc.plan(f"vllm-triton@{version}", case["geometry"], case["batch"], kv=kv, gpu=gpu, **case["options"])
    detail = plan.detail
    return {
        "kernel": plan.stage1.name, "grid": list(plan.stage1.grid),
        "merge_grid": list(plan.merge.grid) if plan.merge else None,
        "block_m": plan.block_rows, "block_q": detail.block_q, "tile": plan.tile_keys,
        "head_dim_padded": detail.head_dim_padded, "warps": detail.num_warps_override,
        "threshold": detail.threshold, "scratch": [detail.scratch_rows, plan.geometry.q_heads, detail.scratch_segments],
        "scratch_bytes": plan.scratch_bytes, "live_programs": plan.live_blocks,
        "programs_with_tiles": detail.programs_with_tiles, "live": list(plan.splits.live),
        "working": list(plan.splits.working), "first_key": list(detail.first_visited_key),
    }  # fmt: skip


def unified_case(rng: random.Random, version: str) -> dict[str, Any]:
    """A random scenario that this release can run and whose programs can all be walked."""
    rules = TRITON.version(version).rules
    while True:
        kv_heads = rng.choice([1, 1, 2, 3, 4, 5, 7, 8, 10, 12, 16, 24, 32, 40, 64])
        group = rng.choice([1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 17, 20, 28, 31, 48, 71, 112, 128])
        batch = rng.choice([1, 1, 2, 3, 4, 7, 8, 9, 12, 16, 17, 24, 33, 40, 64, 127, 129, rng.randint(1, 200)])
        longest_q = rng.choice([1, 1, 1, 2, 3, 4, 5, 7, 8, 9, 12])
        q_lens = [longest_q] * batch
        if longest_q > 1 and rng.random() < 0.3:
            q_lens = [rng.randint(1, longest_q) for _ in range(batch)]
        scale = rng.choice([4, 30, 260, 1100, 5000, 33_000, 300_000])
        seq_lens = [q + rng.randint(0, scale) for q in q_lens]
        if rng.random() < 0.4:
            seq_lens = [max(seq_lens)] * batch
        drafts = rng.choice([None, None, 0, 1, longest_q - 1, 7, 12])
        int4 = rules.int4_launcher and rng.random() < 0.08
        sizes = None
        if rng.random() < 0.6:
            sizes = capture_sizes(rng.choice([5, 16, 100, 256]), rng.choice([100, 2048, 8192]), drafts or 0)
            if rng.random() < 0.2:
                sizes = tuple(sorted(rng.sample(range(1, 150), 4)))
        uniform = len(set(q_lens)) == 1
        case = {
            "geometry": dc.Geometry(
                kv_heads * group, kv_heads, rng.choice([64, 80, 96, 128, 128, 192, 256, 256, 512]),
                window=rng.choice([None, None, None, 1, 128, 512, 1024, 1024, 4096, 32768]),
            ),
            "batch": dc.Batch(seq_lens, q_lens),
            "capability": rng.choice([(8, 0), (8, 9), (9, 0), (9, 0), (10, 0), (10, 3), (12, 0), (12, 0), (12, 1)]),
            "sm_count": rng.choice([36, 48, 70, 108, 132, 148, 160, 170, 188]),
            "query": rng.choice(["bf16", "bf16", "bf16", "fp8", "fp32"]) if not int4 else "bf16",
            "int4": int4,
            "options": {
                "capture_sizes": sizes,
                "max_num_seqs": rng.choice([4, 8, 64, 100, 256, 1024]),
                "num_speculative_tokens": drafts,
                "parallel_drafting": rng.random() < 0.2,
                "batch_invariant": rng.random() < 0.08,
                "padded_num_seqs": batch + rng.randint(0, 9) if uniform and rng.random() < 0.25 else None,
                "model_kv_heads": rng.choice([None, None, None, 1, 4, 8]),
                "causal": not (rules.non_causal and not int4 and rng.random() < 0.1),
            },
        }  # fmt: skip
        plan = ours(case, version)
        programs = plan["grid"][0] * (plan["grid"][2] if len(plan["grid"]) == 3 else 1)
        if programs <= MOST_PROGRAMS:
            return case


# --- capture sizes ---


def capture_case(rng: random.Random) -> dict[str, Any]:
    """Settings of a random server; user lists and maxima are consistent, as the engine demands."""
    sizes = None
    if rng.random() < 0.15:
        sizes = sorted(rng.sample(range(1, 600), rng.randint(1, 8)), key=lambda _: rng.random())
    return {
        "max_num_seqs": rng.choice([1, 2, 3, 5, 8, 12, 16, 24, 42, 64, 100, 128, 200, 256, 300, 512, 700, 1024]),
        "max_num_batched_tokens": rng.choice([1, 2, 7, 16, 100, 130, 256, 300, 512, 600, 2048, 8192, 16384]),
        "num_speculative_tokens": rng.choice([0, 0, 0, 1, 2, 3, 5, 7, 15, 16]),
        "performance_mode": rng.choice(["balanced", "balanced", "interactivity", "throughput"]),
        "user_capture_sizes": sizes,
        "user_max_capture_size": rng.choice([8, 16, 33, 64, 100, 255, 256, 1024, 2048])
        if sizes is None and rng.random() < 0.15
        else None,
        "capability": rng.choice([(8, 0), (9, 0), (10, 0), (10, 3), (12, 0)]),
    }


class CaptureSizes:
    """The two methods that make the list, run on stand-in configuration objects."""

    METHOD = "_set_cudagraph_sizes"

    def __init__(self, source: Path) -> None:
        make = host.definition(source / "vllm/config/vllm.py", self.METHOD)
        adjust = host.definition(source / "vllm/config/compilation.py", "adjust_cudagraph_sizes_for_spec_decode")
        names = {
            "CUDAGraphMode": host.CUDAGraphMode, "logger": host.Anything(),
            "round_up": lambda x, y: -(-x // y) * y,
        }  # fmt: skip
        self.make = host.run([make], names)[self.METHOD] if make else None
        self.adjust = host.run([adjust], names)[adjust.name] if adjust else None

    def list(self, case: dict[str, Any]) -> list[list[int]]:
        """The list as made and, with speculation, as the V1 runner rounds it."""
        host.PLATFORM.capability = case["capability"]
        drafts = case["num_speculative_tokens"]
        compilation = Loose(
            cudagraph_mode=host.CUDAGraphMode.FULL_AND_PIECEWISE,
            cudagraph_capture_sizes=case["user_capture_sizes"],
            max_cudagraph_capture_size=case["user_max_capture_size"],
            post_init_cudagraph_sizes=lambda: None,
            compute_bs_to_padded_graph_size=lambda: None,
            pass_config=Loose(enable_sp=False),
        )
        speculative = None
        if drafts:
            speculative = Loose(num_speculative_tokens=drafts, uses_dynamic_speculative_decoding=lambda: False)
        config = Loose(
            model_config=Loose(enforce_eager=False),
            compilation_config=compilation,
            scheduler_config=Loose(
                max_num_seqs=case["max_num_seqs"], max_num_batched_tokens=case["max_num_batched_tokens"]
            ),
            parallel_config=Loose(tensor_parallel_size=1),
            speculative_config=speculative,
            num_speculative_tokens=drafts,
            uniform_decode_query_len=1 + drafts,
            performance_mode=case["performance_mode"],
        )
        self.make(config)
        lists = [list(compilation.cudagraph_capture_sizes)]
        if drafts and self.adjust:
            more = [1] if len(inspect.signature(self.adjust).parameters) == 3 else []
            try:
                self.adjust(compilation, 1 + drafts, *more)
                lists.append(list(compilation.cudagraph_capture_sizes))
            except ValueError:
                lists.append([])
        return lists


def our_capture_sizes(case: dict[str, Any], version: str, rounded: bool) -> list[list[int]]:
    """Our lists for the same server; [] where it refuses to start."""
    rules = TRITON.version(version).rules.capture
    settings = {name: value for name, value in case.items() if name != "capability"}
    sizes = capture_sizes(**settings, is_data_center_blackwell=case["capability"][0] == 10, rules=rules)
    lists = [list(sizes)]
    if rounded:
        try:
            lists.append(list(round_for_drafts(sizes, 1 + case["num_speculative_tokens"])))
        except dc.GateError:
            lists.append([])
    return lists


# --- MLA ---


class MlaAttention:
    """vLLM's Triton MLA decode, its kernels replaced by recorders."""

    def __init__(self) -> None:
        self.backend = host.load("vllm.v1.attention.backends.mla.triton_mla")
        self.ops = host.load(
            "vllm.v1.attention.ops.triton_decode_attention", "vllm.attention.ops.triton_decode_attention"
        )
        self.log: list[host.Recorder.Call] = []
        for name in ("_fwd_kernel_stage1", "_fwd_grouped_kernel_stage1", "_fwd_kernel_stage2"):
            setattr(self.ops, name, host.Recorder(name, self.log))
        impl = self.backend.TritonMLAImpl
        self.forward = vars(impl).get("forward_mqa") or vars(impl)["_forward_decode"]

    def launch(self, case: dict[str, Any]) -> dict[str, Any]:
        """What vLLM launches for a case."""
        host.PLATFORM.sm_count = case["sm_count"]
        sys.modules["vllm.envs"].VLLM_BATCH_INVARIANT = case["batch_invariant"]
        seq_lens = torch.tensor(case["seq_lens"], dtype=torch.int32)
        rows = len(case["seq_lens"]) * case["q_len"]
        q = torch.empty(rows, case["heads"], 576, dtype=torch.bfloat16, device=META)
        cache = torch.empty(8, 16, 576, dtype=torch.bfloat16, device=META)
        decode = Loose(block_table=torch.zeros(len(seq_lens), 8, dtype=torch.int32), seq_lens=seq_lens)
        metadata = Loose(
            decode=decode, max_seq_len=case["max_seq_len"], causal=True, num_decodes=len(seq_lens),
            num_decode_tokens=rows,
        )  # fmt: skip
        layer = Loose(_k_scale=torch.ones(1), _q_scale=torch.ones(1))
        impl = Loose(
            kv_lora_rank=512, scale=1.0, dcp_world_size=1, _sm_count=case["sm_count"], num_heads=case["heads"],
            kv_cache_dtype="auto",
        )  # fmt: skip
        self.log.clear()
        self.forward(impl, q, cache, metadata, layer)
        stage1, stage2 = self.log
        extents = stage1.args[5].tolist()
        splits, tiles = stage1.grid[2], stage1.grid[1]
        pairs = sum(
            min(per * s + per, n) > per * s for n in extents for per in [-(-n // splits)] for s in range(splits)
        )
        return {
            "kernel": stage1.name, "grid": list(stage1.grid), "merge_grid": list(stage2.grid),
            "tile": stage1.kwargs["BLOCK_N"], "splits": stage1.kwargs["NUM_KV_SPLITS"],
            "scratch_bytes": stage1.args[6].numel() * 4, "live_programs": pairs * tiles,
            "warps": stage1.kwargs["num_warps"],
        }  # fmt: skip


def mla_case(rng: random.Random, version: str) -> dict[str, Any]:
    """A random MLA decode step that this release takes."""
    rules = MLA.version(version).rules
    q_len = rng.choice([1, 1, 1, 2, 4, 6]) if rules.multi_token else 1
    top = rng.choice([8, 600, 3000, 40_000, 300_000])
    seq_lens = [q_len + rng.randint(0, top) for _ in range(rng.choice([1, 1, 2, 5, 16, 40]))]
    captured = rng.choice([None, None, 4096, 163_840])
    return {
        "heads": rng.choice([1, 8, 16, 20, 32, 64, 128]),
        "seq_lens": seq_lens,
        "q_len": q_len,
        "captured_max_len": captured,
        "max_seq_len": captured or max(seq_lens),
        "batch_invariant": rng.random() < 0.1,
        "sm_count": rng.choice([48, 108, 132, 148, 188]),
    }


def our_mla(case: dict[str, Any], version: str) -> dict[str, Any]:
    """Our plan in the same terms."""
    plan = dc.plan(
        f"vllm-triton-mla@{version}",
        dc.Geometry(case["heads"], 1, 576, 512, mla=True),
        dc.Batch(case["seq_lens"], case["q_len"]),
        gpu=H100.with_(sm_count=case["sm_count"]),
        batch_invariant=case["batch_invariant"],
        captured_max_len=case["captured_max_len"],
    )
    return {
        "kernel": plan.stage1.name, "grid": list(plan.stage1.grid), "merge_grid": list(plan.merge.grid),
        "tile": plan.tile_keys, "splits": plan.splits.launched, "scratch_bytes": plan.scratch_bytes,
        "live_programs": plan.live_blocks, "warps": plan.stage1.threads // 32,
    }  # fmt: skip


# --- the run ---


def compare(name: str, cases: list[Any], theirs: Any, mine: Any, show: int) -> int:
    """Print how many cases agree in every field; returns how many do not."""
    wrong = 0
    paths: Counter[str] = Counter()
    for case in cases:
        recorded, planned = theirs(case), mine(case)
        if isinstance(recorded, dict):
            paths[f"{recorded['kernel']} {len(recorded['grid'])}D grid"] += 1
            planned = {key: planned[key] for key in recorded}
        if recorded != planned:
            wrong += 1
            if wrong <= show:
                print(f"DIFFERS {name}: {case}")
                if isinstance(recorded, dict):
                    for key in recorded:
                        if recorded[key] != planned[key]:
                            print(f"    {key}: vLLM {recorded[key]}, ours {planned[key]}")
                else:
                    print(f"    vLLM {recorded}\n    ours {planned}")
    what = "; ".join(f"{count} {path}" for path, count in sorted(paths.items()))
    print(f"{name}: {len(cases) - wrong} of {len(cases)} agree" + (f" ({what})" if what else ""))
    return wrong


def main() -> int:
    """1 when anything differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--version", default=TRITON.versions[0].name, help="vLLM release (default: %(default)s)")
    parser.add_argument("--cases", type=int, default=500, help="scenarios of each part (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--show", type=int, default=3, help="differences to print of each part")
    parser.add_argument("--cache", type=Path, default=ROOT / ".parity", help="folder for the wheel's files")
    args = parser.parse_args()
    source = source_of(args.version, args.cache)
    host.install(source)
    version = args.version
    print(
        f"vLLM {version}: policies vllm-triton {TRITON.version(version).name}, vllm-triton-mla "
        f"{MLA.version(version).name}; seed {args.seed}"
    )
    rng = random.Random(args.seed)
    wrong = 0

    unified = UnifiedAttention()
    cases = [unified_case(rng, version) for _ in range(args.cases)]
    wrong += compare("vllm-triton", cases, unified.launch, lambda case: ours(case, version), args.show)

    maker = CaptureSizes(source)
    servers = [capture_case(rng) for _ in range(args.cases)]
    if TRITON.version(version).rules.gates_on_grid:
        print("capture sizes: not compared, no launch of this release depends on them")
    elif maker.make:
        wrong += compare(
            "capture sizes",
            servers,
            maker.list,
            lambda case: our_capture_sizes(case, version, bool(maker.adjust and case["num_speculative_tokens"])),
            args.show,
        )
    else:
        raise SystemExit(f"{maker.METHOD} is gone from vllm/config/vllm.py: read how this release makes the list")

    mla = MlaAttention()
    steps = [mla_case(rng, version) for _ in range(args.cases)]
    wrong += compare("vllm-triton-mla", steps, mla.launch, lambda case: our_mla(case, version), args.show)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
