"""From a text to the serve command in it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from decodecalc.errors import InputError
from decodecalc.servers.commands import others, sglang, vllm
from decodecalc.servers.commands.command import Command
from decodecalc.servers.commands.facts import facts_of
from decodecalc.servers.commands.flags import Read, read_flags
from decodecalc.servers.commands.words import split, unwrapped
from decodecalc.servers.commands.yaml import containers, environment, looks_like_yaml, shell_words
from decodecalc.servers.libraries import SGLANG, VLLM

_VALUES: dict[str, Callable[[Read, Mapping[str, str]], dict[str, Any]]] = {
    "vllm": vllm.values_of,
    "sglang": sglang.values_of,
    "tensorrt-llm": others.trtllm_values,
    "llama.cpp": others.llama_values,
    "lmdeploy": others.lmdeploy_values,
}
_MODULES = {
    "vllm.entrypoints.openai.api_server": "vllm",
    "vllm.entrypoints.api_server": "vllm",
    "vllm.entrypoints.cli.main": "vllm",
    "sglang.launch_server": "sglang",
}
# Programs, and the words that must follow.
_PROGRAMS: dict[str, tuple[str, tuple[str, ...]]] = {
    "vllm": ("vllm", ("serve",)),
    "sglang": ("sglang", ("serve",)),
    "trtllm-serve": ("tensorrt-llm", ()),
    "llama-server": ("llama.cpp", ()),
    "lmdeploy": ("lmdeploy", ("serve", "api_server")),
}
_IMAGES = {
    "vllm-openai": "vllm", "rocm/vllm": "vllm", "/vllm": "vllm", "sglang": "sglang", "tensorrt-llm": "tensorrt-llm",
    "llama.cpp": "llama.cpp", "lmdeploy": "lmdeploy",
}  # fmt: skip
_OF_SERVERS = ("VLLM_", "SGLANG_", "TRTLLM_", "LLAMA_", "FLASHINFER_", "FLASH_", "SGL_")
_HOW = (
    "give a command that begins with `vllm serve`, `python -m vllm.entrypoints.openai.api_server`, "
    "`python -m sglang.launch_server`, `sglang serve`, `trtllm-serve`, `llama-server` or `lmdeploy serve api_server`"
)
# Options of `docker run` that take a value.
_DOCKER_VALUES = (
    "-v", "--volume", "-p", "--publish", "--name", "--gpus", "--runtime", "--shm-size", "--ipc", "--network", "--net",
    "-e", "--env", "--env-file", "--ulimit", "--device", "--group-add", "--security-opt", "--cap-add", "--restart",
    "-w", "--workdir", "--entrypoint", "--mount", "-u", "--user", "--memory", "-m", "-h", "--hostname", "--platform",
    "--label", "-l", "--add-host", "--pull",
)  # fmt: skip


def read_command(text: str) -> Command:
    """The serve command in a shell text, a docker-compose file or a Kubernetes manifest.

    InputError where there is none, where it names no model, or where a flag's value cannot be read.
    """
    if not text.strip():
        raise InputError(f"the command is empty: {_HOW}")
    if looks_like_yaml(text):
        try:
            for container in containers(text):
                found = _container(container)
                if found is not None:
                    return found
        except RecursionError:
            raise InputError("the manifest nests too deeply") from None
    for program in split(text):
        words = unwrapped(program.words)
        server, image, rest, env = _program(words)
        if server is not None:
            return _command(server, words if not image else _bare(server, rest), rest, {**program.env, **env}, image)
    raise InputError(f"no serve command in {text.strip().splitlines()[0][:60]!r}: {_HOW}")


def with_words(command: Command, more: Sequence[str]) -> Command:
    """The command with further words at its end."""
    words = [*command.words, *more]
    server, image, rest, _ = _program(words)
    assert server is not None  # it was found before
    return _command(server, words, rest, command.env, image, command.version)


def _bare(server: str, rest: Sequence[str]) -> list[str]:
    """The command that a container runs."""
    for name, (known, following) in _PROGRAMS.items():
        if known == server:
            return [name, *following, *rest]
    raise AssertionError(server)


def _container(container: dict[str, Any]) -> Command | None:
    words = unwrapped(shell_words(container))
    env = environment(container)
    if len(words) == 1 and " " in words[0]:  # the whole command as one item
        inner = split(words[0])
        words = inner[-1].words if inner else []
    server, image, rest, more = _program(words)
    if server is not None:
        return _command(server, words, rest, {**env, **more}, str(container.get("image", image)))
    image = str(container.get("image", ""))
    server = _of_image(image)
    if server is None or not words:
        return None
    return _command(server, _bare(server, words), words, env, image)


def _program(words: Sequence[str]) -> tuple[str | None, str, list[str], dict[str, str]]:
    """(server, container image, the words behind the program, variables that a container sets)."""
    rest = list(words)
    if not rest:
        return None, "", [], {}
    name = rest[0].rpartition("/")[2]
    if name in ("docker", "podman", "nerdctl") and "run" in rest[:3]:
        return _docker(rest[rest.index("run") + 1 :])
    if re.fullmatch(r"python[\d.]*", name) and "-m" in rest[:3]:
        at = rest.index("-m")
        module = rest[at + 1] if len(rest) > at + 1 else ""
        server = _MODULES.get(module)
        behind = rest[at + 2 :]
        if module == "vllm.entrypoints.cli.main":
            behind = behind[1:]
        return server, "", behind, {}
    if name in _PROGRAMS:
        server, following = _PROGRAMS[name]
        behind = rest[1:]
        if tuple(behind[: len(following)]) == following:
            behind = behind[len(following) :]
            if behind[:1] == ["serve"] and server == "tensorrt-llm":  # newer releases name the subcommand
                behind = behind[1:]
            return server, "", behind, {}
    return None, "", [], {}


def _docker(words: list[str]) -> tuple[str | None, str, list[str], dict[str, str]]:
    env: dict[str, str] = {}
    rest = list(words)
    while rest and rest[0].startswith("-"):
        word = rest.pop(0)
        name, equals, value = word.partition("=")
        if not equals and name in _DOCKER_VALUES and rest:
            value = rest.pop(0)
        if name in ("-e", "--env"):
            key, _, text = value.partition("=")
            env[key] = text
    if not rest:
        return None, "", [], {}
    image, behind = rest[0], rest[1:]
    inner = unwrapped(behind)
    server, _, after, _ = _program(inner)
    if server is not None:
        return server, image, after, env
    return _of_image(image), image, behind, env


def _of_image(image: str) -> str | None:
    return next((server for name, server in _IMAGES.items() if name in image), None)


def _release(server: str, image: str) -> str | None:
    """The release that an image's tag names, where it is one that is known."""
    match = re.search(r":v?(\d+\.\d+\.\d+(?:\.post\d+)?)", image)
    known = {"vllm": VLLM, "sglang": SGLANG}.get(server)
    return match[1] if match and known and match[1] in known else None


