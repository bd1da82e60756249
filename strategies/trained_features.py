"""Routing features that FedSPM or FedDRM has trained, for a method that cannot train any itself."""

from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedhet_app.config import parse
from fedhet_app.errors import FedhetError, one_line
from fedhet_app.models.encoders import build_encoder
from fedhet_app.results import RunReader
from fedhet_app.submodel.layout import flatten
from fedhet_app.task import Task

FEATURES = "fedgmm.features"
_FIRST, _SECOND = "router.encoders.0.", "router.encoders.1."


def trained_encoder(task: Task) -> NDArray[np.float32]:
    """Return the routing encoder of the run that ``fedgmm.features`` names, flat.

    Args:
        task: Its encoder must have the form of the run's, and its clients the data of the run's:
            others may have trained on what these are tested on.

    Raises:
        FedhetError: The directory holds no finished run, or none with one such encoder.
    """
    options = task.config.routing
    encoder = build_encoder(options.encoder, options.embedding, task.spec)
    try:
        encoder.load_state_dict(_tensors(task, Path(task.config.fedgmm.features)))
    except FedhetError as error:
        raise FedhetError(FEATURES, task.config.fedgmm.features, error.remedy) from error
    except RuntimeError as error:
        remedy = f"its model file holds another encoder than its config says ({one_line(error)})"
        raise FedhetError(FEATURES, task.config.fedgmm.features, remedy) from error
    return flatten(encoder)


def _tensors(task: Task, directory: Path) -> dict[str, Tensor]:
    """Return the tensors of a run's encoder by name, after a look at whether it is the right run.

    Raises:
        FedhetError: It is not.
    """
    reader = RunReader(directory)
    theirs, tensors = parse(reader.config), reader.model()
    found = {name: torch.from_numpy(t) for name, t in tensors.items() if name.startswith(_FIRST)}
    if not found:
        remedy = f"a run of {theirs.strategy} trains no routing encoder; name one of fedspm, feddrm"
        raise FedhetError(FEATURES, str(directory), remedy)
    if any(name.startswith(_SECOND) for name in tensors):
        remedy = "has an encoder for each component; name a run with fedspm.encoders = 'shared'"
        raise FedhetError(FEATURES, str(directory), remedy)
    for name in ("encoder", "embedding"):
        own, other = getattr(task.config.routing, name), getattr(theirs.routing, name)
        if own != other:
            remedy = f"has routing.{name} = {other!r}, and this run {own!r}; set the same"
            raise FedhetError(FEATURES, str(directory), remedy)
    if reader.data != {
        "dataset": task.dataset.fingerprint,
        "partition": task.partition.fingerprint,
    }:
        remedy = "its clients have other data; name a run of the same data set, partition and seed"
        raise FedhetError(FEATURES, str(directory), remedy)
    return {name.removeprefix(_FIRST): tensor for name, tensor in found.items()}
