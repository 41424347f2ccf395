"""Registers, stack and shared memory of every bundled kernel that Triton compiled, from its cache.

    rm -rf /tmp/compiled; TRITON_CACHE_DIR=/tmp/compiled python -m pytest -m gpu tests/kernels
    python -m benchmarks.kernels_resources /tmp/compiled --out reports/h200/kernels-resources.md

The first command compiles the variants of the GPU suite, or any other command those that it launches. The second asks
`cuobjdump`, which comes with Triton, what the assembler gave each of them. A kernel with a stack spills registers to
memory or indexes an array there, and both are traffic that no plan counts.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
from collections import defaultdict
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from decodecalc.files import write_whole

KERNELS = ("stage1_kernel", "mla_stage1_kernel", "merge_kernel", "list_splits_kernel")
_USAGE = re.compile(r"REG:(\d+) STACK:(\d+)")
_DOT = re.compile(r"tt\.dot .*: tensor<(\d+)x(\d+)x\w+> \* tensor<\d+x(\d+)x(\w+)>")


class Compiled(NamedTuple):
    """One compiled kernel."""

    kernel: str
    """Its function."""
    warps: int
    """Warps of a block, those of its own warp groups not counted."""
    shared_bytes: int
    """Shared memory of a block."""
    registers: int
    """Registers of a thread when the kernel begins."""
    stack_bytes: int
    """Bytes of a thread's stack."""
    product: str
    """Shape and element type of its first matrix product: query rows x elements x keys; empty without one."""


def read_usage(text: str) -> tuple[int, int]:
    """Registers and stack bytes from what `cuobjdump -res-usage` prints of one kernel. ValueError without them.

    >>> read_usage("Function merge_kernel:\\n  REG:40 STACK:8 SHARED:0 LOCAL:0 CONSTANT[0]:600 TEXTURE:0")
    (40, 8)
    """
    found = _USAGE.search(text)
    if found is None:
        raise ValueError(f"cuobjdump printed no registers: {text!r:.200}")
    return int(found[1]), int(found[2])


def usage(cubin: Path) -> tuple[int, int]:
    """Registers of a thread and bytes of its stack, as the assembler allotted them to a compiled kernel."""
    import triton

    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    ran = subprocess.run([tool, "-res-usage", cubin], capture_output=True, text=True, check=True)
    return read_usage(ran.stdout + ran.stderr)


def read_product(ttir: str) -> str:
    """The first matrix product of a kernel in Triton's own representation; empty where there is none.

    >>> read_product("%1 = tt.dot %q, %k, %0 : tensor<16x128xbf16> * tensor<128x64xbf16> -> tensor<16x64xf32>")
    '16 x 128 x 64 bf16'
    """
    found = _DOT.search(ttir)
    return f"{found[1]} x {found[2]} x {found[3]} {found[4]}" if found else ""


def _compiled(cubin: Path) -> Compiled:
    said = json.loads(cubin.with_suffix(".json").read_text())
    registers, stack = usage(cubin)
    ttir = cubin.with_suffix(".ttir")
    product = read_product(ttir.read_text()) if ttir.exists() else ""
    return Compiled(cubin.stem, said["num_warps"], said["shared"], registers, stack, product)


def compiled_in(folder: Path) -> list[Compiled]:
    """The bundled kernels among what lies in a Triton cache."""
    with ThreadPoolExecutor(8) as pool:
        return list(pool.map(_compiled, (path for name in KERNELS for path in sorted(folder.glob(f"*/{name}.cubin")))))


def table(found: Iterable[Compiled]) -> list[str]:
    """The lines of the page's table: one for each kernel and number of warps."""
    groups: dict[tuple[str, int], list[Compiled]] = defaultdict(list)
    for one in found:
        groups[one.kernel, one.warps].append(one)
    lines = [
        "| kernel | warps | compiled | registers of a thread | most shared memory of a block | with a stack |",
        "|---|---:|---:|---|---:|---:|",
    ]
    for (kernel, warps), members in sorted(groups.items()):
        registers = [one.registers for one in members]
        shared, stacks = max(one.shared_bytes for one in members), sum(one.stack_bytes > 0 for one in members)
        cells = (f"`{kernel}`", warps, len(members), f"{min(registers)} to {max(registers)}", f"{shared} bytes", stacks)
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return lines


def page(found: Sequence[Compiled]) -> str:
    """The report."""
    spilling = sorted({one for one in found if one.stack_bytes}, key=lambda one: -one.stack_bytes)
    lines = [
        "# Registers and stack of the bundled kernels",
        "",
        f"{len(found)} compiled kernels, of which {sum(one.stack_bytes > 0 for one in found)} have a stack. Read with "
        "`python -m benchmarks.kernels_resources` from Triton's cache after the GPU suite ran; the module's text has "
        "the commands.",
        "",
        *table(found),
    ]
    if spilling:
        lines += [
            "",
            "## Kernels with a stack",
            "",
            "| kernel | warps | first product (rows x elements x keys) | registers | stack of a thread |",
            "|---|---:|---|---:|---:|",
            *(
                f"| `{one.kernel}` | {one.warps} | {one.product or '-'} | {one.registers} | {one.stack_bytes} bytes |"
                for one in spilling
            ),
        ]
    return "\n".join(lines) + "\n"


def main(argv: Sequence[str] | None = None) -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cache", type=Path, help="the folder that TRITON_CACHE_DIR named")
    parser.add_argument("--out", type=Path, help="write the page to this file instead of printing it")
    given = parser.parse_args(argv)
    text = page(compiled_in(given.cache))
    if given.out:
        write_whole(given.out, text)
    else:
        print(text, end="")


if __name__ == "__main__":
    main()
