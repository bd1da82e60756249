"""ClientApp: message -> task -> local procedure -> reply."""

from collections.abc import Mapping
from dataclasses import replace

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from client_apps import ANSWERS, CLIENTS, E_STEPS, Procedure
from fedhet_app import wire
from fedhet_app.client_state import ClientState, open_state, state_dir
from fedhet_app.errors import FedhetError
from fedhet_app.task import Task, task_of_node
from fedhet_app.versions import code_fingerprint

app = ClientApp()


@app.query("profile")
def profile(message: Message, context: Context) -> Message:
    """Answer with the node's partition, examples, capacity and code, or why it cannot take part."""
    try:
        answer = _profile(context)
    except FedhetError as error:
        return Message(wire.refusal_content(error), reply_to=message)
    return Message(wire.profile_content(answer), reply_to=message)


def _profile(context: Context) -> wire.Profile:
    task, partition = _task_and_partition(context)
    state_dir(context)
    return wire.Profile(
        partition=partition,
        num_partitions=task.config.num_clients,
        examples=len(task.partition.client(partition)),
        capacity=_capacity(context),
        code=code_fingerprint(),
        device=task.device.type,
    )


@app.train()
def train(message: Message, context: Context) -> Message:
    """Run the local procedure of the run's strategy on what was sent."""
    return _train(message, context, CLIENTS)


@app.train("e_step")
def e_step(message: Message, context: Context) -> Message:
    """Run the first exchange of a round of two."""
    return _train(message, context, E_STEPS)


@app.train("m_step")
def m_step(message: Message, context: Context) -> Message:
    """Run the second exchange of a round of two."""
    return _train(message, context, CLIENTS)


def _train(message: Message, context: Context, procedures: Mapping[str, Procedure]) -> Message:
    task, partition = _task_and_partition(context)
    request = replace(wire.read_request(message), state=_state(message, partition, context))
    return wire.reply_to(message, procedures[task.config.strategy](task, partition, request))


@app.query("predict")
def predict(message: Message, context: Context) -> Message:
    """Predict what was asked with this client's own model."""
    task, partition = _task_and_partition(context)
    state = _state(message, partition, context, tidy=False)
    query = replace(wire.read_query(message), state=state)
    return wire.answer_to(message, ANSWERS[task.config.strategy](task, partition, query))


def _state(
    message: Message, partition: int, context: Context, *, tidy: bool = True
) -> ClientState | None:
    note = wire.read_note(message)
    return None if note is None else open_state(note, partition, context, tidy=tidy)


def _task_and_partition(context: Context) -> tuple[Task, int]:
    node = context.node_config
    count = node.get("num-partitions", 0)
    partition = node.get("partition-id", "missing")
    if isinstance(count, bool) or not isinstance(count, int) or count < 0:
        raise FedhetError("num-partitions", count, "set it to the number of nodes")
    task = task_of_node(context.run_config, count)
    if isinstance(partition, bool) or not isinstance(partition, int):
        raise FedhetError("partition-id", partition, "set it in the node config, counted from 0")
    if not 0 <= partition < task.config.num_clients:
        remedy = f"must be from 0 to {task.config.num_clients - 1}, the number of partitions less 1"
        raise FedhetError("partition-id", partition, remedy)
    return task, partition


def _capacity(context: Context) -> float:
    capacity = context.node_config.get("capacity", 0.0)
    if "capacity" not in context.node_config:
        return 0.0
    if isinstance(capacity, bool | str) or not 0.0 < capacity <= 1.0:
        remedy = "the node config's capacity is a width, a number above 0 and at most 1"
        raise FedhetError("capacity", capacity, remedy)
    return float(capacity)
