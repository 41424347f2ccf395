"""Which releases of kernel libraries a server's release requires.

Source: `Requires-Dist` of the wheels' METADATA on the package index, read for every release named here. None where a
release states none: vLLM builds FlashAttention and FlashMLA into its own wheel from revisions that its metadata does
not name.
"""

from __future__ import annotations

from typing import NamedTuple

from decodecalc.launch.policy import version_key


class Libraries(NamedTuple):
    """Required releases of one server release."""

    torch: str
    """PyTorch."""
    flashinfer: str
    """flashinfer-python."""
    cubins_required: bool
    """flashinfer-cubin is required in the same release."""
    flash_attn_4: str | None = None
    """flash-attn-4, as a requirement."""
    sglang_kernel: str | None = None
    """sglang-kernel."""
    tokenspeed_mla: str | None = None
    """tokenspeed-mla."""
    flash_attention: str | None = None
    """Revision of vllm-project/flash-attention, where it is known."""
    flashmla: str | None = None
    """Revision of FlashMLA, where it is known."""


def _vllm(torch: str, flashinfer: str, cubins: bool, tokenspeed: str | None, fork: str | None = None) -> Libraries:
    return Libraries(
        torch=torch, flashinfer=flashinfer, cubins_required=cubins, tokenspeed_mla=tokenspeed, flash_attention=fork
    )


def _sglang(torch: str, flashinfer: str, cubins: bool, fa4: str, kernel: str, tokenspeed: str | None) -> Libraries:
    return Libraries(
        torch=torch,
        flashinfer=flashinfer,
        cubins_required=cubins,
        flash_attn_4=fa4,
        sglang_kernel=kernel,
        tokenspeed_mla=tokenspeed,
    )


VLLM = {
    "0.33.0": _vllm("2.14.0", "0.7.2.post1", False, "2.0.3", "617264c"),
    "0.32.0": _vllm("2.13.0", "0.7.0.post1", False, "0.2.15"),
    "0.31.0": _vllm("2.13.0", "0.7.0.post1", False, "0.1.8"),
    "0.30.0": _vllm("2.13.0", "0.6.18.post1", False, "0.1.8"),
    "0.29.0": _vllm("2.13.0", "0.6.18", False, "0.1.8"),
    "0.28.0": _vllm("2.13.0", "0.6.16.post3", False, "0.1.8"),
    "0.27.1": _vllm("2.13.0", "0.6.16.post3", False, "0.1.8"),
    "0.26.0": _vllm("2.11.0", "0.6.14", False, "0.1.8"),
    "0.25.1": _vllm("2.11.0", "0.6.13", True, "0.1.2"),
    "0.24.0": _vllm("2.11.0", "0.6.12", True, "0.1.2"),
    "0.23.0": _vllm("2.11.0", "0.6.12", True, "0.1.2"),
    "0.22.1": _vllm("2.11.0", "0.6.11.post2", True, "0.1.2"),
    "0.21.0": _vllm("2.11.0", "0.6.8.post1", True, "0.1.2"),
    "0.20.2": _vllm("2.11.0", "0.6.8.post1", True, None),
    "0.20.0": _vllm("2.11.0", "0.6.8.post1", True, None),
}
SGLANG = {
    "0.5.23": _sglang("2.14.1", "0.7.2", False, ">=4.0.0b18", "0.4.10", None),
    "0.5.22": _sglang("2.14.1", "0.7.1", False, ">=4.0.0b18", "0.4.9", "0.1.8"),
    "0.5.21": _sglang("2.13.0", "0.6.18", False, ">=4.0.0b18", "0.4.7", "0.1.8"),
    "0.5.20": _sglang("2.13.0", "0.6.18", False, ">=4.0.0b18", "0.4.7", "0.1.8"),
    "0.5.19": _sglang("2.13.0", "0.6.18", False, ">=4.0.0b18", "0.4.6.post1", "0.1.8"),
    "0.5.18": _sglang("2.13.0", "0.6.17", False, ">=4.0.0b18", "0.4.6.post1", "0.1.8"),
    "0.5.17": _sglang("2.11.0", "0.6.15.post1", False, ">=4.0.0b18", "0.4.5", "0.1.8"),
    "0.5.16": _sglang("2.11.0", "0.6.14", False, ">=4.0.0b18", "0.4.5", "0.1.8"),
    "0.5.15.post1": _sglang("2.11.0", "0.6.12", True, "==4.0.0b15", "0.4.4", "0.1.7"),
    "0.5.14": _sglang("2.11.0", "0.6.12", True, "==4.0.0b15", "0.4.4", "0.1.7"),
    "0.5.13.post1": _sglang("2.11.0", "0.6.12", True, ">=4.0.0b9", "0.4.3", "0.1.1"),
    "0.5.12.post1": _sglang("2.11.0", "0.6.11.post1", True, ">=4.0.0b9", "0.4.2.post2", "0.1.1"),
    "0.5.11": _sglang("2.11.0", "0.6.8.post1", True, ">=4.0.0b9", "0.4.2", None),
    "0.5.10.post1": _sglang("2.9.1", "0.6.7.post3", True, ">=4.0.0b4", "0.4.1", None),
    "0.5.10": _sglang("2.9.1", "0.6.7.post2", True, ">=4.0.0b4", "0.4.1", None),
}
_BY_SERVER = {"vllm": VLLM, "sglang": SGLANG}
# Engines whose versions are releases of a library: the field of `Libraries` that names it.
_FIELD = {
    "flashinfer": "flashinfer",
    "flashinfer-mla": "flashinfer",
    "flashinfer-xqa": "flashinfer",
    "trtllm-gen": "flashinfer",
    "flex-decoding": "torch",
}


def libraries_of(server: str, version: str) -> Libraries | None:
    """The libraries of a server's release, or None for one that is not in the table."""
    table = _BY_SERVER.get(server, {})
    if version in table:
        return table[version]
    key = version_key(version)
    return next((found for name, found in table.items() if version_key(name) == key), None)


def engine_version(engine: str, server: str, version: str) -> str | None:
    """The library release that an engine of this server's release plans with; None where none is known."""
    field = _FIELD.get(engine)
    found = libraries_of(server, version)
    return getattr(found, field) if field and found else None
