"""Ways to average softmax over f ~ N(m, C): their errors, compared with many samples, and their times.

    python -m benchmarks.averages    # writes benchmarks/results/averages.json and the table in docs/predictions.md

Covariances are random Wishart matrices of rank 2, K and 3K with mean variances from 0.1 to 100, and those of small
networks on scikit-learn's digits. The reference has 10⁶ samples (2¹⁷ for 30 and 100 classes), as 16 independently
scrambled sets of Sobol points, whose spread gives its standard error.
"""

from __future__ import annotations

import json
import math
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

import torch
from sklearn.datasets import load_digits
from torch import Tensor
from torch.quasirandom import SobolEngine

from dnn2gp import CategoricalLikelihood, convert
from dnn2gp.inference.averages import averages
from dnn2gp.inference.predictive import psd_root
from dnn2gp.network.mlp import mlp
from dnn2gp.support.errors import NotAMinimumWarning
from dnn2gp.support.files import write_text

ROOT = Path(__file__).parents[1]
BEGIN, END = "<!-- averages: begin -->", "<!-- averages: end -->"
SETS = 16
INPUTS = 6
Way = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Problem:
    """f ~ N(mean, covariance) at a few inputs."""

    classes: int
    variance: str
    mean: Tensor
    covariance: Tensor


def wishart() -> Iterator[Problem]:
    """Logits that are about as far apart as they are uncertain, or farther."""
    for classes in (2, 3, 10, 30, 100):
        for variance in (0.1, 1.0, 10.0, 100.0):
            for rank in (2, classes, 3 * classes):
                generator = torch.Generator().manual_seed(classes + rank)
                root = torch.randn(INPUTS, classes, rank, generator=generator, dtype=torch.float64)
                mean = torch.randn(INPUTS, classes, generator=generator, dtype=torch.float64)
                scale = variance / rank
                yield Problem(classes, f"{variance:g}", mean * max(variance, 4.0) ** 0.5, scale * root @ root.mT)


def digits() -> Iterator[Problem]:
    """A network trained for a short and for a long time on the first 500 digits, at test images, for two δ."""
    images, labels = load_digits(return_X_y=True)
    x, y = torch.from_numpy(images).double() / 16, torch.from_numpy(labels)
    for steps in (30, 300):
        torch.manual_seed(0)
        network = mlp(64, 10, width=20).double()
        optimizer = torch.optim.Adam(network.parameters(), lr=0.02)
        for _ in range(steps):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(network(x[:500]), y[:500]).backward()
            optimizer.step()
        for delta in (0.1, 1.0):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", NotAMinimumWarning)
                found = convert(network, (x[:500], y[:500]), CategoricalLikelihood(), delta).predict(x[500:540])
            exact = found.uncalibrated
            yield Problem(10, "digits", exact.latent_mean, exact.latent_covariance)


def reference(problem: Problem) -> tuple[Tensor, float]:
    """The average over all sets, and its largest standard error."""
    root = psd_root(problem.covariance)
    count = 2**16 if problem.classes <= 10 else 2**13
    parts = []
    for seed in range(1, SETS + 1):
        uniform = SobolEngine(root.shape[-1], scramble=True, seed=seed).draw(count, dtype=torch.float64)
        noise = torch.special.ndtri(uniform.clamp(2**-31, 1 - 2**-31))
        sums = [
            torch.stack([(m.unsqueeze(1) + r @ z.mT).softmax(0).sum(1) for z in noise.split(2**13)]).sum(0)
            for m, r in zip(problem.mean, root.flip(-1), strict=True)
        ]
        parts.append(torch.stack(sums) / count)
    every = torch.stack(parts)
    return every.mean(0), every.std(0).max().item() / math.sqrt(SETS)


def own(num_points: int) -> Way:
    return lambda m, C: averages(CategoricalLikelihood(), m, C, num_points).probabilities()  # pyright: ignore


