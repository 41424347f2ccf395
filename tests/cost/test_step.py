"""The floor of a whole step."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

import decodecalc as dc
from decodecalc.cost.load import load_calibration
from decodecalc.cost.step import COLLECTIVE_LATENCY_S, Step, step_floor, sustained_bytes_per_s
from decodecalc.errors import InputError

H200 = dc.load_gpu("h200-sxm")


def test_a_dense_model_reads_its_weights_once_a_step():
    """Llama 3.1 70B on one rank reads all but its embedding at the sustained rate, whatever the batch."""
    model = dc.load_model("llama3.1-70b")
    one, many = (step_floor(model, batch=batch, gpu=H200) for batch in (1, 64))
    read = 2 * (model.weights.params - 8192 * 128256)
    assert one.weight_bytes == many.weight_bytes == read
    assert one.weights_s == read / sustained_bytes_per_s(load_calibration(gpu=H200), H200)
    assert one.collectives == 0
    assert many.kv_write_bytes == 64 * 327680


def test_ranks_exchange_twice_a_layer():
    """Eight ranks of 80 layers exchange 160 times, a ring's share of the activations each time."""
    floor = step_floor(dc.load_model("llama3.1-70b"), batch=4, gpu=H200, tp=8)
    assert floor.collectives == 160
    assert floor.collective_bytes == 160 * 4 * 8192 * 2 * 2 * 7 / 8
    assert floor.exchange_s > 160 * COLLECTIVE_LATENCY_S


def test_states_are_read_and_written():
    """A hybrid's states move twice in every step, for every sequence."""
    model = dc.load_model("qwen3-next-80b-a3b")
    floor = step_floor(model, batch=16, gpu=H200)
    assert floor.state_bytes == 2 * 16 * model.states.bytes_per_sequence()
    assert floor.states_s > 0


@given(batch=st.integers(1, 512))
def test_the_floor_grows_with_the_batch_and_stays_below_reading_everything(batch):
    """More sequences read more experts, never more than there are."""
    model = dc.load_model("gpt-oss-120b")
    floor, larger = (step_floor(model, batch=b, gpu=H200) for b in (batch, batch + 1))
    assert floor.total_s < larger.total_s
    assert larger.weight_bytes < model.weights.rank_bytes()


def test_a_share_is_a_range_below_one():
    """Attention's share lies between zero and one and shrinks as the rest takes longer than its floor."""
    model = dc.load_model("llama3.1-70b")
    attention = dc.token_time(model, dc.Batch.uniform(16, 8192), tp=8, gpu=H200)
    step = Step(attention=attention, floor=step_floor(model, batch=16, gpu=H200, tp=8))
    assert 0 < step.share(2.0) < step.share(1.0) < step.most_share < 1
    assert step.least_s == attention.low_s + step.floor.total_s


def test_weights_that_are_not_known_have_no_floor():
    """A model without shapes is refused by name."""
    with pytest.raises(InputError, match="deepseek-v4-flash"):
        step_floor(dc.load_model("deepseek-v4-flash"), batch=1, gpu=H200)
