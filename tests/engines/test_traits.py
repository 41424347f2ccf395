"""What every engine's traits promise."""

from __future__ import annotations

from typing import Any

import pytest

from decodecalc.engines import engine_names, load_policy
from decodecalc.launch.traits import COUNT, COUNTS, IRREGULAR, SIZE, SIZES
from decodecalc.sweeps.axes import Axes, families

every_engine = pytest.mark.parametrize("engine", engine_names())


@every_engine
def test_traits_name_options_that_the_policy_has(engine: str) -> None:
    """The options that stand for a split setting, for the reproducible mode and for a size by hand exist."""
    policy = load_policy(engine)
    traits = policy.traits
    named = [traits.by_hand_option, traits.count_option]
    named += [traits.split_setting.option] if traits.split_setting else []
    named += [traits.invariant_option[0]] if traits.invariant_option else []
    assert {name for name in named if name} <= set(policy.option_names())


@every_engine
def test_a_split_setting_holds_the_number_that_a_user_types(engine: str) -> None:
    """The text names exactly one of the two quantities, and formatting it leaves no placeholder behind."""
    setting = load_policy(engine).traits.split_setting
    if setting is not None:
        assert ("{splits}" in setting.text) != setting.in_pages
        text = setting.text.format(splits=123, pages=456)
        assert ("456" if setting.in_pages else "123") in text


@every_engine
def test_partitions_are_one_of_the_five_rules(engine: str) -> None:
    """The bundled kernel knows how to read each rule."""
    assert load_policy(engine).traits.partition.rule in (COUNT, COUNTS, SIZE, SIZES, IRREGULAR)


@pytest.mark.parametrize(
    ("engine", "options", "expected"),
    [
        ("sglang-triton", {"max_kv_splits_arg": 4, "window": 1, "num_splits": 2}, {"max_kv_splits_arg": 4}),
        ("vllm-triton", {"model_kv_heads": 1}, {"model_kv_heads": 1}),
        ("vllm-triton", {}, {"model_kv_heads": 8}),
        ("flash-decoding", {"model_kv_heads": 3}, {}),
    ],
)
def test_an_engine_takes_the_options_it_has(engine: str, options: dict[str, Any], expected: dict[str, Any]) -> None:
    """Others are left out; the model-wide head count goes to engines that ask for it, unless it was given by hand."""
    assert load_policy(engine).own_options(options, model_kv_heads=8) == expected


def test_a_sweep_sets_the_count_of_engines_that_take_one() -> None:
    """FlashInfer takes pages instead of a count and vLLM's Triton kernel takes neither: each has one family only."""
    import decodecalc as dc

    names = ("sglang-triton", "flex-decoding", "flash-decoding", "flashinfer", "vllm-triton")
    axes = Axes(
        models=(dc.load_model("llama3-8b"),), tps=(1,), gpus=(dc.load_gpu("h200"),), engines=names, batches=(1,),
        contexts=(4096,), splits=(2, 8),
    )  # fmt: skip
    counts = {name: [f.splits for f in families(axes)[0] if f.policy.name == name] for name in names}
    assert counts == {
        "sglang-triton": [2, 8], "flex-decoding": [2, 8], "flash-decoding": [2, 8], "flashinfer": [None],
        "vllm-triton": [None],
    }  # fmt: skip
