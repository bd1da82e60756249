"""What a node says about itself before the first round."""

from dataclasses import dataclass

from flwr.app import ConfigRecord, Message, RecordDict

from fedhet_app.errors import FedhetError
from fedhet_app.wire.vectors import Rejection, last_line

PROFILE = "profile"
REFUSAL = "refusal"
QUERY_PROFILE = "query.profile"


@dataclass(frozen=True, kw_only=True)
class Profile:
    """What a node says about itself before the first round.

    Attributes:
        capacity: The widest slice it can train; 0.0 where its node config names none.
        device: Where it trains, by torch's name.
    """

    partition: int
    num_partitions: int
    examples: int
    capacity: float
    code: str
    device: str = "cpu"
    node_id: int = 0


def profile_content(profile: Profile) -> RecordDict:
    """Return the content of the answer to ``query.profile``."""
    return RecordDict(
        {
            PROFILE: ConfigRecord(
                {
                    "partition": profile.partition,
                    "num-partitions": profile.num_partitions,
                    "examples": profile.examples,
                    "capacity": profile.capacity,
                    "code": profile.code,
                    "device": profile.device,
                }
            )
        }
    )


def refusal_content(error: FedhetError) -> RecordDict:
    """Return the content of a node's answer that says why it cannot take part."""
    value = error.value if isinstance(error.value, bool | int | float | str) else str(error.value)
    said = ConfigRecord({"key": error.key, "value": value, "remedy": error.remedy})
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
        said = [refusal.get(name, "") for name in ("key", "value", "remedy")]
        raise FedhetError(str(said[0]), said[1], str(said[2]))
    try:
        record = message.content.config_records[PROFILE]
        return Profile(
            partition=int(str(record["partition"])),
            num_partitions=int(str(record["num-partitions"])),
            examples=int(str(record["examples"])),
            capacity=float(str(record["capacity"])),
            code=str(record["code"]),
            device=str(record["device"]),
            node_id=message.metadata.src_node_id,
        )
    except (KeyError, ValueError) as error:
        raise Rejection(f"not a profile: {error}") from error
