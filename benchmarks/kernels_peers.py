"""Engines' own kernels without their servers: fetched from their wheels into a folder that stands for the packages.

    python -m benchmarks.kernels_peers .peers        # once, needs the package registry, no GPU; about 55 MiB
    python -m benchmarks.kernels_peers .peers --only vllm,sglang,fa3        # a part of it

The folder is a small copy of the packages' own trees: the files of vLLM, SGLang and FlashInfer that decode attention
needs, stand-ins for the few modules that those files import beside them, and what an installation says of its version.
`decodecalc verify --kernel own` finds it as `.peers` or by DECODECALC_PEERS and imports from it like from an
installation. Libraries travel packed (`NAME.so.xz`, `NAME.tar.xz`) and are unpacked where they are first used. Nothing
fetched is ever committed.

vLLM's FlashAttention-2 library holds every kernel twice; of it only the PTX of the bf16 kernels that read paged caches
is kept, which is all that a GPU newer than the A100 loads. That needs `pip install zstandard`.
"""

from __future__ import annotations

import argparse
import io
import json
import lzma
import re
import struct
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

VLLM, SGLANG = "vllm==0.33.0", "sglang==0.5.10.post1"
FLASHINFER, TVM_FFI = "flashinfer-python==0.7.2.post1", "apache-tvm-ffi==0.1.15.post2"
GLIBC = ("2_39", "2_35", "2_34", "2_31", "2_28", "2_24", "2_17")
PARTS = ("vllm", "sglang", "fa3", "fa2", "flashmla", "flashinfer")
STANDINS = {
    "vllm/envs.py": "VLLM_BATCH_INVARIANT = False",
    "vllm/logger.py": """
class Quiet:
    def __getattr__(self, name):
        return lambda *args, **kwargs: None

def init_logger(name):
    return Quiet()
""",
    "vllm/platforms.py": """
import torch

class Platform:
    def fp8_dtype(self):
        return torch.float8_e4m3fn

    def is_cuda(self):
        return True

    def has_device_capability(self, capability):
        major, minor = torch.cuda.get_device_capability()
        return 10 * major + minor >= capability

    def is_device_capability_family(self, capability):
        return torch.cuda.get_device_capability()[0] == capability // 10

    def __getattr__(self, name):
        return lambda *args, **kwargs: False

current_platform = Platform()
""",
    "vllm/triton_utils.py": "import triton\nimport triton.language as tl",
    "vllm/v1/kv_cache_interface.py": """
from enum import IntEnum

KVQuantMode = IntEnum("KVQuantMode", "NONE FP8_PER_TENSOR INT8_PER_TOKEN_HEAD FP8_PER_TOKEN_HEAD INT4_PER_TOKEN_HEAD "
                      "NVFP4", start=0)
""",
    "sglang/srt/utils.py": "def is_hip():\n    return False",
}  # fmt: skip
VLLM_OPS = ("triton_unified_attention.py", "triton_attention_helpers.py", "triton_decode_attention.py")
# Folders of FlashInfer's sources that its decode, XQA and MLA kernels are compiled from, and top-level files of csrc.
FLASHINFER_DATA = (
    "include/", "spdlog/include/", "cutlass/include/", "cutlass/tools/util/include/", "csrc/xqa/",
    "cccl/cub/cub/", "cccl/libcudacxx/include/", "cccl/thrust/thrust/",
)  # fmt: skip
FLASHINFER_SOURCES = re.compile(
    r"csrc/(batch_(decode|prefill|mla)\w*|flashinfer_xqa_binding|tvm_ffi_utils|\w*utils)\.\w+"
)
FLASHINFER_SKIPPED = ("experimental/", "moe_ep/", "gdn_kernels/", "prims_ts/", "fused_moe/backends/", "data/")


