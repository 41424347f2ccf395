"""Policies against trees that hold, differ, are of unknown versions, or have nothing to read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from decodecalc.drift import Verdict, inspect_path
from decodecalc.errors import InputError

Build = Callable[[Mapping[str, str]], Path]
Files = Callable[..., dict[str, str]]


def only(path: Path) -> Verdict:
    """The one verdict about a tree."""
    (verdict,) = inspect_path(str(path))
    return verdict


def test_a_covered_version_that_holds_is_the_same(tree: Build, flash_attn: Files) -> None:
    """flash-attn 2.8.3 with the constants of our policy."""
    verdict = only(tree(flash_attn("2.8.3")))
    assert (verdict.engine, verdict.policy_version, verdict.status) == ("flash-attention-2", "2.8.3", "same")
    assert len(verdict.outcomes) == 9


def test_a_difference_names_file_line_expected_and_found(tree: Build, flash_attn: Files) -> None:
    """A page multiple of 128 instead of 256, and the threshold of the 85 % rule."""
    files = flash_attn("2.8.4", page=128)
    files["csrc/flash_attn/flash_api.cpp"] = files["csrc/flash_attn/flash_api.cpp"].replace("0.85", "0.9")
    verdict = only(tree(files))
    assert verdict.status == "differs"
    found = {o.what: (o.expected, o.found, o.line) for o in verdict.differences}
    assert found["keys that a page must be a multiple of"] == (256, 128, 10)
    assert found["share of the best efficiency that is enough"] == (0.85, 0.9, 4)


def test_an_unknown_newer_version_is_compared_with_the_newest(tree: Build, flash_attn: Files) -> None:
    """flash-attn 2.9.0 is not covered: the newest upstream policy would be used, and its checks are run."""
    verdict = only(tree(flash_attn("2.9.0")))
    assert (verdict.policy_version, verdict.version_known, verdict.status) == ("2.8.4", False, "unknown version")


def test_a_version_between_two_takes_the_older(tree: Build, torch_tree: Files) -> None:
    """torch 2.8.1 lies between the versions that were read (2.8.0 and 2.9.0): the one before it would be used."""
    assert only(tree(torch_tree("2.8.1"))).policy_version == "2.8"


def test_a_checkout_without_a_version_takes_the_newest_that_holds(tree: Build, torch_tree: Files) -> None:
    """Sources with the two-axis grid of torch 2.10 and no version file."""
    text = torch_tree("0")["torch/_inductor/kernel/flex/flex_decoding.py"]
    text = text.replace(
        'return (rows, batch_size * kv_heads, meta["SPLIT_KV"])', 'return (batch_size * kv_heads, meta["SPLIT_KV"], 1)'
    )
    verdict = only(tree({"torch/_inductor/kernel/flex/flex_decoding.py": text}))
    assert (verdict.package_version, verdict.policy_version, verdict.status) == (None, "2.10", "unknown version")
    assert verdict.also == ("2.8",)


def test_a_difference_says_which_versions_would_hold(tree: Build, torch_tree: Files) -> None:
    """torch 2.13 with the grid of 2.10: every check holds for the older versions."""
    files = torch_tree("2.13.0+cu126")
    name = "torch/_inductor/kernel/flex/flex_decoding.py"
    files[name] = files[name].replace(
        'return (rows, batch_size * kv_heads, meta["SPLIT_KV"])', 'return (batch_size * kv_heads, meta["SPLIT_KV"], 1)'
    )
    verdict = only(tree(files))
    assert (verdict.policy_version, verdict.version_known, verdict.status) == ("2.13", True, "differs")
    assert verdict.also == ("2.10", "2.8")
    (difference,) = verdict.differences
    assert (difference.found, difference.expected) == (((24, 10, 1),), ((1, 24, 10),))


def test_the_first_differing_case_is_shown(tree: Build, torch_tree: Files) -> None:
    """A split rule without the factor 2 is shown at the first case where it matters."""
    files = torch_tree("2.13.0")
    name = "torch/_inductor/kernel/flex/flex_decoding.py"
    files[name] = files[name].replace("num_SM // bh * 2", "num_SM // bh")
    (difference,) = only(tree(files)).differences
    assert (difference.expected, difference.found) == (32, 16)
    assert difference.note.startswith("at 1 requests, 8 KV heads and ")


def test_a_compiled_package_has_no_source(tree: Build) -> None:
    """An installed flash-attn is Python and a binary: its policy is chosen by version and cannot be checked."""
    verdict = only(
        tree(
            {
                "flash_attn/flash_attn_interface.py": "",
                "flash_attn-2.8.3.dist-info/METADATA": "Name: flash-attn\nVersion: 2.8.3\n",
            }
        )
    )
    assert (verdict.policy_version, verdict.version_known, verdict.status) == ("2.8.3", True, "no source")


def test_a_python_file_that_moved_or_broke_differs(tree: Build, torch_tree: Files) -> None:
    """A file that is not Python, or holds other functions, is a difference, not a crash."""
    for text in ("def f(:\n", "\0\0", "x = 1\n", "(" * 100_000, "def get_split_k(B, H, Mk):\n    return ask()\n"):
        verdict = only(tree(torch_tree("2.13.0", text)))
        assert verdict.status == "differs"
        assert all(o.found is None and o.note for o in verdict.differences if o.what == "SPLIT_KV")


def test_a_huge_file_is_not_source(tree: Build, torch_tree: Files) -> None:
    """A file of 5 MB is not read."""
    verdict = only(tree(torch_tree("2.13.0", "#" * (5 << 20))))
    assert "too large" in verdict.differences[0].note


def test_a_wheel_and_a_folder_say_the_same(tree: Build, wheel: Build, flash_attn: Files) -> None:
    """The same files zipped."""
    files = flash_attn("2.8.4", page=16)
    in_folder, in_wheel = only(tree(files)), only(wheel(files))
    assert in_folder.outcomes == in_wheel.outcomes
    assert in_wheel.where.endswith(".whl")


def test_a_venv_is_searched_in_its_site_packages(tree: Build, torch_tree: Files) -> None:
    """lib/python3.11/site-packages/torch under the given folder."""
    files = {f"lib/python3.11/site-packages/{name}": text for name, text in torch_tree("2.14.1").items()}
    verdict = only(tree(files))
    assert (verdict.package_version, verdict.policy_version, verdict.status) == ("2.14.1", "2.14", "same")


def test_the_fork_of_flash_attention_is_not_upstream(tree: Build, flash_attn: Files) -> None:
    """A checkout with vllm_flash_attn/ is the fork: page multiple 16 holds there."""
    files = {**flash_attn("2.8.4", page=16), "vllm_flash_attn/flash_attn_interface.py": ""}
    verdicts = {v.engine: v for v in inspect_path(str(tree(files)))}
    assert verdicts["flash-attention-2"].policy_version == "vllm-0.33"
    assert verdicts["flash-attention-2"].status == "same"
    assert verdicts["flash-attention-2"].package == "vllm-flash-attn"


@pytest.mark.parametrize("name", ["junk.whl", "junk.tar.gz", "junk.txt", "empty.whl"])
def test_files_that_are_not_packages_are_refused(tmp_path: Path, name: str) -> None:
    """Junk of any name is bad input with the reason."""
    path = tmp_path / name
    path.write_bytes(b"" if name.startswith("empty") else b"PK\x03\x04 not really" * 9)
    with pytest.raises(InputError, match=name):
        inspect_path(str(path))


def test_a_truncated_wheel_and_a_damaged_member_are_refused(wheel: Build, flash_attn: Files) -> None:
    """A wheel cut short has no directory; one with flipped bytes breaks where it is read."""
    path = wheel(flash_attn("2.8.4"))
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])
    with pytest.raises(InputError, match="not a wheel"):
        inspect_path(str(path))
    damaged = bytearray(data)
    at = data.index(b"0.85")
    damaged[at : at + 4] = b"9.99"
    path.write_bytes(bytes(damaged))
    with pytest.raises(InputError, match="damaged"):
        inspect_path(str(path))


def test_a_folder_without_engines_is_refused(tmp_path: Path) -> None:
    """The message lists what is looked for."""
    with pytest.raises(InputError, match=r"none of vllm, sglang"):
        inspect_path(str(tmp_path))
