"""What MkDocs does here beyond Markdown: generated reference pages and figures, our reports, formulas as MathML."""

from __future__ import annotations

import html
import re
import sys
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "docs"), str(ROOT)]

import gallery  # noqa: E402
import generate  # noqa: E402
import layers  # noqa: E402

_LINK = re.compile(r"(!?)\[([^\]]*)\]\((?!https?://|#)([^)]+)\)")
_SUMMARIES = ("**", "Below 64 MB of KV")
_MATH = re.compile(r'<(?P<tag>span|div) class="arithmatex">\\[(\[](?P<tex>.*?)\\[)\]]</(?P=tag)>', re.DOTALL)


def reports() -> dict[str, Path]:
    """Committed reports that are Markdown: page name -> file."""
    found = sorted((ROOT / "reports").rglob("*.md"))
    return {f"reports/{path.relative_to(ROOT / 'reports').as_posix()}": path for path in found}


def on_config(config: Any) -> Any:
    """Reports stand in the navigation, under Accuracy, when there are any."""
    pages = list(reports())
    for entry in config.nav:
        if pages and "Accuracy" in entry and isinstance(entry["Accuracy"], str):
            entry["Accuracy"] = [{"What is exact, what is modelled": entry["Accuracy"]}, *pages]
    return config


def on_files(files: Any, config: Any) -> Any:
    """Add the generated pages, the figures and the reports."""
    for name, make in generate.PAGES.items():
        files.append(File.generated(config, name, content=make()))
    for name, make_figure in gallery.figures().items():
        files.append(File.generated(config, f"figures/{name}", content=make_figure()))
    files.append(File.generated(config, "figures/layers.png", content=layers.draw()))
    for name, path in reports().items():
        files.append(File.generated(config, name, content=_report(name, path)))
    return files


def _report(name: str, path: Path) -> str:
    """A report as a page. Links to files that are no pages keep their words only."""
    pages = reports()

    def link(match: re.Match[str]) -> str:
        mark, words, target = match.groups()
        target = target.split("#")[0]
        inside = (path.parent / target).resolve()
        is_page = not mark and any(inside == other.resolve() for other in pages.values())
        return match[0] if is_page else f"`{words or target}`"

    return _LINK.sub(link, path.read_text(encoding="utf-8"))


def _report_list() -> list[str]:
    """One line a report: its title and, where it has one, its summary (the first line in bold or of a known kind)."""
    out = []
    for name, path in reports().items():
        lines = path.read_text(encoding="utf-8").splitlines()
        title = next((line.lstrip("# ") for line in lines if line.startswith("#")), name)
        summary = next((line for line in lines if line.startswith(_SUMMARIES)), "")
        out.append(f"- [{title}]({name})" + (f": {summary}" if summary else ""))
    return out


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """`<!-- gallery -->`, `<!-- reports -->`: lists of what there is."""
    if "<!-- gallery -->" in markdown:
        markdown = markdown.replace("<!-- gallery -->", gallery.page())
    if "<!-- reports -->" in markdown:
        markdown = markdown.replace("<!-- reports -->", "\n".join(_report_list()) or "None committed yet.")
    return markdown


def on_page_content(content: str, **_: Any) -> str:
    """Formulas become MathML, which browsers draw without a script."""
    from latex2mathml.converter import convert

    def formula(match: re.Match[str]) -> str:
        display = "block" if match["tag"] == "div" else "inline"
        return convert(html.unescape(match["tex"]), display=display)

    return _MATH.sub(formula, content)
