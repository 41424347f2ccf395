"""The runs of policies that figures draw as lines: along batch sizes or contexts, one line per layer group and
engine."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from decodecalc.errors import GateError
from decodecalc.launch.arrays import Batches, Launches
from decodecalc.launch.policy import Policy, PolicyVersion
from decodecalc.models import LayerGroup

if TYPE_CHECKING:
    from decodecalc.request import Request


@dataclass(frozen=True, slots=True)
class Series:
    """One line: `x` are its batch sizes or contexts, `found` what the policy launches at each of `steps`."""

    tp: int
    group: LayerGroup
    policy: Policy
    version: PolicyVersion
    x: list[int]
    steps: Batches
    found: Launches

    def row(self, **values: Any) -> dict[str, Any]:
        """A data row of this line."""
        names = {
            "tp": self.tp,
            "layer_group": self.group.name,
            "engine": self.policy.name,
            "version": self.version.name,
        }
        return {**names, **values}

    def per_step(self, value: Any) -> list[Any]:
        """A number, [N] or [N, 1] entry of `found` as one value per x."""
        array = np.asarray(value)
        array = array[:, 0] if array.ndim == 2 else array
        return np.broadcast_to(array, (len(self.x),)).tolist()


def along_contexts(request: Request) -> Iterator[Series]:
    """The given contexts, or 64 to 128 Ki when one was given, at the first batch size."""
    batches = request.scenarios.batches
    contexts = np.array(sorted({b.max_seq_len for b in batches}))
    if len(contexts) == 1:
        contexts = np.unique(np.round(2 ** np.linspace(6, 17, 89)).astype(np.int64))
    yield from _run(request, contexts.tolist(), Batches.uniform(batches[0].size, contexts, batches[0].max_q_len))


def along_batches(request: Request) -> Iterator[Series]:
    """The given batch sizes, or 1 to 256 when one was given, at the first context."""
    batches = request.scenarios.batches
    sizes = np.array(sorted({b.size for b in batches}))
    if len(sizes) == 1:
        sizes = np.concatenate([np.arange(1, 33), np.arange(34, 133, 2), [136, 160, 192, 256]])
    yield from _run(request, sizes.tolist(), Batches.uniform(sizes, batches[0].max_seq_len, batches[0].max_q_len))


def _run(request: Request, x: list[int], steps: Batches) -> Iterator[Series]:
    s = request.scenarios
    for group in s.layer_groups:
        for policy, name in s.engines:
            version = policy.version(name)
            options = policy.options_type.from_mapping(policy.name, s.options_of(policy))
            try:
                seen, found = policy.on_layer(group.geometry, steps, s.kv, s.gpu, options, version)
            except GateError:
                continue
            yield Series(request.layers.tp, group, policy, version, x, seen, found)


def labelled(data: list[dict[str, Any]]) -> Iterator[tuple[int, str, list[dict[str, Any]]]]:
    """Rows of each line with its number and label; TP degrees and layer groups are named where there are several."""
    keys = ("tp", "layer_group", "engine", "version")
    lines = list(dict.fromkeys(tuple(r[k] for k in keys) for r in data))
    several = [len({line[i] for line in lines}) > 1 for i in range(len(keys))]
    for i, line in enumerate(lines):
        tp, group, engine, version = line
        label = (
            f"{engine} {version}" + (f", TP {tp}" if several[0] else "") + (f", {group} layers" if several[1] else "")
        )
        yield i, label, [r for r in data if tuple(r[k] for k in keys) == line]
