"""The benchmark beside every peer: what it launches of ours, and what it says of times."""

from __future__ import annotations

import pytest

from benchmarks.kernels_random import draw, markdown
from decodecalc.geometry import Geometry
from decodecalc.kvcache import KvCache


def test_the_drawn_steps_follow_the_seed_and_are_partly_ragged():
    first, again, other = (list(draw(seed, 40)) for seed in (7, 7, 8))
    assert [s.to_dict() for s in first] == [s.to_dict() for s in again]
    assert [s.to_dict() for s in first] != [s.to_dict() for s in other]
    assert 4 <= sum(step.ragged for step in first) <= 25


def test_a_step_is_lost_where_a_peer_is_more_than_a_hundredth_faster():
    steps = list(draw(7, 4))
    times = [(10.0, 9.95), (10.0, 9.8), (10.0, 15.0), ("no memory", 3.0)]
    run = {
        "cells": [{**s.to_dict(), "us": {"bundled": a, "peer": b, "other": 99.0}} for s, (a, b) in zip(steps, times)]
    }
    said = markdown(run, "x")
    assert "3 steps, 1 lost" in said
    assert said.count("| peer |") == 3


@pytest.mark.interpreter
@pytest.mark.parametrize("lens", [(70, 70), (150, 3, 33)], ids=str)
def test_our_side_runs_the_chosen_launch(lens):
    import torch

    from benchmarks.kernels_random import prepare_ours
    from decodecalc.batch import Batch
    from decodecalc.verify.own.runner import OwnStep
    from decodecalc.verify.run.inputs import make_inputs
    from decodecalc_kernels import decode_attention_reference

    if torch.cuda.is_available():
        pytest.skip("for the interpreter")
    geo, kv, batch = Geometry(4, 2, 32), KvCache("bf16", 16), Batch(lens)
    inputs = make_inputs(geo, batch, kv, "cpu", 2, 0)
    out = torch.full(inputs.out_shape, float("nan"), dtype=inputs.q.dtype)
    step = OwnStep(geometry=geo, batch=batch, kv=kv, options=None, settled=None, inputs=inputs, out=out)
    ready = prepare_ours(step)
    if ready.once is not None:
        ready.once()
    ready.layer(1)
    keys, values = inputs.cache(1)
    expected, _ = decode_attention_reference(inputs.q, keys, values, seq_lens=inputs.seq_lens, page_table=inputs.table)
    assert float((out.double() - expected).norm() / expected.norm()) < 1.2e-2
