"""What the figures of a verification report draw is what the report's rows say."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pytest

from decodecalc.plot import verification

TIMED = [
    {"claim": 10, "engine": "bundled", "total_s": 1e-5, "predicted_total_s": 1.1e-5, "roofline_s": 0.4e-5,
     "overhead_plus_bytes_s": 0.8e-5},
    {"claim": 10, "engine": "bundled", "total_s": 2e-5, "predicted_total_s": 1.5e-5, "roofline_s": 1e-5,
     "overhead_plus_bytes_s": 1.9e-5},
    {"claim": 10, "engine": "flash-decoding", "total_s": 4e-5, "predicted_total_s": 4.4e-5, "roofline_s": 3e-5,
     "overhead_plus_bytes_s": 3e-5},
]  # fmt: skip
# Rows that are no timing: another claim, and one without a prediction.
OTHERS = [
    {"claim": 9, "engine": "bundled", "total_s": 9.0, "predicted_total_s": 9.0},
    {"claim": 10, "engine": "bundled", "total_s": 9.0, "predicted_total_s": None},
]
SWEPT = {
    "claim": 11, "scenario": "llama3-8b/tp1/bf16/p16", "s_opt": 8, "s_star": 17,
    "split_times_s": [[1, 9e-5], [8, 3e-5], [17, 3.3e-5], [64, 6e-5]],
}  # fmt: skip


class Report(NamedTuple):
    """As much of a report as the figures read."""

    rows: Sequence[Any]


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> Any:
    """drawn(rows) is the axes of each figure, a list, by its name."""

    def draw(rows: Sequence[Any]) -> dict[str, Any]:
        kept: list[Any] = []
        monkeypatch.setattr(verification, "_svg", lambda fig: (kept.append(fig.axes), b"")[1])
        names = list(verification.figures(Report(rows)))  # type: ignore[arg-type]
        return dict(zip(names, kept))

    return draw


def points(axes: Any, label: str) -> Any:
    """Points of the line with that label, [n, 2]."""
    (line,) = [line for line in axes.get_lines() if line.get_label() == label]
    return np.array(line.get_data(), dtype=float).T


def test_only_figures_with_data_are_drawn(drawn: Any) -> None:
    """No timed rows: no figure of times; fewer than three: none of errors; no sweep: none of splits."""
    assert list(drawn(OTHERS)) == []
    assert list(drawn(TIMED[:2])) == ["time"]
    assert list(drawn([*TIMED, SWEPT])) == ["time", "errors", "splits"]


def test_time_draws_predicted_against_measured(drawn: Any) -> None:
    """One point for each timed row, in µs, by the engine whose rule it is; the band is 18 % either way."""
    (axes,) = drawn([*TIMED, *OTHERS])["time"]
    assert points(axes, "bundled's rule") == pytest.approx(np.array([[10.0, 11.0], [20.0, 15.0]]))
    assert points(axes, "flash-decoding's rule") == pytest.approx(np.array([[40.0, 44.0]]))
    (band,) = axes.collections
    vertices = band.get_paths()[0].vertices
    ratios = vertices[:, 1] / vertices[:, 0]
    assert (ratios.min(), ratios.max()) == pytest.approx((0.82, 1.18))
    assert vertices[:, 0].min() < 10
    assert vertices[:, 0].max() > 44
    (diagonal,) = [line for line in axes.get_lines() if str(line.get_label()).startswith("_")]
    assert list(diagonal.get_xdata()) == list(diagonal.get_ydata())


@pytest.mark.parametrize(
    ("label", "key"),
    [
        ("decodecalc", "predicted_total_s"),
        ("overhead + bytes / bandwidth", "overhead_plus_bytes_s"),
        ("roofline", "roofline_s"),
    ],
)
def test_errors_draws_the_share_of_cases_within_an_error(drawn: Any, label: str, key: str) -> None:
    """Errors in per cent of the measured time, sorted, each a third of the cases more."""
    found = points(drawn([*TIMED, *OTHERS])["errors"][0], label)
    errors = sorted(100 * abs(r[key] - r["total_s"]) / r["total_s"] for r in TIMED)
    assert found[:, 0] == pytest.approx(errors)
    assert found[:, 1] == pytest.approx([100 / 3, 200 / 3, 100])


def test_splits_draws_measured_times_over_the_best(drawn: Any) -> None:
    """Each count's time over the fastest; the circle stands at the model's S_opt, the square at S*."""
    (axes,) = drawn([SWEPT])["splits"]
    assert axes.get_title("left") == "llama3-8b, tp1"
    assert points(axes, "measured") == pytest.approx(np.array([[1, 3.0], [8, 1.0], [17, 1.1], [64, 2.0]]))
    marks = {line.get_marker(): (line.get_xdata()[0], line.get_ydata()[0]) for line in axes.get_lines()[1:]}
    assert marks == {"o": pytest.approx((8, 1.0)), "s": pytest.approx((17, 1.1))}


def test_splits_draws_where_the_count_matters_most(drawn: Any) -> None:
    """Of more sweeps than fit, those whose slowest count is furthest from the fastest; each scenario once."""
    many = [
        {**SWEPT, "scenario": f"n{i}", "split_times_s": [[8, 1e-5], [17, 1e-5 * (i + 1)]]} for i in range(9)
    ]  # fmt: skip
    labels = [axes.get_title("left") for axes in drawn([*many, many[8]])["splits"]]
    assert labels == [f"n{i}" for i in range(8, 8 - verification.MOST_CURVES, -1)]


def test_more_engines_than_a_legend_can_tell_apart_get_a_panel_each(drawn: Any) -> None:
    """Beyond four engines every engine's points stand on their own axes under its name."""
    rows = [{**TIMED[0], "engine": f"engine-{i}", "total_s": (i + 1) * 1e-5} for i in range(6)]
    axes = drawn(rows)["time"]
    assert [ax.get_title("left") for ax in axes] == [f"engine-{i}'s rule" for i in range(6)]
    for i, ax in enumerate(axes):
        assert points(ax, f"engine-{i}'s rule") == pytest.approx(np.array([[10.0 * (i + 1), 11.0]]))
