"""Local SGD on a part of the parameters, the others bit-identical to what they were.

It is the SGD of an optimiser that was given the part alone: clipping, momentum and weight decay do
not see the others. With nothing frozen it is local SGD.
"""

from dataclasses import replace

from torch import Tensor

from fedhet_app.config import Config
from fedhet_app.submodel.flat import FlatModule
from fedhet_app.training import Forward, cross_entropy_objective


class Frozen:
    """What `local_sgd` must be given to leave parameters alone, with ``clip_before_hook``.

    Args:
        mask: The parameters that stay as they are, bool, shape ``(P,)``.
        config: What local SGD is to go by.

    Attributes:
        config: The same without weight decay: the optimiser's own would decay every parameter.
    """

    def __init__(self, mask: Tensor, config: Config) -> None:
        self._mask, self._weight_decay = mask, config.weight_decay
        self.config = replace(config, weight_decay=0.0)

    def objective(
        self, forward: Forward, model: FlatModule, inputs: Tensor, labels: Tensor
    ) -> Tensor:
        """Take the gradient of the mean cross-entropy by the part that trains."""
        loss = cross_entropy_objective(forward, model, inputs, labels)
        model.grad.masked_fill_(self._mask, 0.0)
        return loss

    def decay(self, params: Tensor, grad: Tensor) -> None:
        """Add the weight decay of the part that trains to its gradient."""
        grad.add_(params.masked_fill(self._mask, 0.0), alpha=self._weight_decay)
