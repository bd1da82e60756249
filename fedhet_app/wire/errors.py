"""Flower's errors in place of a reply, by their codes: Flower's own names for them are private."""

from flwr.app import Error, Message

_UNKNOWN = 0
_EXPIRED = (3, 4)  # the message, or the reply to it, is unavailable
_NODE_UNAVAILABLE = 5
_CRASHED = 8


def is_expired(message: Message) -> bool:
    """Return whether nobody replied before the message's time to live was over."""
    return message.has_error() and message.error.code in _EXPIRED


def is_passing(message: Message) -> bool:
    """Return whether what kept a node from replying may be over when it is asked again."""
    passing = (*_EXPIRED, _NODE_UNAVAILABLE, _CRASHED)
    return message.has_error() and message.error.code in passing


def unreadable(message: Message, problem: str) -> Message:
    """Return what stands in place of a reply that is no message of Flower's."""
    return Message(Error(_UNKNOWN, f"the reply cannot be read: {problem}"), reply_to=message)


def lost(message: Message) -> Message:
    """Return what stands in place of the reply to a message that was lost with its node."""
    reason = "the node was started again before it had replied"
    return Message(Error(_NODE_UNAVAILABLE, reason), reply_to=message)
