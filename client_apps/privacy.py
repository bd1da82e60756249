"""Flower's privacy modifiers around a client's training: what leaves the client is clipped.

With ``privacy.mode`` = client-fixed the update is shortened to the norm that the server's half
(`strategies.privacy`) sends with the model; with local it is shortened to
``privacy.clipping-norm`` and gets noise here, so that not even the server sees it without.

Deviations:
    1. Flower leaves the sensitivity of the local mode to the user. Here it is 2 * clipping-norm:
       two clipped updates are no further apart.
"""

from collections.abc import Callable

from flwr.app import Context, Message
from flwr.clientapp.mod import LocalDpMod, fixedclipping_mod

from fedhet_app.method_options import PrivacyOptions

Train = Callable[[Message, Context], Message]


def protected(options: PrivacyOptions, message: Message, context: Context, train: Train) -> Message:
    """Return the reply of ``train`` to a message, as the run's privacy lets it leave the client."""
    match options.mode:
        case "client-fixed":
            return fixedclipping_mod(message, context, train)
        case "local":
            modifier = LocalDpMod(
                options.clipping_norm, 2 * options.clipping_norm, options.epsilon, options.delta
            )
            return modifier(message, context, train)
        case _:
            return train(message, context)
