"""Serve commands, read: words, flags, containers, manifests; and twenty and more real ones, answered."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import decodecalc as dc
from decodecalc.errors import InputError
from decodecalc.servers.commands import facts_of, read_command
from decodecalc.servers.commands.flags import read_flags
from decodecalc.servers.commands.read import with_words
from decodecalc.serving import serve

sys.path.insert(0, str(Path(__file__).parent))
from real_commands import COMMANDS, Real


@pytest.mark.parametrize("real", COMMANDS, ids=lambda real: f"{real.gpu}-{real.backend}-{real.url[-24:]}")
def test_a_real_command_resolves_as_the_server_does(real: Real) -> None:
    """A command from public documentation or a thread runs the backend, the kernel and the pages of the server."""
    command = read_command(real.text)
    found = serve(command, gpu=dc.load_gpu(real.gpu), model=real.model, batches=[1], advise=False)
    answer = found.layers[0].answer
    assert (answer.backend, answer.kernel, command.tp) == (real.backend, real.kernel, real.tp)
    if real.page is not None:
        assert answer.page_size == real.page


def test_there_are_enough_real_commands() -> None:
    """At least twenty commands, of several servers, each from an address."""
    assert len(COMMANDS) >= 20
    assert len({read_command(real.text).server for real in COMMANDS}) >= 4
    assert all(real.url.startswith("https://") for real in COMMANDS)


def test_flags_are_read_in_every_spelling() -> None:
    """Dashes and underscores, `=` and a space, short names, JSON and dotted JSON say the same."""
    ways = (
        "vllm serve m -tp 2 --max-num-seqs 64 --attention-config '{\"flash_attn_version\": 2}'",
        "vllm serve --tensor_parallel_size=2 --max_num_seqs=64 m --attention-config.flash_attn_version 2",
        "python3 -m vllm.entrypoints.openai.api_server --model m --tensor-parallel-size 2 --max-num-seq 64 "
        "-ac.flash_attn_version=2",
        "docker run --gpus all -e A=b vllm/vllm-openai --model m -tp=2 --max-num-seqs 64 "
        "--attention-config.flash_attn_version=2",
    )
    read = [read_command(way) for way in ways]
    assert {(c.model, c.tp, c.max_num_seqs, c.settings["flash_attn_version"]) for c in read} == {("m", 2, 64, 2)}


def test_variables_in_front_count_and_others_do_not() -> None:
    """VLLM_BATCH_INVARIANT is a setting; a variable of the driver is not the server's."""
    command = read_command("CUDA_VISIBLE_DEVICES=0 VLLM_BATCH_INVARIANT=1 vllm serve m")
    assert command.settings["batch_invariant"] is True
    assert dict(command.env) == {"VLLM_BATCH_INVARIANT": "1"}
    exported = read_command("export VLLM_BATCH_INVARIANT=1\nvllm serve m  # a comment --max-num-seqs 3")
    assert exported.settings["batch_invariant"] is True
    assert exported.max_num_seqs is None


def test_graphs_are_read_from_every_flag_that_sets_them() -> None:
    """Eager mode, a graph mode and capture sizes reach the settings and the engines' options."""
    assert read_command("vllm serve m --enforce-eager").settings["cudagraph_mode"] == "NONE"
    piecewise = read_command("vllm serve m -cc.cudagraph_mode=piecewise")
    assert piecewise.settings["cudagraph_mode"] == "PIECEWISE"
    assert piecewise.engine_options["capture_sizes"] is None
    sizes = read_command("vllm serve m --cudagraph-capture-sizes 1 8 64")
    assert sizes.engine_options["capture_sizes"] == [1, 8, 64]
    assert sizes.settings["max_cudagraph_capture_size"] == 64
    assert read_command("sglang serve m --disable-cuda-graph").eager


def test_ranks_of_every_kind() -> None:
    """Data, pipeline and context parallelism are kept apart, and experts follow the server."""
    command = read_command("vllm serve m -tp 4 -dp 2 -pp 2 -dcp 2 -ep")
    assert (command.tp, command.dp, command.pp, command.dcp, command.expert_ranks) == (4, 2, 2, 2, 8)
    assert command.gpus == 16
    attention = read_command("python -m sglang.launch_server --model-path m --tp 8 --dp 4 --enable-dp-attention")
    assert (attention.tp, attention.dp, attention.expert_ranks, attention.gpus) == (2, 4, 8, 8)


def test_drafts() -> None:
    """Draft tokens come from each server's own flag."""
    spec = '\'{"method": "eagle3", "num_speculative_tokens": 3}\''
    assert read_command(f"vllm serve m --speculative-config {spec}").draft_tokens == 3
    words = "sglang serve m --speculative-algorithm EAGLE --speculative-num-draft-tokens 4"
    assert read_command(words).draft_tokens == 3


