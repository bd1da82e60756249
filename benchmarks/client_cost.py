"""What one client takes: seconds of training by width and precision, bytes by width."""

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

import numpy as np

from client_apps import local
from fedhet_app import wire
from fedhet_app.config import parse
from fedhet_app.engine import InlineGrid
from fedhet_app.models import ModelSpec, builder_for
from fedhet_app.options import Scalar
from fedhet_app.submodel.slicing import Slicer
from fedhet_app.task import Task, task_for
from fedhet_app.wire import TrainReply, TrainRequest

Row = dict[str, Any]

WIDTHS = (1.0, 0.75, 0.5, 0.25)
PRECISIONS = ("fp32", "bf16")
CIFAR10 = (3, 32, 32)


def by_width(values: Mapping[str, Scalar], repeats: int) -> list[Row]:
    """Return seconds per local epoch of one client at each width, the widths in turn.

    Args:
        values: The workload; its partition is made IID, so that W1 has clients of 3,000 examples.
        repeats: Epochs at each width, after one that does not count.
    """
    task = task_for(parse({**values, "partition": "iid"}))
    cases = {f"width {width:g}": (task, width) for width in WIDTHS}
    return _timed(cases, repeats)


def by_precision(values: Mapping[str, Scalar], repeats: int) -> list[Row]:
    """Return the same at full width for each precision."""
    cases = {
        name: (task_for(parse({**values, "partition": "iid", "precision": name})), 1.0)
        for name in PRECISIONS
    }
    return _timed(cases, repeats)


def _timed(cases: dict[str, tuple[Task, float]], repeats: int) -> list[Row]:
    replies: dict[str, list[TrainReply]] = {name: [] for name in cases}
    for number in range(repeats + 1):
        for name, (task, width) in cases.items():
            replies[name].append(_train(task, width, server_round=number + 1))
    seconds = {name: median(r.seconds for r in kept[1:]) for name, kept in replies.items()}
    first = next(iter(seconds.values()))
    return [
        {
            "case": name,
            "examples": kept[0].examples,
            "s per epoch": round(seconds[name], 4),
            "ms per step": round(1000 * seconds[name] / kept[0].steps, 3),
            "of the first": round(seconds[name] / first, 3),
        }
        for name, kept in replies.items()
    ]


def _train(task: Task, width: float, *, server_round: int) -> TrainReply:
    vector, index = task.initial_vector(), task.slicer.index(width)
    slice_ = vector if index is None else vector[index]
    return local.train(task, 0, TrainRequest(server_round=server_round, width=width, vector=slice_))


def bytes_by_width(presets: Sequence[str] = ("paper", "small")) -> list[Row]:
    """Return the serialised size of a client's messages beside 4 bytes per covered parameter.

    What is above that is header and keys: the vector's dtype and shape, the round and width on the
    way down, six numbers on the way up. Flower's envelope (ids, signature) is not in it.
    """
    grid = InlineGrid({}, [])
    rows: list[Row] = []
    for preset in presets:
        spec = ModelSpec(input_shape=CIFAR10, num_classes=10, preset=preset)
        slicer = Slicer(builder_for("cnn"), spec)
        rows += [_bytes_row(grid, preset, slicer, width) for width in WIDTHS]
    return rows


def _bytes_row(grid: InlineGrid, preset: str, slicer: Slicer, width: float) -> Row:
    params = slicer.num_params(width)
    vector = np.zeros(slicer.layout(width).size, dtype=np.float32)
    content = wire.train_content(wire.pack(vector), 1, width)
    message = grid.create_message(content, wire.TRAIN, dst_node_id=2, group_id="1")
    reply = TrainReply(
        server_round=1, partition=0, vector=vector, examples=1, loss=1.0, steps=1, seconds=1.0
    )
    down = wire.record_bytes(content)
    up = wire.record_bytes(wire.reply_to(message, reply).content)
    return {
        "CNN": preset,
        "width": width,
        "parameters": params,
        "4 x parameters": 4 * params,
        "down": down,
        "up": up,
        "header down": down - 4 * params,
        "header up": up - 4 * params,
        "up / full model": round(up / (4 * slicer.num_params(1.0)), 4),
    }
