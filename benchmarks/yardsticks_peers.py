"""laplace-torch on the networks of `benchmarks.yardsticks`: Kronecker factors of one layer or of all, and VaLLA.

    make .venv-bench/.installed
    .venv-bench/bin/python -m benchmarks.yardsticks_peers     # adds to benchmarks/results/yardsticks.json

Each network is trained again with the δ and the seed of its row, which gives the same weights, and each posterior gets
the prior precision that laplace-torch finds by its own marginal likelihood (VaLLA learns it). Probabilities are by
`probit`. A posterior is measured in a process of its own with one thread; a killed run goes on where it stopped.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from time import process_time
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.yardsticks import EPOCHS, RESULTS, SETS, auroc, entropy, pixels, quality, trained
from dnn2gp.paper.datasets import load_images
from dnn2gp.support.files import write_text

_BATCH, _PIECE = 100, 250
_INDUCING, _ITERATIONS, _RATE = 100, 5000, 1e-3
Fitted = Callable[[nn.Module, DataLoader], Any]


def last_layer(network: nn.Module, loader: DataLoader) -> Any:
    """Kronecker factors of the last layer."""
    return _by_evidence(network, loader, "last_layer")


def all_layers(network: nn.Module, loader: DataLoader) -> Any:
    """Kronecker factors of all layers."""
    return _by_evidence(network, loader, "all")


def valla(network: nn.Module, loader: DataLoader) -> Any:
    """Variational, with inducing points from k-means."""
    from laplace import Laplace

    settings = {"inducing_locations": "kmeans", "num_inducing": _INDUCING}
    kind = {"hessian_structure": "gp", "functional_approximation": "variational"}
    found = Laplace(network, "classification", subset_of_weights="all", **kind, **settings)
    found.fit(loader, iterations=_ITERATIONS, lr=_RATE)
    return found


PEERS: dict[str, Fitted] = {
    "laplace-torch, last layer, Kronecker": last_layer,
    "laplace-torch, all layers, Kronecker": all_layers,
    f"laplace-torch, VaLLA, {_INDUCING} points, {_ITERATIONS:,} steps": valla,
}


def measured(row: dict, peer: str, epochs: int) -> dict:
    """Quality, AUROC and CPU seconds of one posterior, without training and prediction."""
    own, other = (load_images(each) for each in SETS[row["data"]])
    count = row["num_train"]
    x, y = pixels(own.train_images[:count]), own.train_labels[:count].long()
    network = trained(x, y, row["delta"], epochs, row["seed"])
    with torch.no_grad():
        plain = quality(network(pixels(own.test_images)).softmax(1), own.test_labels.long())
    if abs(plain["nll"] - row["network"]["nll"]) > 1e-4:
        raise SystemExit(
            f"{row['data']}: the network has an NLL of {plain['nll']}; its row has {row['network']['nll']}"
        )
    begin = process_time()
    found = PEERS[peer](network, DataLoader(TensorDataset(x, y), batch_size=_BATCH, shuffle=True))
    seconds = process_time() - begin
    inside, outside = (_probabilities(found, pixels(each.test_images)) for each in (own, other))
    answers = {**quality(inside, own.test_labels.long()), "auroc": auroc(entropy(inside), entropy(outside))}
    return {**answers, "seconds": seconds}


def _by_evidence(network: nn.Module, loader: DataLoader, subset: str) -> Any:
    from laplace import Laplace

    found = Laplace(network, "classification", subset_of_weights=subset, hessian_structure="kron")
    found.fit(loader)
    found.optimize_prior_precision(method="marglik")
    return found


def _probabilities(found: Any, images: Tensor) -> Tensor:
    parts = [found(piece, pred_type="glm", link_approx="probit").detach() for piece in images.split(_PIECE)]
    return torch.cat(parts).double()


def main() -> None:
    """Measure what is missing, each in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", default=[], help="words that the names of row and peer must contain")
    parser.add_argument("--one", nargs=2, metavar=("ROW", "PEER"), help="measure this one here, and print it")
    parser.add_argument("--epochs", type=int, default=EPOCHS)
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    rows: dict[str, dict] = json.loads(options.out.read_text())
    if options.one:
        torch.set_num_threads(1)
        warnings.simplefilter("ignore")
        key, peer = options.one
        print(json.dumps(measured(rows[key], peer, options.epochs)))
        return
    for key, row in rows.items():
        for peer in PEERS:
            known = row.setdefault("peers", {})
            if peer in known or not all(word in f"{key}; {peer}" for word in options.only):
                continue
            command = [sys.executable, "-m", "benchmarks.yardsticks_peers", "--one", key, peer]
            command += ["--epochs", str(options.epochs), "--out", str(options.out)]
            done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
            known[peer] = json.loads(done.stdout.splitlines()[-1])
            write_text(options.out, json.dumps(rows, indent=1, sort_keys=True, ensure_ascii=False))
            print(key, peer, known[peer], flush=True)


if __name__ == "__main__":
    main()