def download(requirement: str, into: Path) -> zipfile.ZipFile:
    """A wheel for x86-64 Linux and Python 3.12, whatever runs here; the one in `into` when it is there already."""
    stem = requirement.split("==")[0].replace("-", "_")
    if not (found := sorted(into.glob(f"{stem}-*.whl"))):
        command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary=:all:", "-d", str(into),
                   "--python-version", "3.12", "--implementation", "cp"]  # fmt: skip
        for version in GLIBC:
            command += ["--platform", f"manylinux_{version}_x86_64"]
        command += ["--platform", "manylinux2014_x86_64", "--platform", "manylinux1_x86_64", requirement]
        subprocess.run(command, check=True)
        found = sorted(into.glob(f"{stem}-*.whl"))
    return zipfile.ZipFile(found[0])


class Folder:
    """The folder being filled: every folder of a written file becomes a package."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def write(self, name: str, content: bytes) -> None:
        """One file."""
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        for parent in path.relative_to(self.root).parents:
            if str(parent) != "." and not str(parent).endswith(".dist-info"):
                (self.root / parent / "__init__.py").touch()

    def pack(self, name: str, content: bytes) -> None:
        """One library, packed."""
        self.write(name + ".xz", lzma.compress(content, preset=3))

    def version(self, requirement: str) -> None:
        """What an installation says of its version."""
        name, _, version = requirement.partition("==")
        text = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        self.write(f"{name.replace('-', '_')}-{version}.dist-info/METADATA", text.encode())


def prepare(root: Path, parts: tuple[str, ...] = PARTS, wheels: Path | None = None) -> None:
    """Fill the folder with these parts. wheels: where downloaded wheels are kept."""
    folder = Folder(root)
    with tempfile.TemporaryDirectory() as tmp:
        into = wheels or Path(tmp)
        if {"vllm", "fa2", "fa3", "flashmla"} & set(parts):
            with download(VLLM, into) as wheel:
                _vllm(folder, wheel, parts)
        if "sglang" in parts:
            with download(SGLANG, into) as wheel:
                _sglang(folder, wheel)
        if "flashinfer" in parts:
            with download(FLASHINFER, into) as wheel, download(TVM_FFI, into) as ffi:
                _flashinfer(folder, wheel, ffi)


def _standins(folder: Folder, package: str) -> None:
    for name, body in STANDINS.items():
        if name.startswith(package):
            folder.write(name, body.encode() + b"\n")


def _vllm(folder: Folder, wheel: zipfile.ZipFile, parts: tuple[str, ...]) -> None:
    _standins(folder, "vllm/")
    folder.version(VLLM)
    if "vllm" in parts:
        for name in VLLM_OPS:
            folder.write(f"vllm/v1/attention/ops/{name}", wheel.read(f"vllm/v1/attention/ops/{name}"))
        name = "vllm/v1/attention/backends/mla/triton_mla.py"
        rule = re.search(
            r"\n_MIN_WORK.*?\ndef _compute_num_kv_splits\(.*?\n(?=\n\n\w)", wheel.read(name).decode(), re.S
        )
        assert rule is not None
        folder.write(name, f"import triton\n{rule.group(0)}".encode())
    flash = "vllm/vllm_flash_attn/"
    if {"fa2", "fa3"} & set(parts):
        for name in ("__init__.py", "flash_attn_interface.py"):
            folder.write(flash + name, wheel.read(flash + name))
    if "fa3" in parts:
        folder.pack(flash + "_vllm_fa3_C.abi3.so", wheel.read(flash + "_vllm_fa3_C.abi3.so"))
    if "fa2" in parts:
        folder.pack(flash + "_vllm_fa2_C.abi3.so", only_ptx(wheel.read(flash + "_vllm_fa2_C.abi3.so"), decodes_bf16))
    if "flashmla" in parts:
        folder.pack("vllm/_flashmla_C.abi3.so", wheel.read("vllm/_flashmla_C.abi3.so"))
        name = "vllm/third_party/flashmla/flash_mla_interface.py"
        folder.write(name, wheel.read(name))


def _sglang(folder: Folder, wheel: zipfile.ZipFile) -> None:
    _standins(folder, "sglang/")
    folder.version(SGLANG)
    layers = "sglang/srt/layers/attention/"
    folder.write(layers + "triton_ops/decode_attention.py", wheel.read(layers + "triton_ops/decode_attention.py"))
    backend = wheel.read(layers + "triton_backend.py").decode()
    rule = re.search(r"@triton\.jit\ndef get_num_kv_splits_triton\(.*?\n(?=\n\ndef )", backend, re.S)
    assert rule is not None
    text = "import triton\nimport triton.language as tl\n\n\n" + rule.group(0)
    folder.write(layers + "triton_backend.py", text.encode())


def _flashinfer(folder: Folder, wheel: zipfile.ZipFile, ffi: zipfile.ZipFile) -> None:
    """FlashInfer with the sources that its decode kernels are compiled from; its package then imports nothing by
    itself, because it asks for packages that no decode kernel needs."""
    folder.version(FLASHINFER)
    folder.version(TVM_FFI)
    version = FLASHINFER.partition("==")[2]
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:xz", preset=6) as tar:
        for archive, keep in (
            (wheel, _keeps),
            (ffi, lambda name: name.startswith("tvm_ffi/") and not name.endswith("/")),
        ):
            for name in filter(keep, archive.namelist()):
                content = archive.read(name)
                if name == "flashinfer/__init__.py":
                    content = f'__version__ = "{version}"\n'.encode()
                entry = tarfile.TarInfo(name)
                entry.size, entry.mode = len(content), 0o644
                tar.addfile(entry, io.BytesIO(content))
    (folder.root / "flashinfer.tar.xz").write_bytes(packed.getvalue())


def _keeps(name: str) -> bool:
    """Whether decode attention needs this file of FlashInfer's wheel."""
    inner = name.removeprefix("flashinfer/")
    if inner == name or name.endswith("/"):
        return False
    data = inner.removeprefix("data/")
    if data != inner:
        return data.startswith(FLASHINFER_DATA) or FLASHINFER_SOURCES.fullmatch(data) is not None
    return inner.endswith((".py", ".jinja")) and not inner.startswith(FLASHINFER_SKIPPED)


