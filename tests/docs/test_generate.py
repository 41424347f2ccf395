"""Reference pages hold everything that the code has."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from types import ModuleType

import pytest

import decodecalc
from decodecalc.engines import engine_names, load_policy

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def generate(docs_module: Callable[[str], ModuleType]) -> ModuleType:
    """docs/generate.py."""
    return docs_module("generate")


def test_every_command_and_every_option_is_described(generate: ModuleType) -> None:
    """What --help lists stands in the page."""
    import click

    from decodecalc.cli.main import COMMANDS, cli

    page = generate.commands()
    for name in COMMANDS:
        try:
            command = cli.get_command(click.Context(cli), name)
        except ImportError:
            continue
        assert f"\n## {name}\n" in page
        found = command.commands.values() if isinstance(command, click.Group) else [command]
        for param in (p for one in found for p in one.params if isinstance(p, click.Option)):
            assert f"`{param.opts[0]}`" in page, (name, param.opts)


@pytest.mark.parametrize("name", engine_names())
def test_every_policy_shows_rule_versions_and_options(generate: ModuleType, name: str) -> None:
    """One section for each engine, with a row for each version and option."""
    page, policy = generate.engines(), load_policy(name)
    section = page.split(f"\n## {name}\n")[1].split("\n## ")[0]
    assert all(f"| `{version.name}` |" in section for version in policy.versions)
    assert all(f"| `{f.name}` |" in section for f in fields(policy.options_type))


def test_every_public_name_is_in_the_api_page(generate: ModuleType) -> None:
    """decodecalc.__all__ and the page agree."""
    page = generate.api()
    for name in decodecalc.__all__:
        if name != "__version__":
            value = getattr(decodecalc, name)
            assert f"::: {value.__module__}.{value.__qualname__}\n" in page, name


def test_gallery_figures_are_commands_of_the_tool(docs_module: Callable[[str], ModuleType]) -> None:
    """Every figure of the tool is in the gallery, and every caption names a figure that exists."""
    from decodecalc.plot import FIGURES

    drawn = {figure.argv[1] for figure in docs_module("gallery").FIGURES}
    assert drawn == set(FIGURES)


def test_every_page_of_the_navigation_exists(generate: ModuleType) -> None:
    """mkdocs.yml names files in docs/ or generated pages, and no file in docs/ is left out."""
    nav = (ROOT / "mkdocs.yml").read_text().split("\nnav:\n")[1]
    named = {line.split(": ")[1] for line in nav.splitlines() if line.endswith(".md")}
    there = {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")}
    assert named == there | set(generate.PAGES)
