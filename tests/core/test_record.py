"""`record` is a frozen dataclass in every respect that matters."""

from __future__ import annotations

import dataclasses
import pickle

import pytest

from decodecalc.record import record


@record
class Point:
    """A record with a default, a factory and a check."""

    x: int
    y: int = 0
    tags: tuple[str, ...] = dataclasses.field(default=(), compare=False, repr=False)
    extra: list[int] = dataclasses.field(default_factory=list, compare=False)

    def __post_init__(self) -> None:
        if self.x < 0:
            raise ValueError("x")


def test_fields_defaults_and_factories_work() -> None:
    """Positional and named values, defaults, fresh factories, the check."""
    a, b = Point(1), Point(x=1, y=2, tags=("t",))
    assert (a.x, a.y, a.tags, b.y, b.tags) == (1, 0, (), 2, ("t",))
    assert a.extra is not Point(1).extra
    assert [f.name for f in dataclasses.fields(Point)] == ["x", "y", "tags", "extra"]
    assert dataclasses.replace(a, y=5) == Point(1, 5)
    assert dataclasses.asdict(b) == {"x": 1, "y": 2, "tags": ("t",), "extra": []}
    with pytest.raises(ValueError, match="x"):
        Point(-1)


def test_instances_are_frozen_compare_by_value_and_hash() -> None:
    """Assignment and deletion raise; fields with compare=False do not count."""
    a = Point(1, 2)
    with pytest.raises(dataclasses.FrozenInstanceError):
        a.x = 3  # type: ignore[misc]
    with pytest.raises(dataclasses.FrozenInstanceError):
        del a.x
    assert a == Point(1, 2, ("other",))
    assert a != Point(2, 2)
    assert a != (1, 2)
    assert len({a, Point(1, 2), Point(3)}) == 2
    assert repr(a) == "Point(x=1, y=2, extra=[])"
    assert pickle.loads(pickle.dumps(a)) == a


@pytest.mark.parametrize(("args", "named"), [((), {}), ((1, 2, (), [], 5), {}), ((1,), {"x": 2}), ((1,), {"z": 2})])
def test_wrong_values_are_refused(args: tuple[object, ...], named: dict[str, object]) -> None:
    """Missing, too many, twice, unknown: TypeError, as a dataclass raises."""
    with pytest.raises(TypeError):
        Point(*args, **named)  # type: ignore[arg-type]


def test_records_can_be_extended() -> None:
    """Fields of the base come first; isinstance holds; a class keeps the methods it brings."""

    @record
    class Named(Point):
        name: str = "n"

        def __repr__(self) -> str:
            return self.name

    assert repr(Named(1, name="m")) == "m"
    assert isinstance(Named(1), Point)
    assert Named(1, 2) == Named(1, 2)
    assert Named(1, 2) != Point(1, 2)
