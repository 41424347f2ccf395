"""vLLM's answer to one question."""

from __future__ import annotations

from decodecalc.servers.device import device_of
from decodecalc.servers.question import Question
from decodecalc.servers.resolution import ARGUMENTS, SELECTION, START, BackendCandidate, Resolution, ServerRefusal
from decodecalc.servers.vllm.ask import Ask
from decodecalc.servers.vllm.engine import plan_of
from decodecalc.servers.vllm.lists import candidates
from decodecalc.servers.vllm.pages import kernel_page, manager_page
from decodecalc.servers.vllm.rules import VllmRelease, release_of

SERVER = "vllm"


def resolve(version: str | None, question: Question) -> Resolution:
    """The backend that this release of vLLM runs for the layer. A refusal is part of the answer, not an exception."""
    release = release_of(version)
    ask = Ask(question=question, rules=release.rules, device=device_of(question.gpu), settings=question.vllm())
    asked = version or release.name
    found = tuple(release.backends[name].against(name, ask) for name in candidates(ask))
    forced = _forced(ask)
    if forced is None:
        chosen = next((candidate.name for candidate in found if candidate.valid), None)
        if chosen is None:
            return _refused(release, asked, found, _refusal(SELECTION, ("no valid backend",), "no_valid_backend"))
        return _answer(release, asked, ask, chosen, found, forced=False)
    if forced not in release.backends:
        words = f"{forced} is not a backend of vLLM {asked}"
        return _refused(release, asked, (), _refusal(ARGUMENTS, (words,), "unknown_backend", "ValidationError"), True)
    alone = release.backends[forced].against(forced, ask)
    if not alone.valid:
        words_of = tuple(reason.words for reason in alone.reasons)
        return _refused(release, asked, found, _refusal(SELECTION, words_of, "backend_not_valid"), True)
    return _answer(release, asked, ask, forced, found, forced=True)


def _forced(ask: Ask) -> str | None:
    """The backend that the user named: for the layer's kind of cache group, else for all layers."""
    layer = ask.layer
    if layer.mla:
        kind = "sliding_window_mla" if layer.window is not None else "mla_attention"
    else:
        kind = "sliding_window" if layer.window is not None else "full_attention"
    name = ask.settings.backend_per_kind.get(kind, ask.question.backend)
    return None if name is None or name.lower() == "auto" else name.upper()


def _refusal(stage: str, reasons: tuple[str, ...], code: str, error: str = "ValueError") -> ServerRefusal:
    return ServerRefusal(stage=stage, error=error, reasons=reasons, code=code)


def _refused(
    release: VllmRelease,
    version: str,
    found: tuple[BackendCandidate, ...],
    refusal: ServerRefusal,
    forced: bool = False,
) -> Resolution:
    return Resolution(
        server=SERVER,
        version=version,
        rules_version=release.name,
        source=release.source,
        backend=None,
        forced=forced,
        candidates=found,
        refused=refusal,
    )


def _answer(
    release: VllmRelease, version: str, ask: Ask, backend: str, found: tuple[BackendCandidate, ...], *, forced: bool
) -> Resolution:
    accepts = release.backends[backend]
    page = manager_page(accepts, ask)
    seen = None if page is None else kernel_page(accepts, ask, page)
    plan = plan_of(backend, ask, seen or 0)
    refused = None
    if plan.error is not None:
        error, words = plan.error
        refused = _refusal(START, (words,), "metadata_builder_fails", error)
    elif ask.layer.context_ranks > 1 and backend not in ask.rules.dcp_backends:
        words = (
            "Decode Context Parallelism (DCP) requires attention implementations to return the softmax LSE during "
            f"decode, but {backend} does not"
        )
        refused = _refusal(START, (words,), "dcp_needs_lse", "AssertionError")
    return Resolution(
        server=SERVER,
        version=version,
        rules_version=release.name,
        source=release.source,
        backend=backend,
        forced=forced,
        candidates=found,
        refused=refused,
        kernel=None if plan.error else plan.kernel,
        page_size=page,
        kernel_page_size=seen,
        query_dtype=None if plan.error else plan.query_dtype,
        cuda_graphs=accepts.cuda_graphs(ask),
        engine=None if plan.error else plan.engine,
        engine_version=version if plan.takes_server_version else plan.engine_version,
        options=plan.options,
        detail={} if plan.error else plan.detail,
        notes=plan.notes,
    )
