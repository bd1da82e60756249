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
from fedhet_app.results import RunReader, save_tensors
from fedhet_app.submodel.layout import flatten, unflatten
from fedhet_app.task import Task


@dataclass(frozen=True, kw_only=True)
class FinishedModel:
    """The model of a run and the task it was trained for; ``vector`` has shape ``(D,)``."""

    task: Task
    vector: NDArray[np.float32]

    def slice(self, width: float) -> NDArray[np.float32]:
        """Return the slice of one width.

        Raises:
            FedhetError: The width is outside (0, 1].
        """
        if not 0.0 < width <= 1.0:
            raise FedhetError("--width", width, "must be above 0 and at most 1")
        index = self.task.slicer.index(width)
        return self.vector if index is None else self.vector[index]


def load(directory: Path) -> FinishedModel:
    """Return the model of the finished run in ``directory``.

    Raises:
        FedhetError: No run, one that has not finished, or a model file that is not whole.
    """
    reader = RunReader(directory)
    tensors = {name: torch.from_numpy(array) for name, array in reader.model().items()}
    task = Task(parse(reader.config))
    module = task.builder(1.0, task.spec)
    module.load_state_dict(tensors, strict=False)  # integer buffers are not part of a model
    return FinishedModel(task=task, vector=flatten(module))


def evaluate(model: FinishedModel, width: float) -> Evaluation:
    """Measure a slice of the model on the central test set."""
    task, vector = model.task, model.slice(width)
    module = task.module(width)
    module.load(vector)
    return evaluate_module(module, task.test_images, task.dataset.num_classes)


def export(model: FinishedModel, width: float, file: Path) -> None:
    """Write a slice as safetensors, with what is needed to run it in the header.

    Raises:
        FedhetError: The file cannot be written.
    """
    task, dataset = model.task, model.task.dataset
    vector = model.slice(width)
    tensors = unflatten(task.slicer.layout(width), vector)
    metadata = {
        "width": width,
        "model": task.config.model,
        "model-preset": task.config.model_preset,
        "norm": task.config.norm,
        "input-shape": list(dataset.input_shape),
        "num-classes": dataset.num_classes,
        "mean": dataset.mean.tolist(),
        "std": dataset.std.tolist(),
    }
    save_tensors(file, tensors, {key: json.dumps(value) for key, value in metadata.items()})
