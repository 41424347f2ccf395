"""`--html FILE` of every command that has it: what stands on the pages, and how a real browser lays them out."""

from __future__ import annotations

import json
import shutil
import subprocess
from html import unescape
from pathlib import Path
from typing import Any

import pytest

from decodecalc.cli.main import run

TRACES = Path(__file__).parents[1] / "data" / "traces"
REPORT = Path(__file__).parents[2] / "reports" / "h200" / "verify.json"
COMMANDS: dict[str, tuple[str, ...]] = {
    "grid": ("grid", "--model", "llama3-8b", "--tp", "8"),
    "grid-many": ("grid", "--model", "llama3-8b", "--batch", "1:64:1", "--engine", "vllm-triton"),
    "grid-groups": ("grid", "--model", "gemma3-27b", "--engine", "flash-attention-3,vllm-triton", "--batch", "1,4"),
    "grid-gpus": ("grid", "--model", "llama3-8b,llama3-70b", "--gpu", "h100,a100", "--engine", "vllm-triton"),
    "predict": ("predict", "--model", "llama3-8b", "--gpu", "h200", "--engine", "all", "--kernel", "both"),
    "choose": ("choose", "--model", "llama3-70b", "--tp", "8", "--gpu", "h200", "--context", "32k"),
    "choose-curve": ("choose", "--model", "llama3-70b", "--tp", "8", "--gpu", "h200", "--curve"),
    "step": ("step", "--model", "llama3.1-70b", "--tp", "8", "--gpu", "h200", "--batch", "1,16"),
    "kv": ("kv", "--model", "llama3-8b", "--gpu", "h200"),
    "serve": ("serve", "vllm serve meta-llama/Llama-3.1-70B-Instruct -tp 8 --max-num-seqs 64", "--gpu", "h100"),
    "audit": ("audit", str(TRACES / "h200_b.json.gz"), "--model", "llama3-70b", "--tp", "8", "--seq-lens", "32768"),
    "audit-failed": (
        "audit", str(TRACES / "h200_d.json.gz"), "--q-heads", "32", "--kv-heads", "8", "--batch", "16",
        "--context", "2000",
    ),
}  # fmt: skip
WIDTHS = (1280, 800, 400)


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A page of every command, and the report page of a run with checks that failed and are off."""
    folder = tmp_path_factory.mktemp("pages")
    made = {}
    for name, argv in COMMANDS.items():
        made[name] = folder / f"{name}.html"
        code = run([*argv, "--html", str(made[name]), "--output", str(folder / "table.txt")])
        assert code == (name == "audit-failed")
    made["verify"] = folder / "verify.html"
    assert run(["report", "merge", str(REPORT), "--format", "html", "--output", str(made["verify"])]) == 1
    return made


@pytest.mark.parametrize("name", COMMANDS)
def test_a_page_says_how_to_make_it_again(pages: dict[str, Path], name: str) -> None:
    """The command that was typed stands on the page, with the version of decodecalc."""
    text = pages[name].read_text()
    import shlex

    typed = unescape(text.partition("<pre>")[2].partition("</pre>")[0])
    assert shlex.split(typed)[1 : 1 + len(COMMANDS[name])] == list(COMMANDS[name])
    assert "<dt>decodecalc</dt>" in text


@pytest.mark.parametrize("name", [*COMMANDS, "verify"])
def test_a_page_needs_nothing_from_elsewhere(pages: dict[str, Path], name: str) -> None:
    """No scripts, no addresses, no files beside it."""
    text = pages[name].read_text()
    assert "<script" not in text
    assert "http" not in text
    assert not [part for part in text.split('href="')[1:] if not part.startswith("#")]
    assert 'src="' not in text


@pytest.mark.parametrize("name", COMMANDS)
def test_a_page_has_a_figure_with_a_question_and_a_caption(pages: dict[str, Path], name: str) -> None:
    """The picture stands above the table and can be read out."""
    text = pages[name].read_text()
    assert "?</strong><svg" in text
    assert 'role="img" aria-label="' in text
    assert "<figcaption>" in text


def test_pages_name_the_sources_of_their_numbers(pages: dict[str, Path]) -> None:
    """The GPU's and the model's source, the calibration, and the release that every engine's rule was read from."""
    text = pages["predict"].read_text()
    for words in ("<dt>model llama3-8b</dt>", "<dt>GPU h200-sxm</dt>", "<dt>times</dt>", "measured on NVIDIA H200"):
        assert words in text
    assert "<dt>vllm-triton 0." in text


def test_a_page_is_the_same_when_it_is_made_again(pages: dict[str, Path], tmp_path: Path) -> None:
    """Nothing on a page depends on the moment; only the command names another file."""
    again = tmp_path / "grid.html"
    run([*COMMANDS["grid"], "--html", str(again), "--output", str(tmp_path / "t.txt")])

    def without_command(path: Path) -> str:
        before, _, rest = path.read_text().partition("<pre>")
        return before + rest.partition("</pre>")[2]

    assert without_command(again) == without_command(pages["grid"])


def test_neither_file_is_written_where_one_cannot_be(call: Any, tmp_path: Path) -> None:
    """A page in a folder that does not exist is refused before the table is written, and the other way round."""
    table, page = tmp_path / "t.csv", tmp_path / "p.html"
    result = call(*COMMANDS["grid"], "--html", str(tmp_path / "no" / "p.html"), "--output", str(table))
    assert result.code == 2
    assert not table.exists()
    result = call(*COMMANDS["grid"], "--html", str(page), "--output", str(tmp_path / "no" / "t.csv"))
    assert result.code == 2
    assert not page.exists()