def monte_carlo(m: Tensor, C: Tensor) -> Tensor:
    """As many pseudo-random numbers as `probabilities` has points."""
    noise = torch.randn(2048, *m.shape, 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return (m + (psd_root(C) @ noise).squeeze(-1)).softmax(-1).mean(0)


def pairwise(m: Tensor, C: Tensor) -> Tensor:
    """`Predictive.probit()`."""
    return CategoricalLikelihood().probit(m, C)


def per_logit(m: Tensor, C: Tensor) -> Tensor:
    """softmax(m_k / √(1 + π C_kk / 8))."""
    return (m / (1 + math.pi / 8 * C.diagonal(dim1=1, dim2=2)).sqrt()).softmax(-1)


def laplace_bridge(m: Tensor, C: Tensor) -> Tensor:
    """The mean of the Dirichlet distribution whose Laplace approximation has the mean and variances of centred logits.

    α_k = (1 − 2/K + e^{m_k} Σ_j e^{−m_j} / K²) / C_kk
    """
    K = m.shape[1]
    mean = m - m.mean(-1, keepdim=True)
    rows = C.mean(-1)
    reduced = C.diagonal(dim1=1, dim2=2) - 2 * rows + rows.mean(-1, keepdim=True)
    log_alpha = (
        torch.logaddexp(
            torch.full_like(m, math.log(1 - 2 / K) if K > 2 else -math.inf),
            mean + torch.logsumexp(-mean, -1, keepdim=True) - 2 * math.log(K),
        )
        - reduced.log()
    )
    return log_alpha.softmax(-1)


WAYS: dict[str, Way] = {
    "`probabilities`": own(2048),
    "256 points": own(256),
    "`monte_carlo(2048)`": monte_carlo,
    "`probit()`": pairwise,
    "probit per logit": per_logit,
    "Laplace bridge": laplace_bridge,
    "softmax of the mean": lambda m, C: m.softmax(-1),
}


def measure() -> list[dict[str, object]]:
    rows = []
    for problem in [*wishart(), *digits()]:
        expected, error = reference(problem)
        errors = {name: (way(problem.mean, problem.covariance) - expected).abs() for name, way in WAYS.items()}
        rows.append(
            {
                "classes": problem.classes,
                "variance": problem.variance,
                "standard_error": error,
                "largest": {name: each.max().item() for name, each in errors.items()},
                "total_variation": {name: 0.5 * each.sum(-1).mean().item() for name, each in errors.items()},
            }
        )
    return rows


def seconds() -> dict[str, float]:
    """For 1,000 inputs and 10 classes."""
    generator = torch.Generator().manual_seed(0)
    root = torch.randn(1000, 10, 10, generator=generator, dtype=torch.float64)
    m, C = torch.randn(1000, 10, generator=generator, dtype=torch.float64), root @ root.mT / 10
    found = {}
    for name, way in WAYS.items():
        way(m[:10], C[:10])
        begin = time.perf_counter()
        way(m, C)
        found[name] = time.perf_counter() - begin
    return found


def table(rows: list[dict[str, object]], times: dict[str, float]) -> str:
    """The largest errors of each number of classes and of each variance, as Markdown."""
    random = [row for row in rows if row["variance"] != "digits"]
    groups = {f"K = {k}": [row for row in random if row["classes"] == k] for k in (2, 3, 10, 30, 100)}
    groups |= {f"variance {v}": [r for r in rows if r["variance"] == v] for v in ("0.1", "1", "10", "100")}
    groups["digits"] = [r for r in rows if r["variance"] == "digits"]
    lines = [
        f"| largest error | {' | '.join(WAYS)} | error of the reference |",
        "|---" * (len(WAYS) + 2) + "|",
    ]
    for name, group in groups.items():
        cells = [max(row["largest"][way] for row in group) for way in WAYS]  # pyright: ignore
        error = max(row["standard_error"] for row in group)  # pyright: ignore
        lines.append(f"| {name} | {' | '.join(f'{cell:.2g}' for cell in cells)} | {error:.1g} |")
    means = [fmean(row["total_variation"][way] for row in rows) for way in WAYS]  # pyright: ignore
    lines.append(f"| mean total variation, all problems | {' | '.join(f'{each:.2g}' for each in means)} | |")
    lines.append(f"| time for N = 1,000, K = 10 | {' | '.join(f'{times[way]:.2g} s' for way in WAYS)} | |")
    return "\n".join(lines)


def main() -> None:
    torch.set_num_threads(1)
    rows, times = measure(), seconds()
    results = {"rows": rows, "seconds": times}
    write_text(ROOT / "benchmarks" / "results" / "averages.json", json.dumps(results, indent=1))
    page = ROOT / "docs" / "predictions.md"
    text = page.read_text()
    before, after = text.split(BEGIN)[0], text.split(END)[1]
    page.write_text(f"{before}{BEGIN}\n{table(rows, times)}\n{END}{after}")
    print(table(rows, times))


if __name__ == "__main__":
    main()