FAT, PTX, CUBIN = struct.pack("<I", 0xBA55ED50), 1, 2


def fat_elements(library: bytes) -> Iterator[tuple[int, int, int, int]]:
    """(fat binary's number, kind, start, end) of every element of a library's fat binaries (CUDA's fatbinary.h)."""
    at, number = library.find(FAT), 0
    while at >= 0:
        _, version, header, size = struct.unpack_from("<IHHQ", library, at)
        if (version, header) != (1, 16):
            at = library.find(FAT, at + 4)
            continue
        element, end = at + header, at + header + size
        while element < end:
            kind, _, inner, payload = struct.unpack_from("<HHIQ", library, element)
            yield number, kind, element + inner, element + inner + payload
            element += inner + payload
        at, number = library.find(FAT, end), number + 1


def only_ptx(library: bytes, wanted: Callable[[list[str]], bool]) -> bytes:
    """The library with all device code emptied but the PTX whose entry points are `wanted`: it packs to little."""
    import zstandard

    out = bytearray(library)
    for _, kind, start, end in fat_elements(library):
        keep = False
        if kind == PTX:
            text = zstandard.ZstdDecompressor().decompressobj().decompress(library[start:end])
            keep = wanted([name.decode() for name in re.findall(rb"\.entry (\w+)", text)])
        if not keep:
            out[start:end] = bytes(end - start)
    return bytes(out)


def decodes_bf16(entries: list[str]) -> bool:
    """Whether these are FlashAttention-2's split kernels for bf16 caches of head dims 64, 128 and 256."""
    dims = {m[1] for e in entries if (m := re.search(r"traitsILi(\d+)E", e))}
    return all("bfloat16" in e for e in entries) and "splitkv" in entries[0] and dims <= {"64", "128", "256"}


