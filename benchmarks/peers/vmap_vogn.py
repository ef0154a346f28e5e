"""VOGN as one writes it with torch.func: the gradients of all examples in memory, squared and summed."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn.functional import cross_entropy


class VmapVOGN:
    """The update of VOGN (or of OGN, at the mean) for a classifier, with δ = 1 and the first precision N."""

    def __init__(
        self, module: nn.Module, num_data: int, lr: float, precision_lr: float, momentum: float, *, sampled: bool
    ) -> None:
        self.module = module.eval()
        self.names = [name for name, _ in module.named_parameters()]
        self.shapes = [weight.shape for weight in module.parameters()]
        self.mean = torch.cat([weight.detach().flatten() for weight in module.parameters()])
        self.precision = torch.full_like(self.mean, num_data)
        self.average = torch.zeros_like(self.mean)
        self.num_data, self.lr, self.precision_lr, self.momentum = num_data, lr, precision_lr, momentum
        self.generator, self.sampled, self.count = torch.Generator().manual_seed(0), sampled, 0
        self.gradients = vmap(grad(self._loss), in_dims=(None, 0, 0))

    def step(self, inputs: Tensor, labels: Tensor) -> None:
        """One step."""
        weights = self.mean
        if self.sampled:
            noise = torch.randn(len(weights), 1, generator=self.generator)
            weights = weights + noise[:, 0] * self.precision.rsqrt()
        each = self.gradients(self._unflat(weights), inputs, labels)
        flat = torch.cat([each[name].flatten(1) for name in self.names], 1)
        scale = self.num_data / len(inputs)
        curvature = scale * flat.square().sum(0) + 1
        gradient = scale * flat.sum(0) + self.mean
        self.count += 1
        self.precision = (1 - self.precision_lr) * self.precision + self.precision_lr * curvature
        self.average = self.momentum * self.average + (1 - self.momentum) * gradient
        direction = self.average / (1 - self.momentum**self.count)
        self.mean = self.mean - self.lr * direction / self.precision

    def _loss(self, weights: dict[str, Tensor], example: Tensor, label: Tensor) -> Tensor:
        outputs = functional_call(self.module, weights, (example.unsqueeze(0),))
        return cross_entropy(outputs, label.unsqueeze(0))

    def _unflat(self, weights: Tensor) -> dict[str, Tensor]:
        parts = weights.split([shape.numel() for shape in self.shapes])
        return {name: part.view(shape) for name, part, shape in zip(self.names, parts, self.shapes, strict=True)}
