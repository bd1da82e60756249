"""The data sets that have a name of their own, and what is particular about each."""

import string
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Known:
    """What the files of a data set do not say themselves.

    Attributes:
        hub_id: Where the hub has it.
        idx_prefix: What the names of its IDX files start with; on the hub it is in such files.
        transposed: Whether its images are stored with rows and columns swapped.
        class_names: Names of the classes 0..K-1, where its files have numbers alone.
        label_column: Column of the labels, empty to guess.
        fine_column: Column of finer classes, of which the labels are groups; empty if it has none.
        client_column: Column that tells its natural clients apart, empty if it has none.
        whole: Whether it comes in one piece, of which the test set is taken here.
        text: Whether it is text, not images.
    """

    hub_id: str = ""
    idx_prefix: str = ""
    transposed: bool = False
    class_names: tuple[str, ...] | None = None
    label_column: str = ""
    fine_column: str = ""
    client_column: str = ""
    whole: bool = False
    text: bool = False


UNNAMED = Known()
KNOWN: dict[str, Known] = {
    "fashion-mnist": Known(hub_id="zalando-datasets/fashion_mnist"),
    "cifar10": Known(hub_id="uoft-cs/cifar10"),
    "cifar100": Known(hub_id="uoft-cs/cifar100", label_column="fine_label"),
    "cifar100-20": Known(
        hub_id="uoft-cs/cifar100", label_column="coarse_label", fine_column="fine_label"
    ),
    # NIST's own files, byte for byte: transposed as those are. So are the images of a folder of
    # parquet taken to be; one whose images stand upright opens as hub:NAME.
    "emnist": Known(
        hub_id="Royc30ne/emnist-byclass",
        idx_prefix="emnist-byclass-",
        transposed=True,
        class_names=tuple(string.digits + string.ascii_uppercase + string.ascii_lowercase),
    ),
    "femnist": Known(
        hub_id="flwrlabs/femnist",
        label_column="character",
        client_column="writer_id",
        whole=True,
    ),
    # FLamby's folds are its two files; the hub's copy and a folder of one's own have both.
    "fed-isic2019": Known(
        hub_id="flwrlabs/fed-isic2019", label_column="label", client_column="center"
    ),
    "shakespeare": Known(
        hub_id="flwrlabs/shakespeare", client_column="role_id", whole=True, text=True
    ),
}
NATURAL = tuple(name for name, known in KNOWN.items() if known.client_column)
"""The data sets whose clients are given."""
