"""Flower's errors in place of a reply, by their codes: Flower's own names for them are private."""

from flwr.app import Error, Message

_UNAVAILABLE = (3, 4)  # the message, or the reply to it
_NODE_UNAVAILABLE = 5


def is_expired(message: Message) -> bool:
    """Return whether nobody replied before the message's time to live was over."""
    return message.has_error() and message.error.code in _UNAVAILABLE


def is_away(message: Message) -> bool:
    """Return whether the node that was to reply is gone."""
    return message.has_error() and message.error.code == _NODE_UNAVAILABLE


def lost(message: Message) -> Message:
    """Return what stands in place of the reply to a message that was lost with its node."""
    reason = "the node was started again before it had replied"
    return Message(Error(_NODE_UNAVAILABLE, reason), reply_to=message)
