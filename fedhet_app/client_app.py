"""ClientApp: message -> task -> local procedure -> reply."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from client_apps import ANSWERS, CLIENTS, E_STEPS, Procedure, evaluate
from client_apps.privacy import protected
from fedhet_app import wire
from fedhet_app.capacity import capacity_of
from fedhet_app.client_state import ClientState, begins_anew, open_state, state_dir
from fedhet_app.errors import FedhetError
from fedhet_app.own_task import node_task, refuse_data_path
from fedhet_app.task import Task, task_of_node
from fedhet_app.versions import code_fingerprint

app = ClientApp()


@app.query("profile")
def profile(message: Message, context: Context) -> Message:
    """Answer with the node's partition, examples, capacity and code, or why it cannot take part."""
    try:
        answer = _profile(context)
    except FedhetError as error:
        who = context.node_config.get("partition-id")
        return Message(wire.refusal_content(error, who), reply_to=message)
    return Message(wire.profile_content(answer), reply_to=message)


def _profile(context: Context) -> wire.Profile:
    task, partition = _task_and_partition(context)
    capacity, tiers = capacity_of(task, context.node_config, state_dir(context))
    begins_anew(context, task.config.strategy)
    return wire.Profile(
        partition=partition,
        num_partitions=task.config.num_clients,
        examples=len(task.partition.client(partition)),
        capacity=capacity,
        code=code_fingerprint(),
        device=task.device.type,
        test_examples=len(task.held_out(partition)) if task.config.federated_evaluation else 0,
        columns=task.dataset.columns_digest,
        tiers=tiers,
    )


@app.train()
def train(message: Message, context: Context) -> Message:
    """Run the local procedure of the run's strategy on what was sent."""
    task, _ = _task_and_partition(context)
    return protected(task.config.privacy, message, context, partial(_train, procedures=CLIENTS))


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
    request = wire.read_request(message)
    state = _state(message, task, partition, context, server_round=request.server_round)
    request = replace(request, state=state)
    reply = procedures[task.config.strategy](task, partition, request)
    anew = state is not None and state.begun_anew
    return wire.reply_to(message, replace(reply, begun_anew=anew))


@app.evaluate()
def measure(message: Message, context: Context) -> Message:
    """Measure what was sent, or this client's own model, on the examples that it holds out."""
    task, partition = _task_and_partition(context)
    state = _state(message, task, partition, context)
    request = replace(wire.read_request(message), state=state)
    answer = ANSWERS.get(task.config.strategy)
    return wire.measured_to(message, evaluate.measure(task, partition, request, answer))


@app.query("predict")
def predict(message: Message, context: Context) -> Message:
    """Predict what was asked with this client's own model."""
    task, partition = _task_and_partition(context)
    state = _state(message, task, partition, context)
    query = replace(wire.read_query(message), state=state)
    return wire.answer_to(message, ANSWERS[task.config.strategy](task, partition, query))


def _state(
    message: Message,
    task: Task,
    partition: int,
    context: Context,
    *,
    server_round: int | None = None,
) -> ClientState | None:
    note = wire.read_note(message)
    if note is None:
        return None
    anew = begins_anew(context, task.config.strategy)
    return open_state(note, partition, context, server_round=server_round, anew=anew)


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
    if task.config.clients_own:
        return node_task(task.config, node, partition), partition
    refuse_data_path(node)
    return task, partition
