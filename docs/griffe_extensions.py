"""What griffe has to be told about this code: doctests are code, and a `@record` class has the fields as parameters."""

from __future__ import annotations

from typing import Any

import griffe


class Doctests(griffe.Extension):
    """Fences every run of `>>>` lines with what they print, so that Markdown does not read them as quotations."""

    def on_instance(self, *, obj: Any, **_: Any) -> None:
        if obj.docstring is not None and ">>>" in obj.docstring.value:
            obj.docstring.value = fenced(obj.docstring.value)


class Records(griffe.Extension):
    """Gives `@record` classes (decodecalc/record.py) the signature that they have at run time."""

    def on_class(self, *, cls: Any, **_: Any) -> None:
        decorators = {str(d.value) for d in cls.decorators}
        if "record" in decorators and "__init__" not in cls.members:
            self._add_init(cls)

    def _add_init(self, cls: Any) -> None:
        keyword = griffe.ParameterKind.positional_or_keyword
        fields = [
            griffe.Parameter(name, annotation=member.annotation, kind=keyword, default=default_of(member.value))
            for name, member in cls.members.items()
            if member.is_attribute and member.annotation is not None and "property" not in member.labels
        ]
        cls.set_member("__init__", griffe.Function("__init__", parameters=griffe.Parameters(*fields), parent=cls))


def default_of(value: Any) -> Any:
    """What a parameter shows as its default: of `field(default=x)` the x."""
    if not isinstance(value, griffe.ExprCall):
        return value
    for argument in value.arguments:
        if isinstance(argument, griffe.ExprKeyword) and argument.name in ("default", "default_factory"):
            return argument.value
    return None


def fenced(text: str) -> str:
    """`text` with each doctest in a pycon block.

    A doctest ends at an empty line, as for the doctest module itself.
    """
    out: list[str] = []
    inside = False
    for line in text.splitlines():
        if not inside and line.startswith(">>>"):
            out += ["", "```pycon"]
            inside = True
        elif inside and not line.strip():
            out.append("```")
            inside = False
        out.append(line)
    return "\n".join([*out, "```"] if inside else out)
