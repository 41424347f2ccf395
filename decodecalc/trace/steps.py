"""What engines write about a step into the profiler's annotations."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from decodecalc.batch import Batch
from decodecalc.trace.events import Annotation

# vLLM: execute_32_context_0(sq0sk0…)_generation_32(sq32sk55086…); older ones carry token counts only.
_VLLM = re.compile(r"execute_(?:\d+_)?context_(\d+)\(([^)]*)\)_generation_(\d+)\(([^)]*)\)")
_SGLANG = re.compile(r"step\[(DECODE|EXTEND|MIXED) bs=(\d+)")
_MAX_REQUESTS = 1 << 16


@dataclass(frozen=True)
class StepNote:
    """prefills, decodes: requests of each kind in the step. decode_keys: keys of all decode requests, where said."""

    prefills: int
    decodes: int
    decode_keys: int | None = None

    def batch(self) -> Batch | None:
        """The decode requests, as even as their total allows; None when the total is not known."""
        if not self.decodes or self.decode_keys is None or self.decode_keys < self.decodes:
            return None
        each, more = divmod(self.decode_keys, self.decodes)
        return Batch([each + (r < more) for r in range(self.decodes)])


def step_note(text: str) -> StepNote | None:
    """What one annotation says; None when it is not about a step.

    >>> step_note("execute_32_context_0(sq0sk0sqsq0sqsk0)_generation_32(sq32sk55086sqsq32sqsk55086)")
    StepNote(prefills=0, decodes=32, decode_keys=55086)
    """
    match = _VLLM.search(text)
    if match:
        keys = re.match(r"sq\d+sk(\d+)", match[4])
        return _note(int(match[1]), int(match[3]), int(keys[1]) if keys else None)
    match = _SGLANG.search(text)
    if match:
        decodes = int(match[2]) if match[1] == "DECODE" else 0
        return _note(0 if match[1] == "DECODE" else int(match[2]), decodes, None)
    return None


def _note(prefills: int, decodes: int, keys: int | None) -> StepNote | None:
    return StepNote(prefills, decodes, keys) if max(prefills, decodes) <= _MAX_REQUESTS else None


def distinct_notes(annotations: Iterable[Annotation]) -> tuple[StepNote, ...]:
    """The different things that the annotations say, in order of first appearance. A note without the total of the keys
    goes where another has the same requests with it."""
    found = dict.fromkeys(note for a in annotations if (note := step_note(a.name)) is not None)
    told = {(n.prefills, n.decodes) for n in found if n.decode_keys is not None}
    return tuple(n for n in found if n.decode_keys is not None or (n.prefills, n.decodes) not in told)
