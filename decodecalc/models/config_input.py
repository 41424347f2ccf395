"""Turns the bytes of a configuration file into a dictionary, or says what is wrong with them."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from decodecalc.errors import InputError, ModelConfigError
from decodecalc.files import MAX_DIGITS, read_bounded

MAX_CONFIG_BYTES = 16 << 20
"""A config.json has a few kB. The largest public one seen, with quantization lists, is below 1 MB."""


def parse_config(data: bytes, where: str) -> dict[str, Any]:
    """The JSON object in `data`; where there is none, ModelConfigError says where and why.

    NaN and Infinity are accepted, because real configurations have them (in `time_step_limit`). A field that this
    package uses is refused at its use when it holds one of them.
    """
    if len(data) > MAX_CONFIG_BYTES:
        raise ModelConfigError(f"{where} is larger than {MAX_CONFIG_BYTES >> 20} MiB, so it is not a config.json")
    try:
        config = json.loads(data.decode("utf-8-sig"), parse_int=_bounded_int)
    except UnicodeDecodeError:
        raise ModelConfigError(f"{where} is not text (UTF-8 JSON expected)") from None
    except RecursionError:
        raise ModelConfigError(f"{where} nests too deeply for a config.json") from None
    except json.JSONDecodeError as error:
        spot = f"line {error.lineno} column {error.colno}"
        at_end = error.pos >= len(error.doc.rstrip()) or error.msg.startswith("Unterminated string")
        what = error.msg.removesuffix(" starting at") + f" at {spot}" + (" (empty or truncated?)" if at_end else "")
        raise ModelConfigError(f"{where} is not JSON: {what}") from None
    except ValueError as error:
        raise ModelConfigError(f"{where} is not usable JSON: {error}") from None
    if not isinstance(config, dict):
        raise ModelConfigError(f"{where} holds a JSON {_json_kind(config)}, not the object of a config.json")
    return config


def read_config(path: Path) -> dict[str, Any]:
    """The configuration in a file, or in `config.json` of a folder."""
    try:
        if path.is_dir():
            path = path / "config.json"
        if not path.exists():
            raise ModelConfigError(f"no such file: {path}")
        data = read_bounded(path, MAX_CONFIG_BYTES, f"configuration {str(path)[:200]}")
    except (OSError, ValueError) as error:  # ValueError: a path with a null byte; InputError is one too
        if isinstance(error, InputError):
            raise ModelConfigError(f"{error} (or pipe the configuration in and name it '-')") from None
        reason = getattr(error, "strerror", None) or error
        raise ModelConfigError(f"cannot read {str(path)[:200]!r}: {reason}") from None
    return parse_config(data, str(path))


def read_stdin() -> dict[str, Any]:
    """The configuration on standard input."""
    return parse_config(sys.stdin.buffer.read(MAX_CONFIG_BYTES + 1), "standard input")


def _bounded_int(digits: str) -> int:
    if len(digits) > MAX_DIGITS:
        raise ValueError(f"a number of {len(digits)} digits")
    return int(digits)


def _json_kind(value: Any) -> str:
    if value is None:
        return "null"
    names = {list: "array", str: "string", bool: "boolean", int: "number", float: "number"}
    return names.get(type(value), type(value).__name__)