def test_unknown_flags_are_listed_once_and_do_not_take_the_model() -> None:
    """A flag that is not known is ignored with its values, also in front of the model."""
    command = read_command("vllm serve --trust-remote-code --foo 3 --foo 4 --bar org/model --max-num-seqs 8")
    assert command.ignored == ("--trust-remote-code", "--foo", "--bar")
    assert (command.model, command.max_num_seqs) == ("org/model", 8)


def test_an_image_names_the_release() -> None:
    """The tag of a container's image is the server's release, where that release is known."""
    assert read_command("docker run vllm/vllm-openai:v0.26.0-cu129 --model m").version == "0.26.0"
    assert read_command("docker run vllm/vllm-openai:latest --model m").version is None


@pytest.mark.parametrize(
    ("text", "seqs"),
    [
        ("command: [vllm, serve, m, --max-num-seqs, '5']", 5),
        ("args:\n  - vllm serve m --max-num-seqs 5", 5),
        ('a:\n- command:\n  - "vllm"\n  - serve\n  - m\n  - --max-num-seqs\n  - "5"\n', 5),
        ("s:\n  x:\n    image: vllm/vllm-openai\n    command: >-\n      m\n      --max-num-seqs 5\n", 5),
        ("s:\n  x:\n    image: vllm/vllm-openai\n    command: --model m\n      --max-num-seqs 5\n    ports: [80]\n", 5),
        ("x:\n  command: |\n    vllm serve m \\\n      --max-num-seqs 5\n", 5),
        ("x:\n  command: ['sh', '-c', 'exec vllm serve m --max-num-seqs 5']\n", 5),
    ],
)
def test_manifests(text: str, seqs: int) -> None:
    """Lists, flow lists over lines, folded and literal blocks and texts of a shell hold the same command."""
    command = read_command(text)
    assert (command.model, command.max_num_seqs) == ("m", seqs)


def test_variables_of_a_manifest() -> None:
    """Both forms of a container's environment are read."""
    names = "image: vllm/vllm-openai\nargs: [--model, m]\nenv:\n- name: VLLM_BATCH_INVARIANT\n  value: '1'\n"
    pairs = "image: vllm/vllm-openai\ncommand: --model m\nenvironment:\n  - VLLM_BATCH_INVARIANT=1\n"
    for text in (names, pairs):
        assert read_command(text).settings.get("batch_invariant") is True


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "empty"),
        ("ls -l", "no serve command"),
        ("vllm bench throughput --model m", "no serve command"),
        ("vllm serve", "no model"),
        ("vllm serve m --max-num-seqs many", "whole number"),
        ("vllm serve m --max-num-seqs", "needs a value"),
        ("vllm serve m --attention-config {oops", "not JSON"),
        ("vllm serve m -tp 0", "at least 1"),
        ("vllm serve m 'open", "cannot read"),
        ("vllm serve m -tp 4 -dcp 3", "do not divide"),
        ("vllm serve m --dtype int7", "bfloat16"),
    ],
)
def test_what_cannot_be_read_says_why(text: str, message: str) -> None:
    """A command that is none, or a value that a flag cannot take, is an input error."""
    with pytest.raises(InputError, match=message):
        read_command(text)


@given(st.text(max_size=200))
def test_any_text_is_a_command_or_an_input_error(text: str) -> None:
    """Nothing that a user pastes ends in another error."""
    for words in (text, f"vllm serve m {text}", f"image: vllm/vllm-openai\ncommand: {text}"):
        with contextlib.suppress(InputError):
            read_command(words)


@pytest.mark.parametrize("server", ["vllm", "sglang", "tensorrt-llm", "llama.cpp", "lmdeploy"])
def test_the_flags_that_advice_names_are_read(server: str) -> None:
    """Every flag that an answer may tell a user to add changes the command that is read again."""
    base = {
        "vllm": "vllm serve m -tp 14", "sglang": "sglang serve m --tp 14", "tensorrt-llm": "trtllm-serve m",
        "llama.cpp": "llama-server -m m", "lmdeploy": "lmdeploy serve api_server m",
    }[server]  # fmt: skip
    command, facts = read_command(base), facts_of(server)
    texts = [text.format(7) for text in facts.flags.values()] + list(facts.trials)
    for text in [*texts, *([facts.smaller_cache] if facts.smaller_cache else [])]:
        changed = with_words(command, text.split())
        assert changed.ignored == command.ignored, text
        assert changed.to_dict() != {**command.to_dict(), "words": list(changed.words)}, text


def test_a_table_has_no_name_twice() -> None:
    """No flag of a server is spelled in two lines of its table."""
    for server in ("vllm", "sglang", "tensorrt-llm", "llama.cpp", "lmdeploy"):
        names = [name.replace("_", "-") for line in facts_of(server).flags_table for name in line.names]
        assert len(names) == len(set(names)), server


def test_counts_have_the_servers_suffixes() -> None:
    """`32k` is decimal and `32K` binary."""
    flags = facts_of("vllm").flags_table
    assert read_flags(["--max-model-len", "32k"], flags).values["max_model_len"] == 32000
    assert read_flags(["--max-model-len", "32K"], flags).values["max_model_len"] == 32768
