"""Tuning δ and σ by the evidence every few epochs of your own training loop."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

from dnn2gp.evidence.tuning_result import TuningResult
from dnn2gp.likelihoods import Likelihood
from dnn2gp.network.data import read_data
from dnn2gp.support.numbers import whole_number
from dnn2gp.tune.prior_choice import PriorChoice
from dnn2gp.weights.priors import PriorPrecision


class WhileTraining:
    """Tunes δ, and the σ of a GaussianLikelihood(), at the current weights, at some epochs of training.

        tuner = WhileTraining(network, (x, y), GaussianLikelihood(), start=50, every=10)
        for epoch in range(500):
            loss = tuner.likelihood.loss(network(x), y).sum() + tuner.penalty()
            ...  # backward and step as usual; with a batch of n of N examples, multiply the summed loss by N/n
            tuner.update(epoch)

    start, every  tune at the epochs start, start + every, …
    per_layer     one δ per layer; per_output: one σ per output
    """

    def __init__(
        self,
        network: nn.Module,
        data: object,
        likelihood: Likelihood,
        prior_precision: PriorPrecision = 1.0,
        *,
        start: int = 10,
        every: int = 5,
        per_layer: bool = False,
        per_output: bool = False,
    ) -> None:
        self.start, self.every = whole_number("start", start, 0), whole_number("every", every)
        self.network, self.data = network, read_data(data)
        self._choice = PriorChoice.first(network, self.data, likelihood, prior_precision, per_layer, per_output)

    @property
    def likelihood(self) -> Likelihood:
        """The likelihood with the current σ."""
        return self._choice.likelihood

    @property
    def prior_precision(self) -> Float[Tensor, " *L"]:
        """The current δ."""
        return self._choice.precision

    def penalty(self) -> Float[Tensor, ""]:
        """½ Σ δ w² at the current weights, differentiable, to be added to the loss summed over *all* data."""
        named = {name: weight for name, weight in self.network.named_parameters() if weight.requires_grad}
        deltas = self._choice.of_weights.split(self._choice.layout.sizes)
        parts = [
            delta[0].to(named[name]) * named[name].square().sum()
            for name, delta in zip(self._choice.layout.names, deltas, strict=True)
        ]
        return 0.5 * torch.stack(parts).sum()

    def update(self, epoch: int) -> bool:
        """Tune if this is one of the chosen epochs, and return whether it was."""
        if epoch < self.start or (epoch - self.start) % self.every:
            return False
        gp = self._choice.converted(self.network, self.data)
        self._choice = self._choice.recorded(gp).improved(gp)
        return True

    def result(self) -> TuningResult:
        """The trials so far, and the GP of the current network with the current δ and σ."""
        gp = self._choice.converted(self.network, self.data)
        trials = self._choice.recorded(gp).trials
        return TuningResult("while training", trials, trials[-1].settings, trials[-1].evidence, gp=gp)
