"""What a backend of vLLM accepts, as a table entry, and the checks that every backend goes through.

Source: `vllm/v1/attention/backend.py: AttentionBackend.validate_configuration`. All reasons are collected, in the
source's order; the words are vLLM's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from decodecalc.servers.resolution import BackendCandidate, Reason
from decodecalc.servers.vllm.ask import Ask

Check = Callable[[Ask], bool]
PLAIN_DTYPES = ("auto", "float16", "bfloat16")
HALF = ("float16", "bfloat16")


def yes(_: Ask) -> bool:
    """Always."""
    return True


def no(_: Ask) -> bool:
    """Never."""
    return False


class Size(NamedTuple):
    """A kernel's page: exactly `keys`, or any multiple of them."""

    keys: int
    """Keys."""
    multiple: bool = False
    """Every multiple is a kernel page too."""

    def takes(self, page: int) -> bool:
        """Whether the kernel sees a page of this size as it is."""
        return page % self.keys == 0 if self.multiple else page == self.keys

    def __str__(self) -> str:
        return f"a multiple of {self.keys}" if self.multiple else str(self.keys)


def sizes(*keys: int) -> tuple[Size, ...]:
    """Exact kernel pages."""
    return tuple(Size(k) for k in keys)


def multiple_of(keys: int) -> tuple[Size, ...]:
    """Every multiple of `keys`."""
    return (Size(keys, multiple=True),)


class Accepts(NamedTuple):
    """One backend of one release."""

    head_dims: tuple[int, ...] = ()
    """Key widths that are taken; empty takes any that `head_dim_rule` does."""
    head_dim_rule: Check = yes
    """A rule on the key width, where it is no list."""
    dtypes: tuple[str, ...] = HALF
    """Element types of the model."""
    kv_dtypes: tuple[str, ...] = PLAIN_DTYPES
    """Element types of the cache."""
    kv_dtype_rule: Check = yes
    """A rule on the cache's type beside the list, where the device matters."""
    pages: Callable[[Ask], tuple[Size, ...]] = lambda _: multiple_of(1)
    """Pages of the kernels."""
    exact_pages: bool = False
    """The user's page must be a kernel's page itself, not only a multiple of one."""
    preferred_page: Callable[[Ask], int | None] = lambda _: None
    """A page that the backend asks for when the user gave none; None takes 16 where it is accepted."""
    mla: bool = False
    """Latent attention; the others take only ordinary layers."""
    sparse: bool = False
    """Layers with an indexer; the others take only dense ones."""
    image_prefix: Check = no
    """Prefix attention among the tokens of an image."""
    sinks: Check = no
    """Attention sinks."""
    capability: Check = yes
    """The device."""
    window: bool = False
    """A sliding window (asked from 0.26 on)."""
    non_causal: bool = False
    """Non-causal decoding."""
    batch_invariant: bool = False
    """Batch-invariant mode."""
    combination: Callable[[Ask], str | None] = lambda _: None
    """The backend's own reason, in its own words (`supports_combination`)."""
    amd_only: bool = False
    """The backend's module needs ROCm."""
    imports: str | None = None
    """A package that the backend's module imports: without it, that is the only reason."""
    cuda_graphs: Callable[[Ask], str] = lambda _: "UNIFORM_BATCH"
    """Class of CUDA-graph support of the backend's metadata builder."""

    def page_is_accepted(self, ask: Ask, page: int | None) -> bool:
        """`supports_block_size`: a multiple of any kernel page will do, because the manager's page may be split."""
        if page is None:
            return True
        if self.exact_pages:
            return any(size.takes(page) for size in self.pages(ask))
        return any(page % size.keys == 0 for size in self.pages(ask))

    def against(self, name: str, ask: Ask) -> BackendCandidate:
        """The candidate with all reasons against it."""
        if self.amd_only and not ask.device.hip:
            return BackendCandidate(name=name, reasons=(Reason(words="needs ROCm", detail=f"on {ask.device}"),))
        if self.imports == "flashinfer" and not ask.has_flashinfer:
            named = "ModuleNotFoundError: No module named 'flashinfer'"
            words = named if ask.rules.names_missing_module and not ask.device.hip else "ImportError"
            return BackendCandidate(name=name, reasons=(Reason(words=words, detail="flashinfer is not installed"),))
        return BackendCandidate(name=name, reasons=tuple(self._reasons(name, ask)))

    def _reasons(self, name: str, ask: Ask) -> list[Reason]:
        layer, out = ask.layer, []

        def add(words: str, detail: str = "") -> None:
            out.append(Reason(words=words, detail=detail))

        if (self.head_dims and layer.head_dim not in self.head_dims) or not self.head_dim_rule(ask):
            takes = f"takes {_join(self.head_dims)}; " if self.head_dims else ""
            add("head_size not supported", f"{takes}the layer has {layer.head_dim}")
        if layer.dtype not in self.dtypes:
            add("dtype not supported", f"takes {_join(self.dtypes)}; the model is {layer.dtype}")
        if ask.kv_dtype not in self.kv_dtypes:
            add("kv_cache_dtype not supported", f"takes {_join(self.kv_dtypes)}; asked {ask.kv_dtype}")
        elif not self.kv_dtype_rule(ask):
            add("kv_cache_dtype not supported", f"not on {ask.device}; asked {ask.kv_dtype}")
        if not self.page_is_accepted(ask, ask.question.page_size):
            pages = _join(self.pages(ask))
            add("block_size not supported", f"needs blocks of {pages}; asked {ask.question.page_size}")
        if layer.image_prefix and not self.image_prefix(ask):
            add("partial multimodal token full attention not supported")
        if (layer.mla is not None) != self.mla:
            add("non-MLA not supported" if self.mla else "MLA not supported")
        if layer.sinks and not self.sinks(ask):
            add("attention sinks not supported", f"on {ask.device}")
        if layer.sparse != self.sparse:
            add("non-sparse not supported" if self.sparse else "sparse not supported")
        if not self.capability(ask):
            add("compute capability not supported", f"{ask.device}")
        if ask.rules.asks_window and layer.window is not None and not self.window:
            add("sliding window not supported")
        if ask.settings.use_non_causal and not self.non_causal:
            add("non-causal attention not supported")
        if ask.batch_invariant and not self.batch_invariant:
            add("batch invariance not supported")
        ranks = layer.context_ranks
        if ranks > 1 and ask.rules.dcp_selects and name not in ask.rules.dcp_backends:
            add("DCP not supported", f"{ranks} ranks divide the keys")
        own = self.combination(ask)
        if own is not None:
            add(own)
        return out


def _join(values: tuple[object, ...]) -> str:
    return ", ".join(str(value) for value in values)