def test_hostile_names_stay_text_on_the_page_and_in_its_command(call: Any, tmp_path: Path) -> None:
    """A model file's name can hold markup and escapes; the page shows them."""
    folder = tmp_path / "<b>\x1b[31m&amp;"
    folder.mkdir()
    config = {
        "model_type": "llama", "num_hidden_layers": 2, "num_attention_heads": 8, "num_key_value_heads": 8,
        "hidden_size": 1024,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    page = tmp_path / "p.html"
    result = call("grid", "--model", str(folder), "--html", str(page))
    assert result.code == 0, result.err
    text = page.read_text()
    assert "<b>" not in text
    assert "\x1b" not in text
    assert "&lt;b&gt;\\x1b[31m&amp;amp;" in text


# What a browser is asked about every page at every width: whether anything is wider than the window, which tables and
# cells are cut, which letters of a figure leave its frame, and the least contrast of any text with the ground.
PROBE = """
function parts(d, w) {
  for (const e of d.querySelectorAll('details')) e.open = true;
  const root = d.documentElement, out = {over: root.scrollWidth - root.clientWidth, width: w};
  out.tables = [...d.querySelectorAll('.wide')].map(e => e.scrollWidth - e.clientWidth);
  out.cells = [...d.querySelectorAll('td, th, dd, summary, p')].filter(e => e.scrollWidth > e.clientWidth + 1)
    .map(e => e.textContent.slice(0, 60));
  out.letters = [];
  for (const svg of d.querySelectorAll('svg')) {
    const frame = svg.getBoundingClientRect();
    for (const t of svg.querySelectorAll('text')) {
      const box = t.getBoundingClientRect();
      if (box.left < frame.left - 1 || box.right > frame.right + 1 || box.top < frame.top - 1 ||
          box.bottom > frame.bottom + 1) out.letters.push(t.textContent.slice(0, 60));
    }
  }
  const light = c => { const v = c.match(/[\\d.]+/g).slice(0, 3).map(x => x / 255)
    .map(x => x <= 0.04045 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4);
    return 0.2126 * v[0] + 0.7152 * v[1] + 0.0722 * v[2]; };
  const ground = light(getComputedStyle(d.body).backgroundColor);
  const contrast = c => (Math.max(light(c), ground) + 0.05) / (Math.min(light(c), ground) + 0.05);
  const text = [...d.querySelectorAll('p, td, th, dt, dd, li, summary, figcaption, pre, h1, h2, strong')]
    .map(e => getComputedStyle(e).color);
  out.text = Math.min(...text.map(contrast));
  out.figure = Math.min(99, ...[...d.querySelectorAll('svg text')].map(e => contrast(getComputedStyle(e).fill)));
  out.ground = ground;
  return out;
}
onload = () => {
  const found = {};
  for (const f of document.querySelectorAll('iframe'))
    (found[f.dataset.name] ??= []).push(parts(f.contentDocument, +f.width));
  document.title = JSON.stringify(found);
};
"""
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


@pytest.fixture(scope="module", params=["light", "dark"])
def laid_out(request: pytest.FixtureRequest, pages: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What a real browser says of every page at every width, in the light and in the dark scheme."""
    if CHROMIUM is None:
        pytest.skip("needs a browser (Debian: apt-get install chromium)")
    folder = tmp_path_factory.mktemp("browser")
    frames = "".join(
        f'<iframe src="file://{path}" data-name="{name}" width="{width}" height="800"></iframe>'
        for name, path in pages.items()
        for width in WIDTHS
    )
    probe = folder / "probe.html"
    scheme = '<meta charset="utf-8"><meta name="color-scheme" content="light dark">'
    probe.write_text(f"<!doctype html>{scheme}{frames}<script>{PROBE}</script>")
    done = subprocess.run(
        [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
         "--allow-file-access-from-files", f"--user-data-dir={folder / 'profile'}", "--virtual-time-budget=20000",
         f"--blink-settings=preferredColorScheme={0 if request.param == 'dark' else 1}", "--dump-dom",
         f"file://{probe}"],
        capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    title = unescape(done.stdout.partition("<title>")[2].partition("</title>")[0])
    assert title, done.stderr[-500:]
    return request.param, json.loads(title)


def test_a_browser_shows_pages_without_sideways_scrolling(laid_out: Any) -> None:
    """No page is wider than its window, at any width; at 1280 no table is wider than the page."""
    _, found = laid_out
    for name, widths in found.items():
        assert [w["width"] for w in widths] == list(WIDTHS)
        for one in widths:
            assert one["over"] <= 0, (name, one)
            assert max(one["tables"], default=0) <= 0, (name, one)


def test_a_browser_cuts_no_text(laid_out: Any) -> None:
    """Neither a cell of a table nor a word of a figure loses a letter."""
    _, found = laid_out
    for name, widths in found.items():
        for one in widths:
            assert one["cells"] == [], (name, one["width"])
            assert one["letters"] == [], (name, one["width"])


def test_the_dark_scheme_reaches_everything(laid_out: Any) -> None:
    """The ground is dark exactly in the dark scheme, and all text, that of figures too, can be told from it."""
    scheme, found = laid_out
    for name, widths in found.items():
        for one in widths:
            assert (one["ground"] < 0.02) == (scheme == "dark"), name
            assert one["text"] >= 4.5, (name, one)
            assert one["figure"] >= 4.0, (name, one)
