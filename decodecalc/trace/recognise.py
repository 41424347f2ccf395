"""Recognises which kernels of a trace belong to decode attention, and what part they play in it.

Names come first: every engine folder and `families` hold rules for the names that they know. No name may match two
rules, so the order of the rules has no meaning. Where several engines share a name, `attribution` decides who launched
it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from decodecalc.trace.kernel_names import NameFacts, function_name

STAGE1, MERGE, SCHEDULER, PREFILL, OTHER = "stage1", "merge", "scheduler", "prefill", "other"
UNMODELLED = "not modelled"  # the family of attention kernels for which there is no rule


@dataclass(frozen=True, slots=True, kw_only=True)
class NameRule:
    """One kind of kernel, recognised by its function's own name (see `kernel_names.function_name`)."""

    pattern: str
    """A regular expression that the whole name matches. No name may match two rules."""
    family: str
    """The family: kernels that belong together, whichever engine launched them."""
    role: str
    """stage1, merge, scheduler, prefill, or other (which is shown and never judged)."""
    why: str
    """What the kernel is, in words."""
    facts: Callable[[str], NameFacts] | None = None
    """A function that reads what the whole name fixes, template arguments included."""
    kernel: str | None = None
    """The kernel's name in plans, where that is not its function's name because a compiler makes that up. None takes
    what a group called `kernel` in the pattern matches, otherwise the function's name."""
    inside: str = ""
    """A regular expression that the whole name must also contain, where the function's own name is a common one."""

    def match(self, own: str, name: str) -> str | None:
        """The name in plans of a kernel with this function's name and whole name; None when it is of another kind."""
        found = re.fullmatch(self.pattern, own)
        if found is None or re.search(self.inside, name) is None:
            return None
        return self.kernel or found.groupdict().get("kernel") or own


@dataclass(frozen=True, slots=True, kw_only=True)
class Vendor:
    """A project that leaves its mark in the names of all its kernels."""

    name: str
    """The project."""
    pattern: str
    """A regular expression that occurs in such a name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recognition:
    """What a kernel's name says."""

    family: str
    """The family of the kernel."""
    role: str
    """Its role in the family."""
    why: str
    """Why it was recognised as that."""
    kernel: str
    """What plans call this kernel."""
    facts: NameFacts = field(default_factory=NameFacts)
    """What the name fixes."""


# Any other kernel that is an attention kernel by its name: it is shown and never judged. Cache writers and norms are
# left out.
_ATTENTION = re.compile(
    r"attn|attention|fmha|flash_fwd|flash_mla|(?<![a-z])mla(?![a-z])|(?<![a-z])mha(?![a-z])|sdpa|delta_rule|xqa"
    r"|split_?kv|flash_?decod|(paged|batch)_?(decode|prefill)"
    r"|(?<![a-z])(nsa|dsa|moba|fa[234])_?(decode|fwd|fprop)|(?<![a-z])kda(?![a-z])"
    r"|(?<![a-z])pa_(bf16|fp16|fp8|int8|a8|a16|decode|ragged|fwd|prefill|mtp|ps)",
    re.IGNORECASE,
)
_NOT_ATTENTION = re.compile(
    r"(?<!with_kv_)(?<!with_paged_kv_)cache_kernel|reshape_and_cache|concat_and_cache|norm|rope|rotary|indices|gemm|bwd|backward|elementwise|copy",
    re.IGNORECASE,
)
# A kernel that only quantises names attention's tensors; one that attends to quantised tensors names how it does so.
_QUANTISES = re.compile(r"(?<!no)quant", re.IGNORECASE)
_ATTENDS = re.compile(r"fmha|splitkv|flash_fwd|pa_decode|(paged|batch)_?(attention|decode|prefill)", re.IGNORECASE)
_PREFILL = re.compile(r"prefill|context|extend|varlen_fwd", re.IGNORECASE)
_MANGLED_WORDS = 8  # identifiers of a mangled name that are looked at: the function's own is among the first
_NUMBER = re.compile(r"\d+")


class NameBook:
    """Recognises kernels by their names. It remembers every name of a trace, and the projects whose kernels occur."""

    def __init__(self, rules: Sequence[NameRule], vendors: Sequence[Vendor] = ()) -> None:
        self.rules = tuple(rules)
        self.known: dict[str, Recognition] = {}
        self.company: Counter[str] = Counter()
        self._vendors = [(vendor.name, re.compile(vendor.pattern)) for vendor in vendors]

    def wanted(self, name: str) -> bool:
        """Whether a kernel of this name is attention. Its verdict and its vendor are remembered."""
        for vendor, pattern in self._vendors:
            if pattern.search(name):
                self.company[vendor] += 1
        found = self.recognise(name)
        if found is not None:
            self.known[name] = found
        return found is not None

    def recognise(self, name: str) -> Recognition | None:
        """What a kernel of this name is; None when it is not attention."""
        own = function_name(name)
        for rule in self.rules:
            kernel = rule.match(own, name)
            if kernel is not None:
                facts = rule.facts(name) if rule.facts else NameFacts()
                return Recognition(family=rule.family, role=rule.role, why=rule.why, kernel=kernel, facts=facts)
        if not own.startswith("_Z"):
            return _by_word(own)
        # Template arguments follow the function in a mangled name, and are no reason to leave it out.
        by_word = (found for word in mangled_words(own) if (found := _by_word(word)) is not None)
        return self._mangled(own) or next(by_word, None)

    def _mangled(self, name: str) -> Recognition | None:
        words = mangled_words(name)
        for rule in self.rules:
            for word in words:
                kernel = rule.match(word, name)
                if kernel is not None:
                    why = rule.why + " (mangled name)"
                    return Recognition(family=rule.family, role=rule.role, why=why, kernel=kernel)
        return None

    def __getitem__(self, name: str) -> Recognition:
        return self.known[name]


def mangled_words(name: str) -> list[str]:
    """The first identifiers of a mangled C++ name, each of which stands behind its length.

    >>> mangled_words("_ZN4some17decode_128_kernelE")
    ['some', 'decode_128_kernel']
    """
    words: list[str] = []
    at = 0
    while len(words) < _MANGLED_WORDS and (number := _NUMBER.search(name, at)) is not None:
        at = number.end()
        length = int(number[0][-4:])
        word = name[at : at + length]
        if word.isidentifier():
            words.append(word)
            at += length
    return words


def _by_word(own: str) -> Recognition | None:
    if not _ATTENTION.search(own) or _NOT_ATTENTION.search(own):
        return None
    if _QUANTISES.search(own) and not _ATTENDS.search(own):
        return None
    role = PREFILL if _PREFILL.search(own) else OTHER
    why = "its name is that of an attention kernel, of an engine that is not modelled"
    return Recognition(family=UNMODELLED, role=role, why=why, kernel=own)
