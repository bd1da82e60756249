"""From text to windows of symbols and the symbol that follows each.

A role's text is cut at four fifths of its symbols. A window with its target lies wholly before the
cut (training) or wholly behind it (test), so none of the one shares a symbol with one of the other;
windows across the cut are left out, which is the gap between the two.
"""

import re
from collections import Counter
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedhet_app.errors import FedhetError

SYMBOLS = "".join(map(chr, range(32, 127)))
"""The vocabulary: the 95 printable symbols of ASCII; a symbol's number is its position."""
LENGTH = 80
_TRAIN = 0.8
_SHOWN = 10


@dataclass(frozen=True, kw_only=True, eq=False)
class Windows:
    """Windows of one text, or of several.

    Attributes:
        inputs: (N, 80) symbols.
        labels: (N,) the symbol that follows each window.
    """

    inputs: NDArray[np.uint8]
    labels: NDArray[np.int64]


def normalise(text: str) -> str:
    """Make every run of whitespace, line ends and non-breaking spaces included, one space."""
    return re.sub(r"\s+", " ", text)


def check_symbols(texts: dict[str, str], place: str) -> None:
    """Raise ``FedhetError`` for symbols outside the vocabulary, counted over all texts.

    Args:
        texts: Normalised text by role.
        place: Where it comes from, for the message.
    """
    strange = sum((Counter(re.sub("[ -~]", "", text)) for text in texts.values()), Counter[str]())
    if strange:
        shown = ", ".join(f"{symbol!r} ({n})" for symbol, n in strange.most_common(_SHOWN))
        more = f" and {len(strange) - _SHOWN} more" if len(strange) > _SHOWN else ""
        remedy = (
            f"its text has {strange.total()} symbols outside printable ASCII: {shown}{more};"
            " replace or remove them, they have no place in the vocabulary"
        )
        raise FedhetError("data-dir", place, remedy)


def cut(text: str, stride: int, max_windows: int) -> tuple[Windows, Windows]:
    """Cut the windows of one role.

    Args:
        text: Normalised text of symbols of the vocabulary.
        stride: Symbols from the start of one window to that of the next.
        max_windows: Most training windows, evenly spread over the training text; 0 for all.

    Returns:
        Training and test windows; none of a part that is not longer than a window.
    """
    codes = np.frombuffer(text.encode("ascii"), np.uint8) - np.uint8(ord(SYMBOLS[0]))
    end = int(_TRAIN * len(codes))
    starts = np.arange(0, end - LENGTH, stride)
    if 0 < max_windows < len(starts):
        starts = starts[np.arange(max_windows) * len(starts) // max_windows]
    return _take(codes, starts), _take(codes, np.arange(end, len(codes) - LENGTH, stride))


def join(parts: list[Windows]) -> Windows:
    """Put the windows of several texts one after the other."""
    inputs = [np.empty((0, LENGTH), np.uint8), *(part.inputs for part in parts)]
    labels = [np.empty(0, np.int64), *(part.labels for part in parts)]
    return Windows(inputs=np.concatenate(inputs), labels=np.concatenate(labels))


def _take(codes: NDArray[np.uint8], starts: NDArray[np.int64]) -> Windows:
    inputs = codes[starts[:, np.newaxis] + np.arange(LENGTH)]
    return Windows(inputs=inputs, labels=codes[starts + LENGTH].astype(np.int64))
