"""From the labels of a source to the classes 0..K-1."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedhet_app.data.raw import RawSplit
from fedhet_app.data.sources import Source
from fedhet_app.errors import FedhetError


@dataclass(frozen=True, kw_only=True, eq=False)
class Classes:
    """The classes of a data set.

    Attributes:
        train: (N,) classes of the training set, 0..K-1.
        test: (M,) classes of the test set.
        count: K.
        names: Their names, where the source has names or its labels had to be mapped.
    """

    train: NDArray[np.int64]
    test: NDArray[np.int64]
    count: int
    names: tuple[str, ...] | None


def classes_of(train: RawSplit, test: RawSplit, source: Source) -> Classes:
    """Number the classes of a data set.

    Declared classes keep their numbers, even where the training set lacks one. Other labels are
    numbered in the sorted order of the training set's, to which a test set taken from it still
    counts. The classes of text are the symbols of its vocabulary, whichever occur.

    Raises:
        FedhetError: A split is empty, a label is outside the declared classes, or the classes
            of a test set of its own are not those of the training set.
    """
    if source.known.text:
        return Classes(
            train=np.asarray(train.labels, dtype=np.int64),
            test=np.asarray(test.labels, dtype=np.int64),
            count=len(train.class_names or ()),
            names=train.class_names,
        )
    for name, split in (("train", train), (source.test_split, test)):
        if not len(split.labels) and split.held_out:
            remedy = "no client has the five examples of which one is for testing; add examples"
            raise FedhetError("dataset", source.name, remedy)
        if not len(split.labels):
            raise FedhetError("dataset", source.name, f"its split {name!r} is empty; name another")
    # What was one set has the labels of the whole, whichever half they fell into.
    whole = (train.labels, test.labels) if test.held_out else (train.labels,)
    values = np.unique(np.concatenate(whole))
    _check(train, test, values, source)
    numbers = (train.labels, test.labels)
    names = train.class_names
    if names is None and not np.array_equal(values, np.arange(len(values))):
        names = tuple(str(value) for value in values)
        numbers = (np.searchsorted(values, train.labels), np.searchsorted(values, test.labels))
    return Classes(
        train=numbers[0].astype(np.int64),
        test=numbers[1].astype(np.int64),
        count=len(values) if names is None else len(names),
        names=names,
    )


def fine_classes(train: RawSplit, test: RawSplit) -> dict[str, NDArray[np.int64]]:
    """Number the finer classes of both splits in their sorted order; none where there are none."""
    if train.fine is None or test.fine is None:
        return {}
    _, numbers = np.unique(np.concatenate([train.fine, test.fine]), return_inverse=True)
    size = len(train.fine)
    return {"train": numbers[:size].astype(np.int64), "test": numbers[size:].astype(np.int64)}


def _check(train: RawSplit, test: RawSplit, values: NDArray[Any], source: Source) -> None:
    """Raise ``FedhetError`` where the labels ``values`` are no classes, or the splits differ."""
    if train.class_names != test.class_names or train.labels.dtype.kind != test.labels.dtype.kind:
        remedy = "has other class names, or labels of another type, than the training set"
        raise FedhetError("test-split", source.test_split, f"{remedy}; name a split with the same")
    if train.class_names is not None and not 0 <= values[0] <= values[-1] < len(train.class_names):
        value = source.label_column or "the declared classes"
        remedy = f"the training set has labels {values[0]}..{values[-1]}"
        last = len(train.class_names) - 1
        raise FedhetError("label-column", value, f"{remedy}, declared are 0..{last}; name another")
    if test.held_out:
        return
    strange = np.unique(test.labels[~np.isin(test.labels, values)]).tolist()
    if strange:
        remedy = f"its labels {', '.join(map(repr, strange[:5]))} do not occur in the training set"
        raise FedhetError("test-split", source.test_split, f"{remedy}; name a split with the same")
    missing = values[~np.isin(values, test.labels)].tolist()
    if missing:
        names = train.class_names
        shown = ", ".join(repr(label if names is None else names[label]) for label in missing[:5])
        remedy = f"lacks {shown}, which the training set has; name a split with the same"
        raise FedhetError("test-split", source.test_split, remedy)
