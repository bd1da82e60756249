"""What one option may be, and how dataclasses of options are read from and written to flat keys.

An option is a dataclass field: its default is the field's, its key is the field's name in
kebab-case, and its type hint says what it may be: ``bool``, ``int``, ``float`` or ``str``, a
``Literal`` of names, or a number annotated with an ``Interval``. A field that is itself a dataclass
holds the options of one method, whose keys stand behind the method's name and a dot.
"""

import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from fedhet_app.errors import FedhetError

Scalar = bool | int | float | str
Options = TypeVar("Options")


@dataclass(frozen=True)
class Interval:
    """The numbers from ``low`` to ``high``, either end open or closed."""

    low: float
    high: float = math.inf
    open_low: bool = False
    open_high: bool = False

    def __contains__(self, value: float) -> bool:
        above = value > self.low if self.open_low else value >= self.low
        below = value < self.high if self.open_high else value <= self.high
        return above and below

    def __str__(self) -> str:
        if self.high == math.inf:
            return f"{'above' if self.open_low else 'at least'} {self.low}"
        left, right = "(" if self.open_low else "[", ")" if self.open_high else "]"
        return f"in {left}{self.low}, {self.high}{right}"


Count = Annotated[int, Interval(1)]
CountOrZero = Annotated[int, Interval(0)]
Seed = Annotated[int, Interval(0, 2**31 - 1)]
Positive = Annotated[float, Interval(0, open_low=True)]
NonNegative = Annotated[float, Interval(0)]
Share = Annotated[float, Interval(0, 1, open_low=True)]
Fraction = Annotated[float, Interval(0, 1, open_low=True, open_high=True)]
Amplitude = Annotated[float, Interval(0, 1)]
Decay = Annotated[float, Interval(0, 1, open_high=True)]

_EXPECTED = {
    bool: "must be true or false, without quotes",
    int: "must be a whole number, without quotes or a decimal point",
    float: "must be a number, without quotes",
    str: "must be text, in quotes",
}


def build(kind: type[Options], values: Mapping[str, Scalar], prefix: str = "") -> Options:
    """Fill a dataclass of options; what ``values`` does not name keeps its default.

    Args:
        kind: The dataclass.
        values: Values by key; keys that are no option of ``kind`` are not looked at.
        prefix: What its keys start with.

    Raises:
        FedhetError: A value is of the wrong type or outside what its option may be.
    """
    hints = get_type_hints(kind, include_extras=True)
    arguments: dict[str, Any] = {}
    for name, key in _keys(kind, prefix).items():
        if is_dataclass(hints[name]):
            arguments[name] = build(hints[name], values, f"{key}.")
        elif key in values:
            arguments[name] = convert(key, values[key], hints[name])
    return kind(**arguments)


def flatten(options: object, prefix: str = "") -> dict[str, Scalar]:
    """Return every option of a dataclass instance by its key, the inverse of ``build``."""
    flat: dict[str, Scalar] = {}
    for name, key in _keys(type(options), prefix).items():
        value = getattr(options, name)
        flat |= flatten(value, f"{key}.") if is_dataclass(value) else {key: value}
    return flat


def convert(key: str, value: object, hint: object) -> Scalar:
    """Return ``value`` in the type that a field's hint asks for.

    Args:
        key: The option's key, for the error.
        value: What the user set. A whole number passes where a number is asked for; nothing else
            changes its type.
        hint: The field's type hint (see the module's docstring).

    Raises:
        FedhetError: The type is wrong, the number is not finite or outside its interval, or the
            name is none of those listed.
    """
    if get_origin(hint) is Literal:
        names = get_args(hint)
        if value not in names:
            raise FedhetError(key, value, f"must be one of {', '.join(names)}")
        return str(value)
    kind, *intervals = get_args(hint) if get_origin(hint) is Annotated else (hint,)
    converted = _typed(key, value, kind)
    for interval in intervals:
        if converted not in interval:
            raise FedhetError(key, value, f"must be {interval}")
    return converted


def parse_list(key: str, text: str) -> tuple[float, ...]:
    """Return the numbers of a comma string.

    Raises:
        FedhetError: A part is not a number.
    """
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise FedhetError(key, text, "must be numbers separated by commas") from None


def _typed(key: str, value: object, kind: type[Scalar]) -> Scalar:
    if kind is float and type(value) in (int, float):
        number: Any = value
        # Written so that a NaN fails too, and an integer too large for a float before it is cast.
        if not abs(number) <= sys.float_info.max:
            raise FedhetError(key, value, "must be a finite number")
        return float(number)
    if type(value) is not kind:
        raise FedhetError(key, value, _EXPECTED[kind])
    return value


def _keys(kind: type[object], prefix: str) -> dict[str, str]:
    names = (field.name for field in fields(kind))  # type: ignore[arg-type]
    return {name: prefix + name.replace("_", "-") for name in names}
