"""A module whose tensors are views of one flat vector: loading, stepping and sending are one copy.

The optimiser then updates one tensor instead of dozens, and a model on the wire needs no table of
names.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from fedhet_app.submodel.layout import layout_of, tensors_of


class FlatModule:
    """Takes a module over: every parameter, gradient and float buffer becomes a view.

    The views hold as long as nobody rebinds them: clear gradients with ``grad.zero_()``, never with
    ``zero_grad(set_to_none=True)``, and do not move ``module`` to another device afterwards.

    Args:
        module: The network, float32.
        device: Where its vector lives.

    Attributes:
        module: The same module, on ``device``.
        layout: Where each tensor lies in ``vector``.
        vector: All parameters and float buffers, shape (layout size,).
        params: The leading part of ``vector``, shape (num_params,), for in-place updates.
        grad: The gradient of ``params``, shape (num_params,), into which ``backward`` accumulates.

    Raises:
        FedhetError: A parameter or a floating-point buffer is not float32.
    """

    def __init__(self, module: nn.Module, device: torch.device | str = "cpu") -> None:
        self.layout = layout_of(module)
        self.module = module.to(device)
        self.vector = torch.empty(self.layout.size, device=device)
        self.params = self.vector[: self.layout.num_params]
        self.grad = torch.zeros(self.layout.num_params, device=device)
        for entry, (_, tensor) in zip(self.layout.entries, tensors_of(module), strict=True):
            view = entry.view(self.vector)
            view.copy_(tensor.detach())
            tensor.data = view
            if entry.is_parameter:
                tensor.grad = entry.view(self.grad)

    def load(self, array: NDArray[np.float32]) -> None:
        """Copy a vector of shape (layout size,) into the module.

        Raises:
            ValueError: The vector has another shape.
        """
        if array.shape != (self.layout.size,):
            raise ValueError(f"vector of shape {array.shape} for a module of {self.layout.size}")
        if self.vector.is_cpu:
            np.copyto(self.vector.numpy(), array)
        else:
            self.vector.copy_(torch.tensor(array))

    def numpy(self) -> NDArray[np.float32]:
        """Return a copy of the vector, shape (layout size,)."""
        copied: NDArray[np.float32] = self.vector.to("cpu", copy=True).numpy()
        return copied
