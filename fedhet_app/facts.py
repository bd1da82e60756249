"""What a run whose clients hold the data themselves must know beforehand: shape and classes.

It stands apart from ``data``, which loads torch: a configuration is checked without.
"""

import re
import string
from dataclasses import dataclass, replace

from fedhet_app.errors import FedhetError

OWN = "own"
"""As ``dataset``: a set that has no name, only what the options say of it."""

_SHAPE = re.compile(r"(1|3)x([1-9]\d*)x([1-9]\d*)|([1-9]\d*)")


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What every client's data must be.

    Attributes:
        input_shape: (C, H, W) of images, (F,) of rows of numbers.
        num_classes: K.
        class_names: K names, where the classes have names.
    """

    input_shape: tuple[int, ...]
    num_classes: int
    class_names: tuple[str, ...] | None

    @property
    def stored_shape(self) -> tuple[int, ...]:
        """Shape of one example as data sets store it: (H, W, C), or (F,)."""
        channels, *sides = self.input_shape
        return (*sides, channels)


KNOWN_FACTS: dict[str, Facts] = {
    name: Facts(input_shape=shape, num_classes=classes, class_names=names)
    for name, shape, classes, names in (
        ("digits", (1, 8, 8), 10, None),
        ("fashion-mnist", (1, 28, 28), 10, None),
        ("cifar10", (3, 32, 32), 10, None),
        ("cifar100", (3, 32, 32), 100, None),
        ("cifar100-20", (3, 32, 32), 20, None),
        (
            "emnist",
            (1, 28, 28),
            62,
            tuple(string.digits + string.ascii_uppercase + string.ascii_lowercase),
        ),
        ("femnist", (1, 28, 28), 62, None),
        ("fed-isic2019", (3, 0, 0), 8, None),
    )
}
"""Those of the sets of images that have a name; height and width are 0 where they differ."""


def facts_of(
    dataset: str, *, input_shape: str, num_classes: int, class_names: str, image_size: int
) -> Facts:
    """Return the facts of a data set: those known of it, or for ``own`` what the options say.

    Args:
        dataset: ``own`` or a key of ``KNOWN_FACTS``.
        input_shape: Of ``own``: '3x32x32' (channels, height, width), or '30' numbers a row.
        num_classes: Of ``own``: K, 0 where the names tell.
        class_names: Comma string of K names, in the order of their numbers; empty for none.
        image_size: Height and width that images are resized to, 0 for none.

    Raises:
        FedhetError: An option is missing or wrong, or two of them do not fit together.
    """
    names = _names(class_names)
    if dataset == OWN:
        shape = _shape(input_shape, image_size)
        count = num_classes or len(names or ())
        if count < 2:
            remedy = "set it to the number of classes, 2 or more, or name them by class-names"
            raise FedhetError("num-classes", num_classes, remedy)
    else:
        known = _known(dataset, image_size)
        shape, count, names = known.input_shape, known.num_classes, names or known.class_names
    if names is not None and len(names) != count:
        remedy = f"has {len(names)} names for the {count} classes; give one for each"
        raise FedhetError("class-names", class_names, remedy)
    return Facts(input_shape=shape, num_classes=count, class_names=names)


def _known(dataset: str, image_size: int) -> Facts:
    if dataset not in KNOWN_FACTS:
        what = "is text" if dataset == "shakespeare" else "is not known"
        remedy = f"{what}, and clients' own data are images or rows of numbers of known shape"
        raise FedhetError(
            "dataset", dataset, f"{remedy}; use one of {', '.join(KNOWN_FACTS)}, or '{OWN}'"
        )
    known = KNOWN_FACTS[dataset]
    channels, *sides = known.input_shape
    if image_size:
        sides = [image_size, image_size]
    if not all(sides):
        remedy = f"the images of {dataset} differ in size; set the one to resize them to"
        raise FedhetError("image-size", image_size, remedy)
    return replace(known, input_shape=(channels, *sides))


def _shape(text: str, image_size: int) -> tuple[int, ...]:
    match = _SHAPE.fullmatch(text)
    if match is None:
        remedy = "set it to channels x height x width, such as '3x32x32', or to '30' for 30 numbers"
        raise FedhetError("input-shape", text, remedy)
    shape = tuple(int(part) for part in text.split("x"))
    if image_size and shape[1:] != (image_size, image_size):
        remedy = f"does not make the input-shape {text}; set both to one size, or leave it out"
        raise FedhetError("image-size", image_size, remedy)
    return shape


def _names(text: str) -> tuple[str, ...] | None:
    if not text:
        return None
    names = tuple(part.strip() for part in text.split(","))
    if "" in names or len(set(names)) < len(names):
        remedy = "must be names separated by commas, each different and none empty"
        raise FedhetError("class-names", text, remedy)
    return names
