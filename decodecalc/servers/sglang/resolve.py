"""SGLang's answer to one question: its arguments resolved in its own order, then the backend built."""

from __future__ import annotations

from typing import Any

from decodecalc.launch.policy import version_key
from decodecalc.servers.context import SGLANG_FIRST, sglang_backends
from decodecalc.servers.device import device_of
from decodecalc.servers.question import Question
from decodecalc.servers.resolution import CLI, START, Resolution, ServerRefusal
from decodecalc.servers.sglang import checks
from decodecalc.servers.sglang.defaults import apply_override, generic_default
from decodecalc.servers.sglang.engine import kv_splits, plan_of, uses_tensor_cores
from decodecalc.servers.sglang.rules import SglangRelease, release_of
from decodecalc.servers.sglang.start import Start, start
from decodecalc.servers.sglang.state import RefusedError, ServerState

SERVER = "sglang"
_MIB = 1 << 20


def resolve(version: str | None, question: Question) -> Resolution:
    """The decode backend that this release of SGLang runs. A refusal is part of the answer, not an exception."""
    release = release_of(version)
    asked = version or release.name
    settings = question.sglang()
    state = ServerState(
        question=question,
        settings=settings,
        rules=release.rules,
        device=device_of(question.gpu),
        attention=question.backend,
        prefill=settings.prefill_attention_backend,
        decode=settings.decode_attention_backend,
        page=question.page_size,
        kv_dtype=question.kv_cache_dtype,
    )
    forced = question.backend is not None or settings.decode_attention_backend is not None
    base: dict[str, Any] = {
        "server": SERVER,
        "version": asked,
        "rules_version": release.name,
        "source": release.source,
        "forced": forced,
    }
    try:
        resolve_arguments(state)
    except RefusedError as refused:
        refusal = ServerRefusal(stage=refused.stage, error=refused.error, reasons=(refused.words,), code=refused.code)
        return Resolution(**base, backend=None, refused=refusal, notes=_notes(state, release, asked))
    return _answer(state, release, base)


def resolve_arguments(state: ServerState) -> None:
    """Every step of SGLang's resolution that touches attention, in its order; RefusedError where one raises."""
    checks.check_choices(state)
    checks.apply_aliases(state)
    apply_override(state)
    checks.resolve_dsa(state)
    checks.check_architecture(state)
    checks.check_state_cache(state)
    if state.rules.deterministic_first:
        checks.resolve_deterministic(state)
    if state.prefill is not None and state.prefill == state.decode:
        state.choose(state.prefill, "both phases were asked for by this name")
    if state.attention is None:
        state.choose(generic_default(state), "the default for this kind of attention on this device")
    checks.check_flex(state)
    checks.impose_latent_pages(state)
    checks.fall_back_from_fa3(state)
    checks.impose_fa4_page(state)
    if state.page is None:
        state.page = 1
    checks.check_drafts(state)
    if not state.rules.deterministic_first:
        checks.resolve_deterministic(state)


def graph_max_batch(state: ServerState) -> int:
    """The largest captured batch, from the GPU's memory and the ranks (`handle_gpu_memory_settings`)."""
    capacity = state.question.gpu.capacity_bytes
    if capacity is None:
        return 160
    mib, many = capacity / _MIB, state.settings.tp_size >= 4
    if mib < 20 * 1024:
        return 8
    if mib < 35 * 1024:
        return state.rules.small_gpu_graphs[many]
    if mib < 60 * 1024:
        return (32, 160)[many]
    return (256, 512)[many] if mib < 160 * 1024 else 512


def _without_dcp(version: str) -> ServerRefusal | None:
    """The refusal of a release that has no `--dcp-size`."""
    if version_key(version) >= SGLANG_FIRST:
        return None
    words = "unrecognized arguments: --dcp-size"
    return ServerRefusal(stage=CLI, error="SystemExit", reasons=(words,), code="unknown_flag")


def _note_dcp(state: ServerState, decode: str, version: str) -> None:
    """What a user should know of a backend whose keys are divided over ranks."""
    if decode not in sglang_backends(version):
        state.notes.append(
            f"SGLang {version} has no code that divides the keys of a request over ranks for the backend {decode}."
        )
    elif not state.has_mla:
        state.notes.append(
            "SGLang adds the ranks' outputs of these layers by an all-reduce, which is priced as a reduce-scatter."
        )


def _notes(state: ServerState, release: SglangRelease, asked: str) -> tuple[str, ...]:
    if release.recorded:
        return tuple(state.notes)
    told = f"SGLang {asked} was read in part: only the releases 0.5.10.post1 and 0.5.23 are checked against recordings."
    return (*state.notes, told)


def _detail(state: ServerState, built: Start, decode: str) -> dict[str, Any]:
    no_graphs = state.attention in ("torch_native", "flex_attention")
    detail: dict[str, Any] = {
        "attention_backend": state.attention,
        "prefill_backend": state.phases()[0],
        "kv_cache_dtype": state.kv_dtype,
        "triton_attention_num_kv_splits": kv_splits(state),
        "triton_attention_split_tile_size": state.settings.split_tile_size,
        "disable_radix_cache": state.disable_radix,
        "decode_cuda_graph": "disabled" if no_graphs else "full",
        "cuda_graph_max_bs": graph_max_batch(state),
        "backend_class": built.cls,
        "backend_arguments": dict(built.arguments),
    }
    if decode == "flashinfer" and not state.has_mla:
        detail["use_tensor_cores"] = uses_tensor_cores(state)
    if decode in ("dsa", "nsa"):
        detail[f"{state.rules.dsa_field}_decode_backend"] = state.dsa_decode
        detail[f"{state.rules.dsa_field}_prefill_backend"] = state.dsa_prefill
    return detail


def _answer(state: ServerState, release: SglangRelease, base: dict[str, Any]) -> Resolution:
    decode = state.phases()[1]
    assert decode is not None  # the generic default has filled it in
    built = start(state, decode)
    refused = None
    if built.error is not None:
        refused = ServerRefusal(
            stage=START, error=built.error[0], reasons=(built.error[1],), code="backend_does_not_start"
        )
    if refused is None and state.question.layer.context_ranks > 1:
        refused = _without_dcp(base["version"])
        _note_dcp(state, decode, base["version"])
    plan = plan_of(state, decode)
    detail = _detail(state, built, decode)
    return Resolution(
        **base,
        backend=decode,
        refused=refused,
        kernel=None if refused else plan.kernel,
        page_size=state.page,
        kernel_page_size=state.page,
        cuda_graphs=detail["decode_cuda_graph"],
        engine=None if refused else plan.engine,
        engine_version=base["version"] if plan.takes_server_version else plan.engine_version,
        options=plan.options,
        detail=detail,
        notes=(*_notes(state, release, base["version"]), *plan.notes),
    )
