"""Leave-one-out in closed form, compared with refitting the linear model and with retraining the network.

    python -m benchmarks.calibration.refits    # a minute

A small network is trained to a minimum on 400 of scikit-learn's digits. The NLLs are those of the mean of f
(a = 0, τ = 1) for the 20 examples that are hardest to predict when they are left out, and for 20 random ones.
"""

from __future__ import annotations

import warnings

import torch
from torch import Tensor, nn
from torch.func import functional_call, jacrev, vmap

from benchmarks.calibration.networks import SETS, split
from dnn2gp import CategoricalLikelihood, NetworkOutput, convert

DELTA, HIDDEN, NUM_EXAMPLES, HARDEST, RANDOM = 1.0, 16, 400, 20, 20


def main() -> None:
    """Print the mean NLL of each way."""
    torch.manual_seed(0)
    x, y = split("digits", 0, {"digits": (SETS["digits"][0], NUM_EXAMPLES)}).train
    network = nn.Sequential(nn.Linear(64, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, 10)).double()
    train(network, x, y)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        gp = convert(network, (x, y), CategoricalLikelihood(), DELTA, mean=NetworkOutput())
    closed = gp.leave_one_out().prediction.latent_mean
    hardest = losses(closed, y).argsort(descending=True)[:HARDEST]
    chosen = torch.cat([hardest, torch.randperm(len(y))[:RANDOM]])
    with torch.no_grad():
        fitted = network(x)
    linear = LinearModel(network, x, y)
    refitted = torch.stack([linear.without(int(row)) for row in chosen])
    retrained = torch.stack([without(network, x, y, int(row)) for row in chosen])
    ways = {
        "with the example": fitted[chosen],
        "left out, in closed form": closed[chosen],
        "left out, linear model refitted": refitted,
        "left out, network retrained": retrained,
    }
    for name, outputs in ways.items():
        found = losses(outputs, y[chosen])
        print(f"{name:32s} hardest {found[:HARDEST].mean():.3f}   random {found[HARDEST:].mean():.3f}")


def losses(outputs: Tensor, labels: Tensor) -> Tensor:
    """The NLL of each example."""
    return nn.functional.cross_entropy(outputs, labels, reduction="none")


def train(network: nn.Module, x: Tensor, y: Tensor) -> None:
    """To a minimum of Σ ℓ + ½ δ wᵀw, with L-BFGS."""
    weights = list(network.parameters())
    for _ in range(3):  # restarted, because a line search may end it early
        optimizer = torch.optim.LBFGS(
            weights, max_iter=500, history_size=50, tolerance_grad=1e-6, line_search_fn="strong_wolfe"
        )

        def closure(optimizer: torch.optim.LBFGS = optimizer) -> Tensor:
            optimizer.zero_grad()
            loss = losses(network(x), y).sum() + 0.5 * DELTA * sum(each.square().sum() for each in weights)
            loss.backward()
            return loss

        optimizer.step(closure)  # pyright: ignore[reportArgumentType]


def without(network: nn.Module, x: Tensor, y: Tensor, row: int) -> Tensor:
    """f(xᵢ) of the network after training without example i, from its present weights."""
    state = {name: value.clone() for name, value in network.state_dict().items()}
    kept = torch.arange(len(x)) != row
    train(network, x[kept], y[kept])
    with torch.no_grad():
        found = network(x[row : row + 1])[0]
    network.load_state_dict(state)
    return found


class LinearModel:
    """f_w + J (θ − w), with J by autograd."""

    def __init__(self, network: nn.Module, x: Tensor, y: Tensor) -> None:
        weights = {name: value.detach() for name, value in network.named_parameters()}
        found = vmap(jacrev(lambda w, one: functional_call(network, w, (one[None],))[0]), (None, 0))(weights, x)
        self.jacobian = torch.cat([found[name].flatten(2) for name in weights], 2)
        self.start = torch.cat([value.flatten() for value in weights.values()])
        self.outputs, self.labels = network(x).detach(), y

    def without(self, row: int) -> Tensor:
        """f(xᵢ) at the minimum without example i, by damped Newton steps."""
        kept = torch.arange(len(self.labels)) != row
        J, f, y = self.jacobian[kept], self.outputs[kept], self.labels[kept]
        theta = self.start.clone()

        def loss(theta: Tensor) -> Tensor:
            return losses(f + J @ (theta - self.start), y).sum() + 0.5 * DELTA * theta.square().sum()

        for _ in range(30):
            p = (f + J @ (theta - self.start)).softmax(1)
            values, vectors = torch.linalg.eigh(torch.diag_embed(p) - p[:, :, None] * p[:, None])
            rows = ((vectors * values.clamp(min=0).sqrt()[:, None]).mT @ J).flatten(0, 1)
            residual = p - nn.functional.one_hot(y, p.shape[1])
            gradient = torch.einsum("nkp,nk->p", J, residual) + DELTA * theta
            hessian = rows.T @ rows + DELTA * torch.eye(len(theta), dtype=theta.dtype)
            step, size = torch.linalg.solve(hessian, gradient), 1.0
            while loss(theta - size * step) > loss(theta) + 1e-9 and size > 1e-4:
                size /= 2
            theta = theta - size * step
            if size * step.norm() < 1e-6 * theta.norm():
                break
        return self.outputs[row] + self.jacobian[row] @ (theta - self.start)


if __name__ == "__main__":
    main()
