"""Share the training data among several processes: training with VOGN, conversion, evidence and leave-one-out.

Every process runs this script, holds its share of the examples and gets the same result, which process 0 prints.

    python examples/several_processes.py                                       # one process
    torchrun --nproc-per-node=2 examples/several_processes.py                  # two on this machine
    torchrun --nnodes=2 --nproc-per-node=8 --rdzv-backend=c10d \
        --rdzv-endpoint=host:29500 examples/several_processes.py

With `--smoke`, it takes a few seconds.
"""

from __future__ import annotations

import argparse
import os
import warnings

import torch
import torch.distributed as dist
from torch import Tensor, nn

from dnn2gp import VOGN, CategoricalLikelihood, Iterative, Processes, convert
from dnn2gp.inference.metrics import accuracy, nll


def main() -> None:
    """Train, convert, predict."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--smoke", action="store_true", help="a short run")
    smoke = parser.parse_args().smoke
    processes = started()
    first = processes is None or processes.rank == 0
    train, test = digits(300 if smoke else 1200)
    network = trained(train, 10 if smoke else 300, processes)
    method = Iterative(rank=64 if smoke else 256, samples=32 if smoke else 64)
    if not first:
        warnings.simplefilter("ignore")  # the others have the same warnings
    gp = convert(network, train, CategoricalLikelihood(), inference=method, processes=processes, progress=not smoke)
    evidence, left_out = gp.evidence(), gp.leave_one_out()  # in all processes: these need everyone's data
    if first:  # predictions do not
        probabilities = gp.predict(test[0]).probabilities
        print(f"log evidence {evidence.value:.2f}, leave-one-out NLL {left_out.nll:.3f}")
        print(f"test accuracy {accuracy(probabilities, test[1]):.3f}, test NLL {nll(probabilities, test[1]):.3f}")
    if processes is not None:
        traffic = processes.traffic
        sizes = f"{traffic.sums} sums over the data, {traffic.bytes / 1e6:.1f} MB sent, {traffic.seconds:.1f} s"
        print(f"[process {processes.rank} of {processes.size}: {sizes} spent on exchanges]")
        dist.destroy_process_group()


def started() -> Processes | None:
    """The processes that torchrun has started, or None if the script was started without it."""
    if "RANK" not in os.environ:
        return None
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        dist.init_process_group("nccl")
    else:
        dist.init_process_group("gloo")
    return Processes()


def trained(data: tuple[Tensor, Tensor], steps: int, processes: Processes | None) -> nn.Module:
    """A small network. Each process evaluates its share of every batch; the seed makes the result the same in all."""
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(64, 32), nn.Tanh(), nn.Linear(32, 10)).double().to(data[0].device)
    optimizer = VOGN(network, CategoricalLikelihood(), len(data[1]), steps=steps, processes=processes)
    for _ in range(steps):
        batch = torch.randperm(len(data[1]))[:100].to(data[1].device)
        optimizer.step(data[0][batch], data[1][batch])
    return network


def digits(count: int) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """The digits that ship with scikit-learn, in float64; the same in all processes."""
    from sklearn.datasets import load_digits

    device = torch.device("cuda") if torch.cuda.is_available() and "RANK" in os.environ else torch.device("cpu")
    x, y = load_digits(return_X_y=True)
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(0))
    inputs, labels = (torch.from_numpy(x)[order] / 16).to(device), torch.from_numpy(y).long()[order].to(device)
    return (inputs[:count], labels[:count]), (inputs[1200:], labels[1200:])


if __name__ == "__main__":
    main()
