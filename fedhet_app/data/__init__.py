"""Sets of images and of text, and how they are divided over clients: arrays in, arrays out.

Nothing here imports ``datasets``, ``flwr_datasets``, PIL or scikit-learn before a data set has to
be decoded: a worker that finds the cache ready only maps files.
"""

from fedhet_app.data.datasets import Dataset, Split, load_dataset
from fedhet_app.data.partition import Partition, cached_partition, make_partition
from fedhet_app.data.skew import describe, label_histograms, total_variation

__all__ = [
    "Dataset",
    "Partition",
    "Split",
    "cached_partition",
    "describe",
    "label_histograms",
    "load_dataset",
    "make_partition",
    "total_variation",
]