class Peers:
    """vLLM's Triton kernel under its own rule, SGLang's under its own (cap 8), FlashAttention-3 under its own."""

    def __init__(self, folder: str | Path) -> None:
        import torch

        from decodecalc.verify.own.peers import use_folder

        use_folder(Path(folder))
        from sglang.srt.layers.attention import triton_backend
        from sglang.srt.layers.attention.triton_ops import decode_attention
        from vllm import vllm_flash_attn  # noqa: F401  (registers the operators)
        from vllm.v1.attention.ops.triton_unified_attention import unified_attention

        self.fa3 = torch.ops._vllm_fa3_C
        self.unified, self.sglang, self.sglang_rule = unified_attention, decode_attention, triton_backend

    def calls(self, cell: Any, state: Any) -> dict[str, Callable[[Any], Any]]:
        """One callable per peer that can run the cell; each writes `state.out`."""
        return {
            "vllm_triton": self.vllm(cell, state),
            "sglang_triton": self.sglang_decode(cell, state),
            "flash_attention_3": self.flash_attention_3(cell, state),
        }

    def vllm(self, cell: Any, s: Any) -> Callable[[Any], Any]:
        import torch

        segments, shape = 16, (cell.batch, cell.q_heads, 16)
        scratch = [torch.empty(n, device="cuda") for n in ((*shape, cell.head_dim), shape, shape)]
        starts = torch.arange(cell.batch + 1, device="cuda", dtype=torch.int32)
        return lambda kv: self.unified(
            s.q, kv[0], kv[1], s.out, starts, 1, s.seq_lens, cell.context, cell.head_dim**-0.5, True, (-1, -1),
            s.block_table, 0, None, None, None, 128 // cell.kv_heads, segments, *scratch,
        )  # fmt: skip

    def sglang_decode(self, cell: Any, s: Any, cap: int = 8) -> Callable[[Any], Any]:
        import torch

        lens, n = s.seq_lens.tolist(), cell.batch
        within = torch.arange(cell.page, device="cuda")
        slots = s.block_table.long()[:, :, None] * cell.page + within  # [batch, pages, page]
        index = torch.cat([slots[b].flatten()[: lens[b]] for b in range(n)])
        indptr = torch.tensor([sum(lens[:b]) for b in range(n + 1)], device="cuda", dtype=torch.int32)
        splits = torch.empty(n, device="cuda", dtype=torch.int32)
        sms = torch.cuda.get_device_properties(0).multi_processor_count
        self.sglang_rule.get_num_kv_splits_triton[(1,)](
            splits, s.seq_lens, n, 1, cell.q_heads, cell.kv_heads, cap, sms,
            MAX_NUM_SEQ=max(256, 1 << (n - 1).bit_length()),
        )  # fmt: skip
        logits = torch.empty(n, cell.q_heads, cap, cell.head_dim, device="cuda")
        lse = torch.empty(n, cell.q_heads, cap, device="cuda")
        flat = (-1, cell.kv_heads, cell.head_dim)
        return lambda kv: self.sglang.decode_attention_fwd(
            s.q, kv[0].view(flat), kv[1].view(flat), s.out, indptr, index, logits, lse, splits, cap,
            cell.head_dim**-0.5, 1.0, 1.0,
        )  # fmt: skip

    def flash_attention_3(self, cell: Any, s: Any) -> Callable[[Any], Any]:
        import torch

        starts = torch.arange(cell.batch + 1, device="cuda", dtype=torch.int32)
        n = None
        return lambda kv: self.fa3.fwd(
            s.q, kv[0], kv[1], n, n, n, s.out, starts, n, n, n, s.seq_lens, 1, cell.context, s.block_table,
            n, n, n, n, n, n, n, n, cell.head_dim**-0.5, True, -1, -1, 0.0, True, n, 0, n, 0, n, 1, 0, n,
        )  # fmt: skip


def main() -> None:
    """Fill a folder."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", default=",".join(PARTS), help=f"parts, of {', '.join(PARTS)}")
    parser.add_argument("--wheels", type=Path, help="where downloaded wheels are kept")
    args = parser.parse_args()
    prepare(args.folder, tuple(args.only.split(",")), args.wheels)
    sizes = {str(p.relative_to(args.folder)): p.stat().st_size for p in args.folder.rglob("*.xz")}
    print(json.dumps(sizes, indent=1))


if __name__ == "__main__":
    main()