def _command(
    server: str,
    words: Sequence[str],
    rest: Sequence[str],
    env: Mapping[str, str],
    image: str = "",
    version: str | None = None,
) -> Command:
    read = read_flags(rest, facts_of(server).flags_table)
    own = {name: value for name, value in env.items() if name.startswith(_OF_SERVERS)}
    values = _VALUES[server](read, own)
    model = read.values.get("model") or next(iter(read.positional), None)
    if model is None:  # a flag that is not known may have taken it for its value
        model = next((word for word in read.swallowed if "/" in word and not word.startswith(("http", "{"))), None)
    if model is None:
        raise InputError(f"the command names no model: {' '.join(words)[:80]!r}")
    for name in ("tp", "pp", "dp", "dcp", "dcp_interleave", "max_num_seqs", "page_size"):
        value = values.get(name)
        if value is not None and value < 1:
            raise InputError(f"{name.replace('_', ' ')} must be at least 1, not {value}")
    if (values.get("max_model_len") or 0) < 1:  # -1 and `auto` stand for the model's own
        values.pop("max_model_len", None)
    if values.get("dcp", 1) > 1 and values.get("tp", 1) % values["dcp"]:
        raise InputError(f"{values['dcp']} ranks of a sequence's keys do not divide {values.get('tp', 1)} ranks")
    values["notes"] = tuple(values.get("notes", ()))
    return Command(
        server=server,
        words=tuple(words),
        env=own,
        model=str(model),
        version=version or _release(server, image),
        ignored=tuple(read.ignored),
        **values,
    )
