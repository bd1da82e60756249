"""A finished run's model: measured, sliced, exported."""

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from fedhet_app.config import parse
from fedhet_app.errors import FedhetError
from fedhet_app.evaluation import Evaluation
from fedhet_app.evaluation import evaluate as evaluate_module
from fedhet_app.inference import as_it_predicts
from fedhet_app.results import RunReader, save_tensors
from fedhet_app.submodel.flat import FlatModule
from fedhet_app.submodel.layout import flatten, unflatten
from fedhet_app.task import Task


@dataclass(frozen=True, kw_only=True)
class FinishedModel:
    """The model of a run and the task it was trained for; ``vector`` has shape ``(D,)``."""

    task: Task
    vector: NDArray[np.float32]

    def module(self, width: float) -> FlatModule:
        """Return the network of one width as it predicts.

        Raises:
            FedhetError: The width is outside (0, 1].
        """
        if not 0.0 < width <= 1.0:
            raise FedhetError("--width", width, "must be above 0 and at most 1")
        return as_it_predicts(self.task, self.vector, width)


def load(directory: Path) -> FinishedModel:
    """Return the model of the finished run in ``directory``.

    Raises:
        FedhetError: No run, one that has not finished, or a model file that is not whole.
    """
    reader = RunReader(directory)
    tensors = {name: torch.from_numpy(array) for name, array in reader.model().items()}
    task = Task(parse(reader.config))
    if task.config.routes:
        remedy = "has no model of its own: its heads are the clients'; use fedhet route"
        raise FedhetError("strategy", task.config.strategy, remedy)
    module = task.builder(1.0, task.spec)
    # Integer buffers are not part of a model.
    if module.load_state_dict(tensors, strict=False).unexpected_keys:
        remedy = (
            "trains several models, of which each client chooses or mixes: there is no one model"
        )
        raise FedhetError("strategy", task.config.strategy, remedy)
    return FinishedModel(task=task, vector=flatten(module))


def evaluate(model: FinishedModel, width: float) -> Evaluation:
    """Measure a slice of the model on the central test set.

    Raises:
        FedhetError: The clients have the examples.
    """
    task = model.task
    if task.config.clients_own:
        remedy = "the examples are the clients', who measured the model: see rounds.jsonl"
        raise FedhetError("partition", task.config.partition, remedy)
    module = model.module(width)
    return evaluate_module(module, task.test_examples, task.dataset.num_classes)


def export(model: FinishedModel, width: float, file: Path) -> None:
    """Write a slice as safetensors, with what is needed to run it in the header.

    Raises:
        FedhetError: The file cannot be written.
    """
    task, dataset = model.task, model.task.dataset
    module = model.module(width)
    tensors = unflatten(module.layout, module.numpy())
    metadata = {
        "width": width,
        "model": task.config.model,
        "model-preset": task.config.model_preset,
        # Static batch norm with its statistics is batch norm.
        "norm": "bn" if task.config.norm == "sbn" else task.config.norm,
        "input-shape": list(dataset.input_shape),
        "vocabulary": dataset.vocabulary,
        "num-classes": dataset.num_classes,
        "mean": dataset.mean.tolist(),
        "std": dataset.std.tolist(),
    }
    save_tensors(file, tensors, {key: json.dumps(value) for key, value in metadata.items()})
