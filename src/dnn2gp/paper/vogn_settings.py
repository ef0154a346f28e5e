"""The steps of a VOGN training with all data in every step: Figs. 3 and 5."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from dnn2gp.likelihoods import Likelihood
from dnn2gp.optim.methods import VOGN
from dnn2gp.support.errors import InputError
from dnn2gp.weights.step_checks import check_positive, check_rate


@dataclass(frozen=True)
class VognSettings:
    """How many steps of VOGN to take, and with which rates and samples."""

    steps: int = 5000
    lr: float = 0.01
    """β of the mean. Where residuals are smaller than σ, Ĥ is smaller than the curvature, and β near 1 overshoots."""
    precision_lr: float = 0.1
    """β' of the precision."""
    num_samples: int = 25
    """S."""
    initial_precision: float = 1.0

    def __post_init__(self) -> None:
        check_rate("lr", self.lr)
        check_rate("precision_lr", self.precision_lr)
        check_positive("initial_precision", self.initial_precision)
        if self.steps < 1 or self.num_samples < 1:
            raise InputError(f"expected steps and num_samples ≥ 1; got {self.steps} and {self.num_samples}.")

    def optimizer(
        self, network: nn.Module, likelihood: Likelihood, num_data: int, prior_precision: float, seed: int = 0
    ) -> VOGN:
        """The optimizer that takes these steps from the weights of the network."""
        return VOGN(
            network,
            likelihood,
            num_data,
            lr=self.lr,
            precision_lr=self.precision_lr,
            prior_precision=prior_precision,
            num_samples=self.num_samples,
            initial_precision=self.initial_precision,
            seed=seed,
        )
