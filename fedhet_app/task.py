"""What a configuration stands for: data, partition, network; loaded once per process.

Server and clients build it from the same configuration, so both see the same partition and the
same slices. It holds nothing that belongs to one client: Ray workers serve all of them.
"""

from collections import OrderedDict
from collections.abc import Mapping
from functools import cached_property, lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedhet_app.config import Config, parse
from fedhet_app.data import Dataset, Split
from fedhet_app.data.partition import Partition, label_histograms
from fedhet_app.errors import FedhetError
from fedhet_app.models import MODELS, ModelSpec, builder_for, check_logits, initial_module
from fedhet_app.options import Scalar
from fedhet_app.seeding import rng_for
from fedhet_app.submodel.classifier import classifier_of
from fedhet_app.submodel.flat import FlatModule
from fedhet_app.submodel.layout import Entry, Layout, flatten
from fedhet_app.submodel.slicing import Slicer
from fedhet_app.task_data import Division, TaskData
from fedhet_app.training import Examples, Images, Rows, Windows, keep_freed_memory

MODULES_KEPT = 8


class Task:
    """Data, partition and network of one configuration.

    Args:
        config: A checked configuration, for the number of clients that are there.
        own: Where clients hold their own data, what is known of those (see ``own_task``).
    """

    def __init__(self, config: Config, own: Division | None = None) -> None:
        self.config = config
        self._data = TaskData(config, own)
        self.device = pick_device(config.device)
        keep_freed_memory()
        if self.device.type == "cpu":
            torch.set_num_threads(config.client_cpus)
        self.builder = builder_for(config.model)
        self._modules: OrderedDict[Layout, FlatModule] = OrderedDict()

    @property
    def dataset(self) -> Dataset:
        """The training and test examples, memory-mapped and shared between processes."""
        return self._data.dataset

    @property
    def partition(self) -> Partition:
        """Which training examples belong to which client."""
        return self._data.partition

    @cached_property
    def histograms(self) -> NDArray[np.int64]:
        """Labels per client, shape ``(N, K)``."""
        return label_histograms(self.partition, self.dataset.train.labels, self.dataset.num_classes)

    @cached_property
    def spec(self) -> ModelSpec:
        """What the data asks of the network."""
        return ModelSpec(
            input_shape=self.dataset.input_shape,
            num_classes=self.dataset.num_classes,
            preset=self.config.model_preset,
            norm=self.config.norm,
            embedding=self.config.embedding,
            embed_norm=self.config.embed_norm,
            vocabulary=self.dataset.vocabulary,
        )

    @cached_property
    def slicer(self) -> Slicer:
        """Slices of the network by width."""
        return Slicer(self.builder, self.spec)

    @cached_property
    def classifier(self) -> tuple[Entry, ...]:
        """Where the full network's classifier lies in its vector; empty where it has none."""
        layouts = self.slicer.layout(1.0), self.slicer.narrowest
        return classifier_of(*layouts, self.dataset.num_classes)

    @cached_property
    def train_examples(self) -> Examples:
        """The training examples on the device."""
        return self._on_device(self.dataset.train)

    @cached_property
    def test_examples(self) -> Examples:
        """The central test examples on the device."""
        return self._on_device(self.dataset.test)

    @property
    def test_owners(self) -> NDArray[np.int64] | None:
        """The client that each test example is of, shape ``(M,)``; ``None`` if some is nobody's."""
        return self._data.test_owners

    def held_out(self, client: int) -> NDArray[np.int64]:
        """Return the rows of the test set that a client measures on, where the clients do."""
        owners = self.test_owners
        assert owners is not None, "each client has a part where the clients measure"
        return np.flatnonzero(owners == client)

    @cached_property
    def test_groups(self) -> Tensor | None:
        """The client that each test example is of, on the device; ``None`` if some is nobody's."""
        found = self.test_owners
        return None if found is None else torch.tensor(found, device=self.device)

    def test_rows(self, examples: int) -> Tensor | None:
        """Return a random part of the test set, the same for a seed; ``None`` stands for all."""
        total = len(self.dataset.test.labels)
        if not 0 < examples < total:
            return None
        rng = rng_for(self.config.seed, "evaluation")
        rows = np.sort(rng.choice(total, size=examples, replace=False))
        return torch.from_numpy(rows).to(self.device)

    def queried(
        self, rows: NDArray[np.int64] | None, images: NDArray[np.uint8] | None
    ) -> tuple[Examples, Tensor]:
        """Return the examples that a query is about, and which rows of them.

        Args:
            rows: Rows of the test set, shape ``(n,)``.
            images: In place of rows: uint8, shape ``(n, H, W, C)``; their labels are 0.

        Raises:
            FedhetError: Images of another shape than the data set's, or rows that it lacks.
        """
        if images is None:
            total = len(self.dataset.test.labels)
            asked = np.empty(0, dtype=np.int64) if rows is None else rows
            if len(asked) and not 0 <= asked.min() <= asked.max() < total:
                remedy = f"the test set has rows 0 to {total - 1}"
                raise FedhetError("rows", int(asked.max()), remedy)
            return self.test_examples, torch.tensor(asked, device=self.device)
        shape = self.dataset.test.inputs.shape[1:]
        if images.shape[1:] != shape:
            remedy = f"the model takes images of shape {shape}: height, width, channels"
            raise FedhetError("query", images.shape[1:], remedy)
        labels = np.zeros(len(images), dtype=np.int64)
        examples = self._on_device(Split(inputs=images.copy(), labels=labels))
        return examples, torch.arange(len(images), device=self.device)

    def _on_device(self, split: Split) -> Examples:
        inputs = torch.from_numpy(split.inputs).to(self.device)
        labels = torch.from_numpy(split.labels).to(self.device)
        if self.dataset.vocabulary:
            return Windows(symbols=inputs, labels=labels)
        if len(self.dataset.input_shape) == 1:
            return Rows(values=inputs, labels=labels)
        scale = 1.0 / self.dataset.std
        shift = -self.dataset.mean * scale
        return Images(
            pixels=inputs,
            labels=labels,
            scale=torch.from_numpy(scale).to(self.device),
            shift=torch.from_numpy(shift).to(self.device),
        )

    def check(self) -> None:
        """Find a mistake in data, partition or model now rather than in the first round.

        Raises:
            FedhetError: What is wrong.
        """
        if not self.config.clients_own:
            _ = self.partition
        if (
            self.config.personal
            and not self.config.federated_evaluation
            and self.test_owners is None
        ):
            remedy = (
                f"{self.config.strategy} must know whose each test example is; let the test set"
                " have the clients' column, and max-train-examples leave each of them some"
            )
            raise FedhetError("dataset", self.config.dataset, remedy)
        for width in (1.0, self.config.tiers[0]):
            if self.config.model not in MODELS:  # it loads much of torch that a run does without
                check_logits(self.builder, width, self.spec)
            self.slicer.index(width)

    def initial_vector(self, *keys: int) -> NDArray[np.float32]:
        """Return the initial global model, the same for every method with this seed.

        ``keys`` tell several models of one run apart; without, it is the first.
        """
        config = self.config
        return flatten(initial_module(self.builder, self.spec, config.init, config.seed, *keys))

    def module(self, width: float) -> FlatModule:
        """Return the network of one width; its values are whatever was loaded last."""
        key = self.slicer.layout(width)
        if key not in self._modules:
            self._modules[key] = FlatModule(self.builder(width, self.spec), self.device)
            if len(self._modules) > MODULES_KEPT:
                self._modules.popitem(last=False)
        self._modules.move_to_end(key)
        return self._modules[key]


def pick_device(name: str) -> torch.device:
    """Return the device of a ``device`` value: auto, cpu or cuda.

    Raises:
        FedhetError: CUDA is asked for and not there.
    """
    if name == "cuda" and not torch.cuda.is_available():
        remedy = "no CUDA device is visible here; use 'cpu', or on Ray set client-gpus above 0"
        raise FedhetError("device", name, remedy)
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.device(name)


task_for = lru_cache(maxsize=2)(Task)


@lru_cache(maxsize=4)
def _task_of(items: tuple[tuple[str, Scalar], ...], num_nodes: int) -> Task:
    config = parse(dict(items))
    return task_for(config.with_nodes(num_nodes) if num_nodes else config)


def task_of_node(run_config: Mapping[str, Scalar], num_nodes: int) -> Task:
    """Return the task of a client's run config; ``num_nodes`` is 0 where it was told of none."""
    return _task_of(tuple(run_config.items()), num_nodes)
