"""ClientApp: message -> task -> local procedure -> reply."""

from dataclasses import replace

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from client_apps import CLIENTS
from fedhet_app import wire
from fedhet_app.client_state import open_state, state_dir
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
    """Run the local procedure of the run's strategy on the slice that was sent."""
    task, partition = _task_and_partition(context)
    request, note = wire.read_request(message), wire.read_note(message)
    if note is not None:
        request = replace(request, state=open_state(note, partition, context))
    reply = CLIENTS[task.config.strategy](task, partition, request)
    return wire.reply_to(message, reply)


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
