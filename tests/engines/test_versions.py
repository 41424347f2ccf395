"""Releases: ranges, post releases, holes between them, and what servers pin."""

from __future__ import annotations

import pytest

from decodecalc.engines import engine_names, load_policy
from decodecalc.errors import UnknownNameError
from decodecalc.launch.policy import version_key
from decodecalc.servers.libraries import SGLANG, VLLM, engine_version

PINNED = sorted(
    {
        (engine, server, release)
        for server, table in (("vllm", VLLM), ("sglang", SGLANG))
        for release in table
        for engine in engine_names()
        if engine_version(engine, server, release)
    }
)
# The oldest release that each engine was read from: what older servers pin has no version here.
OLDEST = {"flashinfer-mla": "0.6.18", "flashinfer-xqa": "0.6.18"}
# The precompiled Blackwell kernels were read in these releases only.
READ = {"trtllm-gen": ("0.6.13", "0.7.2", "0.7.2.post1", "0.7.4")}


@pytest.mark.parametrize(("engine", "server", "release"), PINNED)
def test_what_a_server_pins_has_a_version_or_a_refusal_that_names_the_nearest(
    engine: str, server: str, release: str
) -> None:
    """The version covers the pinned release; where it was not read, the refusal names what was read around it."""
    policy, pinned = load_policy(engine), engine_version(engine, server, release) or ""
    was_read = pinned in READ.get(engine, (pinned,)) and version_key(pinned) >= version_key(OLDEST.get(engine, "0"))
    if was_read:
        found = policy.version(pinned)
        assert found.covers is not None
        first, last = (version_key(bound) for bound in found.covers)
        assert first <= version_key(pinned) <= last
    else:
        with pytest.raises(UnknownNameError) as refused:
            policy.version(pinned)
        assert refused.value.nearest
        assert set(refused.value.nearest) <= {version.name for version in policy.versions}


@pytest.mark.parametrize("server", ["vllm", "sglang"])
def test_a_servers_own_releases_have_versions(server: str) -> None:
    """Every release of the server that its libraries are known of plans with the server's own Triton backend."""
    table, policy = {"vllm": VLLM, "sglang": SGLANG}[server], load_policy(f"{server}-triton")
    for release in table:
        assert policy.version(release).covers is not None
        assert release in policy.releases


@pytest.mark.parametrize("engine", engine_names())
def test_ranges_begin_and_end_with_releases_and_do_not_overlap(engine: str) -> None:
    """Both ends of a range exist where releases are listed, the version's name is inside, and ranges are apart."""
    policy = load_policy(engine)
    for version in policy.versions:
        if version.covers and policy.releases:
            listed = {version_key(release) for release in policy.releases}
            assert {version_key(bound) for bound in version.covers} <= listed, version.name
    for release in policy.releases:
        holding = [
            v.name for v in policy.versions
            if v.covers and version_key(v.covers[0]) <= version_key(release) <= version_key(v.covers[1])
        ]  # fmt: skip
        assert len(holding) <= 1, (release, holding)


@pytest.mark.parametrize(
    ("engine", "release", "nearest"),
    [
        ("flashinfer", "0.7.3", ("0.7.2.post1", "0.7.4")),
        ("flashinfer-xqa", "0.7.3", ("0.7.4",)),
        ("trtllm-gen", "0.7.3", ("0.7.2.post1", "0.7.4")),
        ("trtllm-gen", "0.7.1", ("0.6.13", "0.7.2.post1")),
        ("flashinfer", "0.7.2rc6", ("0.7.2.post1", "0.7.4")),
        ("flashinfer", "0.7.2.1", ("0.7.2.post1", "0.7.4")),
        ("flashinfer", "0.3.2", ("0.3.1", "0.6.13")),
        ("vllm-triton", "0.33.0rc1", ("0.33.0",)),
        ("vllm-triton", "0.34.0", ("0.33.0",)),
        ("vllm-triton", "0.29.1", ("0.30.0", "0.31.0")),
        ("vllm-triton", "0.1", ("0.12.0",)),
        ("sglang-triton", "0.5.10.post2", ("0.5.10", "0.5.12")),
        ("flex-decoding", "2.16.0", ("2.14",)),
        ("aiter-mla", "0.1.19rc1", ("0.1.18", "0.1.20")),
    ],
)
def test_a_release_that_was_not_read_is_refused_with_its_neighbours(
    engine: str, release: str, nearest: tuple[str, ...]
) -> None:
    """Holes, releases that do not exist, pre-releases and future ones name the versions below and above."""
    with pytest.raises(UnknownNameError, match="did you mean") as refused:
        load_policy(engine).version(release)
    assert refused.value.nearest == nearest


@pytest.mark.parametrize(
    ("engine", "release", "version"),
    [
        ("flashinfer", "0.7.2.post1", "0.7.2.post1"),
        ("flashinfer", "0.6.16.post3", "0.6.17"),
        ("flashinfer", "0.7.0.post1", "0.6.18"),
        ("vllm-triton", "0.27", "0.27.1"),
        ("vllm-triton", "v0.33.0", "0.33.0"),
        ("sglang-triton", "0.5.12.post1", "0.5.12"),
        ("flash-attention-4", "4.0.0b36", "4.0.0b36"),
        ("flash-attention-3", "0.27.1", "vllm-0.33"),
        ("flashmla", "2026-02-01", "2026-01-16"),
    ],
)
def test_post_releases_short_names_and_dates(engine: str, release: str, version: str) -> None:
    """A post release belongs to the range that holds it; 0.27 is 0.27.0; dates are ordered too."""
    assert load_policy(engine).version(release).name == version
