"""Run-config values from preset files and from the command line, still unchecked."""

import re
import tomllib
from pathlib import Path
from typing import Any

from fedhet_app.config import DEFAULTS
from fedhet_app.errors import FedhetError
from fedhet_app.options import Scalar

_PAIR = re.compile(r"""\s*([^\s='"]+)=('[^']*'|"[^"]*"|[^\s'"]+)(?=\s|$)""")


def load_toml(path: Path) -> dict[str, Scalar]:
    """Return the values of a preset, nested tables under dotted keys as Flower flattens them.

    Args:
        path: The file, as ``flwr run --run-config`` takes it.

    Raises:
        FedhetError: There is no such file, it is not TOML, or a value is no scalar.
    """
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        remedy = f"cannot be read ({error.strerror}); give the path of a preset"
        raise FedhetError("preset", str(path), remedy) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise FedhetError("preset", str(path), f"is not valid TOML: {error}") from None
    return flatten_tables(tables)


def parse_pairs(text: str) -> dict[str, Scalar]:
    """Return the values of ``key=value`` pairs separated by spaces.

    Values are written as in TOML, but text needs quotes only where it holds a space.

    Raises:
        FedhetError: Something is not a pair, or a key is given twice.
    """
    pairs: dict[str, Scalar] = {}
    position = 0
    text = text.rstrip()
    while position < len(text):
        match = _PAIR.match(text, position)
        if match is None:
            remedy = "must be key=value pairs separated by spaces; quote a value that holds a space"
            raise FedhetError("--set", text[position:].strip(), remedy)
        if match[1] in pairs:
            remedy = f"{match[1]} is given twice; keep one"
            raise FedhetError("--set", f"{match[1]}={match[2]}", remedy)
        pairs[match[1]] = _value(match[1], match[2])
        position = match.end()
    return pairs


def _value(key: str, text: str) -> Scalar:
    quoted = text[0] in "'\""
    if not quoted and (isinstance(DEFAULTS.get(key), str) or "#" in text):  # would start a comment
        return text
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text.strip("'\"")
    return value if isinstance(value, Scalar) else text


def flatten_tables(tables: dict[str, Any], prefix: str = "") -> dict[str, Scalar]:
    """Return the values of nested tables under dotted keys.

    Raises:
        FedhetError: A value is no scalar.
    """
    flat: dict[str, Scalar] = {}
    for name, value in tables.items():
        key = prefix + name
        if isinstance(value, dict):
            flat |= flatten_tables(value, f"{key}.")
        elif isinstance(value, Scalar):
            flat[key] = value
        else:
            remedy = "must be true, false, a number or text; write a list as '0.5,1.0'"
            raise FedhetError(key, value, remedy)
    return flat
