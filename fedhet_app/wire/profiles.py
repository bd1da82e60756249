"""What a node says about itself before the first round."""

import math
from dataclasses import dataclass

from flwr.app import ConfigRecord, Message, RecordDict

from fedhet_app.errors import FedhetError
from fedhet_app.wire.vectors import Rejection, harmless, last_line

PROFILE = "profile"
REFUSAL = "refusal"
QUERY_PROFILE = "query.profile"

_MOST = 2**31
"""Examples of one node: what weighs more in an average is no count."""
_MOST_TIERS = 100


@dataclass(frozen=True, kw_only=True)
class TierCost:
    """What a local training step of one width costs on a node.

    Attributes:
        width: Fraction of the channels.
        ms: Median duration of a step, milliseconds.
        memory_mb: Peak memory, MiB.
    """

    width: float
    ms: float
    memory_mb: float


@dataclass(frozen=True, kw_only=True)
class Profile:
    """What a node says about itself before the first round.

    Attributes:
        examples: Those it trains on.
        test_examples: Those it measures on, where clients do; else 0.
        columns: Hash of the names of its columns, where its data are rows of numbers.
        capacity: The widest slice it can train; 0.0 where its node config names none.
        tiers: What it measured to choose its capacity, ascending; empty where it was told.
        device: Where it trains, by torch's name.
    """

    partition: int
    num_partitions: int
    examples: int
    capacity: float
    code: str
    device: str = "cpu"
    node_id: int = 0
    test_examples: int = 0
    columns: str = ""
    tiers: tuple[TierCost, ...] = ()


def profile_content(profile: Profile) -> RecordDict:
    """Return the content of the answer to ``query.profile``."""
    record = ConfigRecord(
        {
            "partition": profile.partition,
            "num-partitions": profile.num_partitions,
            "examples": profile.examples,
            "capacity": profile.capacity,
            "code": profile.code,
            "device": profile.device,
            "test-examples": profile.test_examples,
            "columns": profile.columns,
        }
    )
    if profile.tiers:  # an empty list has no type on the wire
        record["tiers"] = [tier.width for tier in profile.tiers]
        record["tiers-ms"] = [tier.ms for tier in profile.tiers]
        record["tiers-mb"] = [tier.memory_mb for tier in profile.tiers]
    return RecordDict({PROFILE: record})


def refusal_content(error: FedhetError, partition: object = None) -> RecordDict:
    """Return the content of a node's answer that says why it cannot take part.

    Args:
        error: Why.
        partition: Which node it is, where its node config says so.
    """
    value = error.value if isinstance(error.value, bool | int | float | str) else str(error.value)
    who = "" if partition is None else f" (the node of partition {partition} says so)"
    said = ConfigRecord({"key": error.key, "value": value, "remedy": f"{error.remedy}{who}"})
    return RecordDict({REFUSAL: said})


def read_profile(message: Message) -> Profile:
    """Return the profile in an answer to ``query.profile``.

    Raises:
        FedhetError: The node says what is wrong with its configuration.
        Rejection: The node answered with an error or with something else.
    """
    if message.has_error():
        raise Rejection(last_line(message.error.reason))
    refusal = message.content.config_records.get(REFUSAL)
    if refusal is not None:
        key, value, remedy = (refusal.get(name, "") for name in ("key", "value", "remedy"))
        number = isinstance(value, bool | int | float)
        raise FedhetError(harmless(key), value if number else harmless(value), harmless(remedy))
    try:
        record = message.content.config_records[PROFILE]
        profile = Profile(
            partition=int(str(record["partition"])),
            num_partitions=int(str(record["num-partitions"])),
            examples=int(str(record["examples"])),
            capacity=float(str(record["capacity"])),
            code=harmless(record["code"]),
            device=harmless(record["device"]),
            node_id=message.metadata.src_node_id,
            test_examples=int(str(record["test-examples"])),
            columns=harmless(record["columns"]),
            tiers=_tiers(record),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise Rejection(f"not a profile: {error}") from error
    if not 0 <= profile.partition < profile.num_partitions:
        place = f"partition {profile.partition} of {profile.num_partitions}"
        raise Rejection(f"not a profile: {place}")
    if not 1 <= profile.examples <= _MOST or not 0 <= profile.test_examples <= _MOST:
        count = f"{profile.examples} examples, {profile.test_examples} test examples"
        raise Rejection(f"not a profile: {count}")
    return profile


def _tiers(record: ConfigRecord) -> tuple[TierCost, ...]:
    """Return what a node measured; none where it was told its capacity.

    Raises:
        ValueError: The lists do not fit together, or hold anything but finite numbers.
    """
    lists = [record.get(name, []) for name in ("tiers", "tiers-ms", "tiers-mb")]
    columns = [[float(str(value)) for value in each] for each in lists if isinstance(each, list)]
    if not all(math.isfinite(value) for column in columns for value in column):
        raise ValueError("tiers that are not finite")
    if any(len(column) > _MOST_TIERS for column in columns):
        raise ValueError(f"more than {_MOST_TIERS} tiers")
    return tuple(
        TierCost(width=width, ms=ms, memory_mb=memory)
        for width, ms, memory in zip(*columns, strict=True)
    )
