"""A serve command, read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from decodecalc.values import Shown


@dataclass(frozen=True, slots=True, kw_only=True)
class Command(Shown):
    """What a serve command asks for. None where it says nothing."""

    server: str
    """The server, by its name in `SERVERS`."""
    words: tuple[str, ...]
    """The command's words, environment variables left out."""
    env: Mapping[str, str] = field(default_factory=dict)
    """Environment variables in front of it."""
    model: str
    """The model as the command names it."""
    version: str | None = None
    """The release that a container image's tag names."""
    tp: int = 1
    """Ranks that one attention layer is divided over."""
    pp: int = 1
    """Pipeline stages that the layers are divided over."""
    dp: int = 1
    """Replicas of the attention layers."""
    dcp: int = 1
    """Ranks that one sequence's keys are divided over (decode context parallelism), within `tp`."""
    dcp_interleave: int = 1
    """Neighbouring keys that lie on one of these ranks."""
    dcp_exchange: str | None = None
    """How these ranks merge their outputs; None for the server's default."""
    dcp_replicated: bool = False
    """Whether each of these ranks computes the queries of all of them."""
    expert_ranks: int | None = None
    """Ranks that routed experts are divided over; None for `tp`."""
    max_num_seqs: int | None = None
    """Most sequences of a step."""
    max_model_len: int | None = None
    """Most tokens of a sequence."""
    page_size: int | None = None
    """Keys of a page of the cache."""
    kv_cache_dtype: str | None = None
    """Element type of the cache in the server's words."""
    backend: str | None = None
    """Attention backend."""
    memory_fraction: float | None = None
    """Share of the GPU's memory, in the server's own sense."""
    kv_bytes: int | None = None
    """Bytes of the cache, where they are given outright."""
    offload_bytes: int = 0
    """Bytes of weights that are kept in the host's memory."""
    dtype: str | None = None
    """Element type of the model: bfloat16, float16 or float32."""
    quantization: str | None = None
    """Quantisation method of the weights."""
    hf_overrides: Mapping[str, Any] = field(default_factory=dict)
    """Fields of the model's configuration that are replaced."""
    draft_tokens: int | None = None
    """Tokens that are drafted for every token verified."""
    eager: bool = False
    """No CUDA graphs."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Settings of the server for the choice of its backend."""
    engine_options: Mapping[str, Any] = field(default_factory=dict)
    """Options of decodecalc's engines that follow; an engine takes those that it has."""
    ignored: tuple[str, ...] = ()
    """Flags that change nothing here, or that are not known."""
    notes: tuple[str, ...] = ()
    """What a user should know of the command, in whole sentences."""

    @property
    def gpus(self) -> int:
        """GPUs that the command takes."""
        return self.tp * self.pp * self.dp

    @property
    def text(self) -> str:
        """The command as one line."""
        import shlex

        return " ".join([*(f"{name}={shlex.quote(value)}" for name, value in self.env.items()), shlex.join(self.words)])

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        from dataclasses import fields

        values = {f.name: getattr(self, f.name) for f in fields(self)}
        return {
            name: dict(value) if isinstance(value, Mapping) else list(value) if isinstance(value, tuple) else value
            for name, value in values.items()
        }
