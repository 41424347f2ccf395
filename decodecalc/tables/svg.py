"""A picture as markup inside a page: its names are its own, and its colours follow the reader's light or dark scheme.

Every colour becomes a variable with two values. Greys are mirrored (black ink on white becomes light ink on the page's
dark ground), and colours that would be too dim on the dark ground are made lighter until they can be told from it.
"""

from __future__ import annotations

import colorsys
import re

DARK_GROUND = "#14171a"
"""The ground of a page in the dark scheme."""
LEAST_CONTRAST = 4.0
"""Of a colour on the dark ground, as WCAG 2 defines contrast; it asks for 3 of graphics and 4.5 of small text."""

_COLOUR = re.compile(r"#[0-9a-fA-F]{6}\b")
_TAG = re.compile(r"<[^>]+>")
_NAMED = re.compile(r'\b(id="|href="#|url\(#)([^")]+)')


def inline(svg: bytes, prefix: str, title: str) -> str:
    """The picture's <svg> element. prefix: put in front of every name, so that two pictures in one page do not clash;
    title: escaped text that is read out to who cannot see the picture."""
    text = svg.decode("utf-8")
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>\s*", "", text, flags=re.DOTALL)
    text = _NAMED.sub(rf"\g<1>{prefix}\g<2>", text)
    found = {"#000000": None}  # what has no colour of its own is black

    def variable(colour: re.Match[str]) -> str:
        found[colour[0].lower()] = None
        return f"var(--{prefix}{colour[0][1:].lower()})"

    text = _TAG.sub(lambda tag: _COLOUR.sub(variable, tag[0]), text)  # in tags only: a name may look like a colour
    light = "".join(f"--{prefix}{c[1:]}: {c};" for c in found)
    dark = "".join(f"--{prefix}{c[1:]}: {in_the_dark(c)};" for c in found)
    name = f"{prefix}figure"
    ink = f"fill: var(--{prefix}000000);"
    style = f"<style>.{name} {{ {ink} {light} }} @media (prefers-color-scheme: dark) {{ .{name} {{ {dark} }} }}</style>"
    head, _, rest = text.partition(">")
    head = re.sub(r'\s(width|height|xmlns|xmlns:xlink)="[^"]*"', "", head)  # a page knows these names by itself
    return f'{head} class="{name}" role="img" aria-label="{title}">{style}{rest.rstrip()}'


def in_the_dark(colour: str) -> str:
    """The colour for the dark scheme.

    >>> in_the_dark("#ffffff"), in_the_dark("#000000"), in_the_dark("#E69F00")
    ('#14171a', '#ebebeb', '#e69f00')
    """
    red, green, blue = (int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))
    hue, light, saturation = colorsys.rgb_to_hls(red, green, blue)
    if max(red, green, blue) - min(red, green, blue) < 0.08:  # a grey
        return DARK_GROUND if light > 0.98 else _hex(*(0.08 + 0.84 * (1 - light),) * 3)
    while contrast((red, green, blue), DARK_GROUND) < LEAST_CONTRAST:
        light += 0.02
        red, green, blue = colorsys.hls_to_rgb(hue, light, saturation)
    return _hex(red, green, blue)


def contrast(rgb: tuple[float, float, float], other: str) -> float:
    """The contrast of two colours by WCAG 2, from 1 to 21."""
    a, b = _luminance(rgb), _luminance(tuple(int(other[i : i + 2], 16) / 255 for i in (1, 3, 5)))
    return (max(a, b) + 0.05) / (min(a, b) + 0.05)


def _luminance(rgb: tuple[float, ...]) -> float:
    linear = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in rgb)
    return sum(weight * c for weight, c in zip((0.2126, 0.7152, 0.0722), linear))


def _hex(red: float, green: float, blue: float) -> str:
    return "#" + "".join(f"{round(255 * min(max(c, 0.0), 1.0)):02x}" for c in (red, green, blue))
