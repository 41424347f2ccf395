"""Reads what servers write about a step into the profiler's annotations. Each engine folder knows the format of its
server."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from decodecalc.batch import Batch
from decodecalc.trace.events import Annotation

_MAX_REQUESTS = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True)
class StepNote:
    """What one annotation says about a step."""

    prefills: int
    """Requests that process a prompt."""
    decodes: int
    """Requests that decode."""
    decode_keys: int | None = None
    """Keys of all decode requests together, where the annotation has them."""

    def batch(self) -> Batch | None:
        """The decode requests, with their total divided as evenly as possible; None when the total is not known."""
        if not self.decodes or self.decode_keys is None or self.decode_keys < self.decodes:
            return None
        each, more = divmod(self.decode_keys, self.decodes)
        return Batch([each + (r < more) for r in range(self.decodes)])


def step_note(prefills: int, decodes: int, decode_keys: int | None = None) -> StepNote | None:
    """The note with these counts; None where an annotation claims more requests than a step can have."""
    if max(prefills, decodes) > _MAX_REQUESTS:
        return None
    return StepNote(prefills=prefills, decodes=decodes, decode_keys=decode_keys)


NoteReader = Callable[[str], "StepNote | None"]


def distinct_notes(annotations: Iterable[Annotation], readers: Iterable[NoteReader]) -> tuple[StepNote, ...]:
    """The distinct notes of the annotations, in order of first appearance. A note without the total of the keys is
    dropped where another note has the same requests with it. The first reader that knows the format of an annotation
    reads it."""
    known = tuple(readers)
    read = (next((note for reader in known if (note := reader(a.name)) is not None), None) for a in annotations)
    found = dict.fromkeys(note for note in read if note is not None)
    told = {(n.prefills, n.decodes) for n in found if n.decode_keys is not None}
    return tuple(n for n in found if n.decode_keys is not None or (n.prefills, n.decodes) not in told)
