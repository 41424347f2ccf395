"""What a user says about a traced run, by option name, and the audit of traces for it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from decodecalc.batch import Batch
from decodecalc.engines import engine_names, load_policies, split_version
from decodecalc.errors import InputError, check_type
from decodecalc.request import resolve_gpu, resolve_kv, resolve_layers, resolve_opts, said
from decodecalc.trace.audit import Audit, audit_traces
from decodecalc.trace.candidates import Known
from decodecalc.units import parse_counts


def audit(traces: str | os.PathLike[str] | Sequence[str | os.PathLike[str]], **words: Any) -> Audit:
    """What `decodecalc audit` finds in the profiler traces of one run (one file, or one for each rank).

    words: what ran, as far as it is known, by the names of the command's options: model, tp, seq_lens or batch with
    context, gpu, engine, kv_dtype, … Lists may be given as lists. Raises InputError for a file that is no trace and for
    words that make no sense.
    """
    paths = [traces] if isinstance(traces, (str, os.PathLike)) else traces
    check_type("traces", paths, Sequence, "the names of trace files")
    known, _ = known_of(said(words))
    return audit_traces([os.fspath(path) for path in paths], known)


def known_of(values: dict[str, Any]) -> tuple[Known, dict[str, Any]]:
    """What the user says about the run, and the same for json. Nothing is assumed here: a default would be held against
    the trace."""
    layers = None
    if any(values[name] is not None for name in ("model", "q_heads", "kv_heads", "head_dim", "head_dim_v", "window")):
        layers = resolve_layers(values)
    elif values["tp"] != 1 or values["mla"]:
        raise InputError("--tp and --mla describe a model; give --model or --q-heads with them")
    if values["seq_lens"] is not None and (values["batch"] is not None or values["context"] is not None):
        raise InputError("--seq-lens describes a whole batch and cannot be combined with --batch or --context")
    q_lens = parse_counts(values["q_len"], "--q-len")
    ragged = None
    if values["seq_lens"] is not None:
        ragged = Batch(parse_counts(values["seq_lens"], "--seq-lens"), q_lens[0] if len(q_lens) == 1 else q_lens)
    elif len(q_lens) != 1:
        raise InputError("--q-len must be one number here, or one number for each of --seq-lens")
    names = [part.strip() for part in (values["engine"] or "all").split(",") if part.strip()]
    everyone = "all" in [name.lower() for name in names]
    if not everyone:
        load_policies(names)  # unknown names and versions fail before a long file is read
    options: dict[str, Any] = {}
    if values["opts"] or values["batch_invariant"]:
        options = resolve_opts(values["opts"], values["batch_invariant"], list(engine_names()) if everyone else names)
    gpu = None if values["gpu"] is None else resolve_gpu(values["gpu"])
    kv = resolve_kv(values, layers.model if layers else None, gpu)
    known = Known(
        layer_groups=layers.layer_groups if layers else (),
        model_kv_heads=layers.model_kv_heads if layers else None,
        whole_model=values["model"] is not None,
        requests=_counts(values["batch"], "--batch"),
        contexts=_counts(values["context"], "--context"),
        ragged=ragged,
        q_len=q_lens[0],
        kv=kv,
        gpu=gpu,
        engines=None if everyone else tuple(split_version(name) for name in names),
        options=options,
        model=layers.model if layers and values["model"] is not None else None,
    )
    inputs = {
        "model": layers.label if layers else None,
        "tp": values["tp"],
        "batch": list(known.requests),
        "context": list(known.contexts),
        "seq_lens": list(ragged.seq_lens) if ragged else None,
        "q_len": list(q_lens),
        "kv_dtype": kv.dtype,
        "page_size": kv.page_size,
        "engines": ["all"] if everyone else names,
        "options": options,
    }
    return known, inputs


def _counts(text: str | None, name: str) -> tuple[int, ...]:
    found = tuple(parse_counts(text, name)) if text is not None else ()
    if found and min(found) < 1:
        raise InputError(f"{name} must be at least 1, not {min(found)}")
    return found
