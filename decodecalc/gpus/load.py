"""Turns what a user names into a `Gpu`: a table name, a GPU file, or a `Gpu` itself."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Any

from decodecalc.errors import InputError, UnknownNameError
from decodecalc.files import read_bounded
from decodecalc.gpus.fields import FIELDS, shown
from decodecalc.gpus.gpu import Gpu
from decodecalc.gpus.table import FieldInfo, find_name, is_name, table_fields, table_gpu

_MAX_FILE_BYTES = 1 << 20
_REQUIRED = ("name", "sm_count", "hbm_bytes_per_s")


def load_gpu(spec: str | os.PathLike[str] | Mapping[str, Any] | Gpu) -> Gpu:
    """A GPU from a table name or alias, the path of a GPU file (.json or .toml), a mapping like one, or itself.

    Names ignore case and punctuation. A GPU file holds fields of `Gpu` in SI units; `name`, `sm_count` and
    `hbm_bytes_per_s` are required unless `base` names a GPU of the table, whose values then fill the rest.
    Raises UnknownNameError (a name or field that does not exist) or InputError (a file or value that cannot be used).

    >>> load_gpu("H100").name, load_gpu("rtx 4090").sm_count
    ('h100-sxm', 128)
    >>> load_gpu({"base": "h100-sxm", "name": "h100-slow", "hbm_bytes_per_s": 3.0e12}).sm_count
    132
    """
    if isinstance(spec, Gpu):
        return spec
    if isinstance(spec, Mapping):
        return _from_mapping(spec, "GPU mapping", "given")
    if isinstance(spec, os.PathLike):
        return _from_file(os.fspath(spec))
    if not isinstance(spec, str):
        raise InputError(f"a GPU must be a name, a .json or .toml file, or a Gpu, not {type(spec).__name__}")
    return _from_file(os.path.expanduser(spec)) if _is_path(spec) else table_gpu(find_name(spec))


def _is_path(spec: str) -> bool:
    """Whether the text is a path: it ends like a GPU file or has a directory in it. A driver name may hold a slash
    (MI250X/MI250)."""
    if spec.lower().endswith((".json", ".toml")) or spec.startswith((".", "~", os.sep)):
        return True
    return any(sep in spec for sep in (os.sep, os.altsep) if sep) and not is_name(spec)


def gpu_fields(spec: str | os.PathLike[str] | Mapping[str, Any] | Gpu) -> tuple[FieldInfo, ...]:
    """Every field of a GPU with its value, unit, source, confidence and note, and the values of sources that disagree.

    Fields that a file or the live device supplied have confidence `given`.
    """
    gpu = load_gpu(spec)
    table = table_fields(gpu.table_name) if gpu.table_name else {}
    out = []
    for field, known in FIELDS.items():
        value = getattr(gpu, field)
        if field in table and table[field].value == value:
            out.append(table[field])
        elif value is not None and field not in ("name", "display_name", "absent_tensor_modes"):
            out.append(FieldInfo(field, value, known.unit, gpu.origin, "given", "", ()))
    return tuple(out)


def _from_mapping(given: Mapping[str, Any], where: str, origin: str) -> Gpu:
    for key in given:
        if key != "base" and key not in FIELDS:
            raise UnknownNameError("field", str(key), [*FIELDS, "base"], hint=f"in {where}")
    values = dict(given)
    base = values.pop("base", None)
    if base is not None and not isinstance(base, str):
        raise InputError(f"{where}: base must be the name of a GPU, not {shown(base)}")
    missing = [key for key in (_REQUIRED if base is None else ("name",)) if values.get(key) is None]
    if missing:
        hint = "" if base is not None else ' (or "base": a GPU to start from)'
        raise InputError(f"{where}: {', '.join(missing)} must be given{hint}")
    try:
        if base is None:
            return Gpu(**values, origin=origin)
        parent = table_gpu(find_name(base))
        inherited = {"display_name": None, "device_names": (), "origin": origin}
        return parent.with_(**{**inherited, **values})
    except InputError as error:
        if isinstance(error, UnknownNameError):
            raise
        raise InputError(f"{where}: {error}") from None


def _from_file(path: str) -> Gpu:
    where = f"GPU file {path!r:.200}"
    suffix = os.path.splitext(path)[1].lower()
    if suffix not in (".json", ".toml"):
        raise InputError(f"{where}: its name must end in .json or .toml (or give a GPU name: `decodecalc gpus`)")
    try:
        text = read_bounded(path, _MAX_FILE_BYTES, where).decode("utf-8-sig")
    except UnicodeDecodeError:
        raise InputError(f"{where}: not UTF-8 text") from None
    try:
        data = _parse_toml(text) if suffix == ".toml" else _parse_json(text)
    except (ValueError, RecursionError) as error:
        reason = str(error)[:120] if isinstance(error, ValueError) else "nested too deeply"
        raise InputError(f"{where}: not {suffix[1:].upper()}: {reason}") from None
    if not isinstance(data, dict):
        raise InputError(f"{where}: must hold one object of GPU fields, not {type(data).__name__}")
    return _from_mapping(data, where, f"file {os.path.basename(path)}")


def _parse_json(text: str) -> Any:
    import json

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        keys = [key for key, _ in pairs]
        twice = next((key for key in keys if keys.count(key) > 1), None)
        if twice is not None:
            raise ValueError(f"{twice[:60]!r} appears twice")
        return dict(pairs)

    return json.loads(text, object_pairs_hook=once)


def _parse_toml(text: str) -> Any:
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib  # type: ignore[import-not-found, unused-ignore]

    return tomllib.loads(text)
