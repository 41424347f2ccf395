"""Start-up stays light: what the analytical side must not import."""

from __future__ import annotations

import subprocess
import sys

HEAVY = ("torch", "triton", "pandas", "matplotlib", "huggingface_hub", "ijson", "pyarrow", "scipy", "numpy.ma")


def loaded_after(code: str) -> set[str]:
    """Heavy top-level modules in sys.modules after `code` ran in a fresh interpreter."""
    probe = f"import sys\n{code}\nprint(','.join(m for m in {HEAVY!r} if m in sys.modules))"
    out = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)
    return {name for name in out.stdout.splitlines()[-1].split(",") if name}


def test_the_main_command_imports_nothing_heavy() -> None:
    """`decodecalc grid --model llama3-8b --tp 8` needs neither torch, triton, pandas nor matplotlib."""
    run = "from decodecalc.cli.main import run\nassert run(['grid', '--model', 'llama3-8b', '--tp', '8']) == 0"
    assert loaded_after(run) == set()


def test_the_public_api_imports_nothing_heavy() -> None:
    """Every analytical public name can be used on a laptop without the optional dependencies."""
    use = (
        "import decodecalc as dc\n"
        "geo = dc.load_model('llama3-8b').shard(tp=8).layer_groups[0].geometry\n"
        "plan = dc.plan('flash-decoding', geo, dc.Batch.uniform(1, 2560), gpu=dc.load_gpu('h100-sxm'))\n"
        "dc.occupancy(plan, plan.gpu), dc.traffic(plan), dc.roofline(plan, plan.gpu), dc.paging(plan, plan.kv)"
    )
    assert loaded_after(use) == set()


def test_every_public_name_exists() -> None:
    """`decodecalc.__all__` promises nothing that is not there."""
    import decodecalc

    assert [name for name in decodecalc.__all__ if not hasattr(decodecalc, name)] == []
