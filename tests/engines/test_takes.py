"""What engines say they take is what they plan, for every engine, version, cache type and architecture."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lawful import MLA, laws

import decodecalc as dc
from decodecalc.engines import engine_names, load_policy
from decodecalc.errors import GateError
from decodecalc.geometry import Gather, Geometry
from decodecalc.gpus import Gpu, load_gpu
from decodecalc.kvcache import DTYPE_BYTES, KvCache
from decodecalc.launch.takes import Numbers, Takes, only, runs_on

# One device of every architecture that some rule tells apart, and one that nobody has heard of.
GPUS = [
    load_gpu(name)
    for name in (
        "v100-sxm", "t4", "a100-sxm", "rtx3090", "jetson-orin-64gb", "l4", "h100-sxm", "b200-sxm", "b300-sxm",
        "jetson-thor", "rtx5090", "gb10", "mi210", "mi300x", "mi355x", "intel-max-1550", "gaudi3",
    )
]  # fmt: skip
LATENT = Geometry(16, 1, 576, 512, mla=True)
LAYERS = {
    "grouped": Geometry(32, 8, 128),
    "latent": LATENT,
    "gathered": replace(LATENT, gather=Gather(topk=2048)),
    "two widths": Geometry(64, 8, 192, 128),
}
VERSIONS = [(name, version.name) for name in engine_names() for version in load_policy(name).versions]
every_version = pytest.mark.parametrize(("name", "version"), VERSIONS, ids=[f"{n}@{v}" for n, v in VERSIONS])


def caches(name: str) -> list[KvCache]:
    """Every cache type, with 16-bit queries and with queries of its own type, in pages that the engine takes."""
    pages = laws()[name].page_size
    found = []
    for dtype in DTYPE_BYTES:
        found += [KvCache(dtype, pages, query_dtype=query) for query in dict.fromkeys(("bf16", "fp16", dtype))]
    return found


def refusal(plan: Callable[[], object]) -> GateError | None:
    """The GateError of a call, None where it returns."""
    try:
        plan()
    except GateError as refused:
        return refused
    return None


@every_version
def test_a_plan_is_made_exactly_where_the_version_takes_the_layer(name: str, version: str) -> None:
    """Over cache types, architectures and kinds of layer; refusals have a snake_case code and say what is valid."""
    policy, batch = load_policy(name), dc.Batch([100])
    taken = policy.takes(version)
    planned = 0
    for kind, layer in LAYERS.items():
        for gpu in GPUS:
            for kv in caches(name):
                admitted = any(not one.against(layer, kv, gpu) for one in taken)
                case = f"{kind}, {kv.dtype} cache with {kv.query_dtype} queries on {gpu.name}"
                refused = refusal(lambda: policy.plan(layer, batch, kv, gpu, {}, version))  # noqa: B023
                assert admitted == (refused is None), f"{case}: {refused or 'is planned and not listed'}"
                planned += admitted
                if refused is not None:
                    assert re.fullmatch(r"[a-z][a-z0-9_]*", refused.code), refused.code
                    assert len(str(refused)) > len(policy.name) + 10
    assert planned, f"{name}@{version} plans none of the layers"


@every_version
def test_the_traits_and_the_combinations_agree_on_sparse_layers(name: str, version: str) -> None:
    """An engine has the trait exactly where a combination serves lists, and its lawful layer is among what it takes."""
    policy, law = load_policy(name), laws()[name]
    taken = policy.takes(version)
    assert any(one.sparse for one in taken) == policy.traits.sparse
    layer = LATENT if law.layers == MLA else LAYERS["grouped"]
    assert any(not one.against(layer, law.cache, law.devices_of()[0]) for one in taken)


@every_version
def test_combinations_print_and_are_plain_values(name: str, version: str) -> None:
    """Each has one line for people and a dictionary of text, numbers and lists."""
    for one in load_policy(name).takes(version):
        assert "cache" in str(one)
        assert all(isinstance(value, (str, bool, list, type(None))) for value in one.to_dict().values())


numbers = st.builds(
    Numbers, step=st.integers(1, 20), low=st.integers(1, 100), high=st.one_of(st.none(), st.integers(1, 300)),
    powers_of_2=st.booleans(),
    without=st.one_of(st.none(), st.tuples(st.integers(1, 50), st.integers(50, 90))),
)  # fmt: skip


@given(numbers, st.integers(1, 400))
def test_a_set_of_numbers_holds_what_its_words_say(found: Numbers, number: int) -> None:
    """Membership follows the step, the bounds, powers of two and the gap; a list holds its own numbers only."""
    within = found.low <= number <= (found.high or number)
    power = not found.powers_of_2 or bin(number).count("1") == 1
    gap = found.without is not None and found.without[0] <= number <= found.without[1]
    assert (number in found) == (within and number % found.step == 0 and power and not gap)
    assert number in only(number)
    assert number + 1 not in only(number)


@pytest.mark.parametrize(
    ("device", "names"),
    [
        ("any", {"a100-sxm", "h100-sxm", "b300-sxm", "mi300x", "gaudi3", "unheard-of"}),
        ("nvidia", {"a100-sxm", "h100-sxm", "b300-sxm", "unheard-of"}),
        ("unknown", {"unheard-of"}),
        ("sm90", {"h100-sxm"}),
        ("sm10x", {"b300-sxm"}),
        ("sm100", set()),
        ("sm90+", {"h100-sxm", "b300-sxm"}),
        ("amd", {"mi300x"}),
        ("gfx94", {"mi300x"}),
    ],
)
def test_words_for_devices(device: str, names: set[str]) -> None:
    """Exactly one capability, a family, one and newer, a vendor, the beginning of a gfx name, or nothing known."""
    known = [load_gpu(name) for name in ("a100-sxm", "h100-sxm", "b300-sxm", "mi300x", "gaudi3")]
    every = [*known, Gpu(name="unheard-of", sm_count=7)]
    assert {gpu.name for gpu in every if runs_on(device, gpu)} == names


@pytest.mark.parametrize(
    ("engine", "layer", "kv", "gpu", "code", "valid"),
    [
        ("rocm-paged", LAYERS["grouped"], KvCache("nvfp4"), "mi300x", "kv_dtype", "bf16, fp16, fp32, fp8"),
        ("flashinfer-xqa", LAYERS["grouped"], KvCache("int4"), "h100-sxm", "cache_dtype", "fp8, int8, nvfp4"),
        ("flash-attention-2", LATENT, KvCache(page_size=256), "h100-sxm", "head_dim_too_large", "256"),
        (
            "aiter-pa-decode",
            replace(LAYERS["grouped"], gather=Gather(topk=64)),
            KvCache(),
            "mi300x",
            "sparse_layer",
            "",
        ),
        ("paged-attention-v1", LAYERS["grouped"], KvCache(), "gaudi3", "other_vendor", "NVIDIA and AMD"),
        ("bundled", LAYERS["grouped"], KvCache("int4"), "h100-sxm", "kv_dtype", "bf16, fp16, fp32, fp8"),
    ],
)
def test_a_refusal_names_what_is_valid(engine: str, layer: Any, kv: KvCache, gpu: str, code: str, valid: str) -> None:
    """The engine's own refusal comes first; what it lets through is refused by the list of what the version takes."""
    with pytest.raises(GateError) as refused:
        dc.plan(engine, layer, dc.Batch([100]), kv=kv, gpu=gpu)
    assert (refused.value.code, valid in str(refused.value)) == (code, True)


def test_a_policy_of_the_users_own_takes_everything() -> None:
    """Without a list of its own a policy is not restricted."""
    assert Takes().against(LATENT, KvCache("nvfp4"), load_gpu("gaudi3")) == []
