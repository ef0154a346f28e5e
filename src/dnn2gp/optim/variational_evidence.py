"""Three quantities that are called the evidence of a network trained with VI, each under its own name."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from dnn2gp.gp.convert import convert_step
from dnn2gp.network.data import Data
from dnn2gp.support.numbers import whole_number
from dnn2gp.support.randomness import own_generator
from dnn2gp.weights.online_newton import OnlineNewton, State


@dataclass(frozen=True)
class VariationalEvidence:
    """Log evidences of the training data, in nats. They answer different questions and cannot be compared."""

    linear_model: float
    """Of the linear model of iteration t, Eq. (13), whose prior is (m_t, V_t): how well q_t, tempered by 1 − β,
    predicts the data that the step is about to see. It is conditioned on all data that the training has seen."""
    plain_prior: float
    """Of the same features and transformed outputs under the prior N(0, δ⁻¹I), the linear model with β = 1: the log
    marginal likelihood to tune with at convergence, which the paper plots for VI."""
    elbo: float
    """(1/T) E_q log p(D|w) − KL(q ‖ p): a lower bound on the log evidence of the network itself."""
    num_samples: int
    """Networks w ~ q_t over which all three are averaged."""

    def __str__(self) -> str:
        return (
            f"log evidence of the linear model {self.linear_model:.2f} with the prior (m_t, V_t), "
            f"{self.plain_prior:.2f} with the plain prior; ELBO {self.elbo:.2f}"
        )


def linear_model_evidences(
    method: OnlineNewton,
    state: State,
    batch: Data,
    beta: float,
    num_samples: int,
    generator: torch.Generator | None = None,
) -> tuple[float, float]:
    """The evidences under the prior (m_t, V_t) and under the plain one, averaged over linear models of one sample each.

    The samples are not stacked: S of them would be S · N transformed outputs, whose density depends on S.
    """
    num_samples = whole_number("num_samples", num_samples)
    one = replace(method, num_samples=min(1, method.num_samples), antithetic=False)
    generator = own_generator(generator, state.mean.device)
    found = []
    for _ in range(num_samples if one.num_samples else 1):
        sites = one.look(state, batch, beta, generator)
        found.append([convert_step(state, sites, beta=rate).evidence().value for rate in (beta, 1.0)])
    step, plain = torch.tensor(found, dtype=torch.float64).mean(0).tolist()
    return step, plain


def expected_log_likelihood(
    method: OnlineNewton, state: State, data: Data, num_samples: int, generator: torch.Generator | None = None
) -> float:
    """E_q log p(D | w), averaged over samples w ~ q_t."""
    weights = replace(method, num_samples=num_samples, antithetic=False).sample(state, generator)
    targets = data.targets.double() if data.targets.is_floating_point() else data.targets
    values = [
        method.likelihood.log_prob(method.features.at(each).outputs(data.inputs).double(), targets).sum()
        for each in weights
    ]
    return torch.stack(values).mean().item()
