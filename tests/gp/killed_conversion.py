"""Run in a process of its own, and killed: a conversion with a checkpoint, which writes its answers and its passes."""

from __future__ import annotations

import sys
import time
import warnings
from pathlib import Path

import torch
from torch import Tensor, nn

from dnn2gp import CategoricalLikelihood, GaussianLikelihood, GaussianProcess, Iterative, convert
from dnn2gp.features import FactoredJacobian
from dnn2gp.gp.by_evidence import ByEvidence
from dnn2gp.inference import LinearisedMode

WHERE = {"classifier": None, "at the mode": ByEvidence(at=LinearisedMode()), "regression": None}


def problem(kind: str, seed: int = 0) -> tuple[nn.Module, tuple[Tensor, Tensor]]:
    """A network of 107 or 58 weights with 60 examples."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(60, 4, generator=generator, dtype=torch.float64)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        network = nn.Sequential(nn.Linear(4, 13), nn.Tanh(), nn.Linear(13, 3)).double()
    noise = 0.1 * torch.randn(60, 3, generator=generator, dtype=torch.float64)
    return network, (x, x[:, :3].sin() + noise if kind == "regression" else (x[:, :3] + 5 * noise).argmax(1))


def converted(kind: str, folder: Path | None, **changes) -> GaussianProcess:
    network, data = problem(kind, changes.pop("seed", 0))
    likelihood = GaussianLikelihood() if kind == "regression" else CategoricalLikelihood()
    settings = {
        "inference": Iterative(rank=24, samples=24, tolerance=1e-6),
        "memory_budget": 1e9,
        "prior_precision": WHERE[kind],
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return convert(network, data, changes.pop("likelihood", likelihood), checkpoint=folder, **(settings | changes))


def counted(seconds: float) -> list[int]:
    """Count the products with the Jacobian of the training data from now on, each of which takes a while."""
    count = [0]

    def slow(name: str) -> None:
        plain = getattr(FactoredJacobian, name)

        def product(*args, **kwargs):
            count[0] += 1
            time.sleep(seconds)
            return plain(*args, **kwargs)

        setattr(FactoredJacobian, name, product)

    for name in ("curvature", "pull", "push"):
        slow(name)
    return count


def answers(gp: GaussianProcess) -> dict[str, Tensor]:
    x = torch.linspace(-2, 2, 20, dtype=torch.float64).reshape(5, 4)
    prediction, report = gp.predict(x), gp.inference.report()
    return {
        "mean": prediction.latent_mean,
        "covariance": prediction.latent_covariance,
        "error": prediction.latent_covariance_error,
        "samples": gp.inference.samples.own,
        "log_det": torch.tensor([report.log_det, report.log_det_error, report.passes, report.columns]),
        "prior": gp.prior.precision.diagonal(),
        "evidence": torch.tensor(gp.evidence().value),
    }


if __name__ == "__main__":
    kind, folder, out, seconds = sys.argv[1:]
    torch.set_num_threads(1)
    passes = counted(float(seconds))
    gp = converted(kind, Path(folder) if folder else None)
    torch.save((passes[0], answers(gp)), out)
