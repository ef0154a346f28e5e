"""The baseline of the paper: the network itself at weights sampled from a Gaussian."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from dnn2gp.gp.gaussian_process import GaussianProcess
from dnn2gp.inference.predictive import Moments
from dnn2gp.likelihoods import Likelihood
from dnn2gp.network import Network
from dnn2gp.network.inputs import Inputs, check_inputs
from dnn2gp.support.numbers import whole_number
from dnn2gp.support.progress import track
from dnn2gp.weights.gaussian import Gaussian


@dataclass(frozen=True, eq=False)
class SampledPredictive(Moments):
    """DNN-Laplace (or DNN-VI): moments over S networks f_{w_s}, w_s ~ q(w).

    mean        (1/S) Σ_s h(f_s)
    aleatoric   (1/S) Σ_s Var(y | f_s)
    epistemic   (1/S) Σ_s (h(f_s) − mean)²
    """

    likelihood: Likelihood
    output_shape: tuple[int, ...]
    outputs: Float[Tensor, "S N K"]

    @property
    def means(self) -> Float[Tensor, "S N K"]:
        """h(f_s) of each sample."""
        return torch.stack([self.likelihood.mean(f) for f in self.outputs])

    @property
    def mean(self) -> Float[Tensor, "N *shape"]:
        """The average prediction."""
        return self._shaped(self.means.mean(0))

    @property
    def aleatoric(self) -> Float[Tensor, "N *shape"]:
        """The average variance of the labels."""
        variances = [self.likelihood.covariance(f).diagonal(dim1=1, dim2=2) for f in self.outputs]
        return self._shaped(torch.stack(variances).mean(0))

    @property
    def epistemic(self) -> Float[Tensor, "N *shape"]:
        """The variance of the predictions over samples."""
        return self._shaped(self.means.var(0, correction=0))

    def __repr__(self) -> str:
        samples, inputs, _ = self.outputs.shape
        return f"SampledPredictive({samples} networks, {inputs} inputs, outputs of shape {self.output_shape})"


def sample_network(
    gp: GaussianProcess,
    inputs: Inputs,
    num_samples: int = 100,
    *,
    posterior: Gaussian | None = None,
    likelihood: Likelihood | None = None,
    generator: torch.Generator | None = None,
) -> SampledPredictive:
    """f_{w_s}(x) for w_s ~ `posterior`, by default that of the GP; `likelihood` gives the noise at x if it differs.

    The paper's DNN-Laplace uses a diagonal one: posterior = laplace(gp.model.expansion, gp.prior, Diagonal()).
    """
    num_samples = whole_number("num_samples", num_samples)
    draw = gp.inference.sample_weights if posterior is None else posterior.sample
    return networks_at(gp.network, draw(num_samples, generator), inputs, likelihood or gp.likelihood)


def networks_at(
    network: Network, weights: Float[Tensor, "S P"], inputs: Inputs, likelihood: Likelihood
) -> SampledPredictive:
    """f_{w_s}(x) at given weights."""
    inputs = network.check_inputs(check_inputs(inputs))
    with torch.no_grad():
        outputs = [network(each, inputs) for each in track(weights, "sampling networks", total=len(weights))]
    return SampledPredictive(likelihood, network.output_shape, torch.stack(outputs))
