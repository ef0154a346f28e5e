"""Seconds and bytes per pass over the data, LeNet-5: one process compared with several that share the examples.

    python -m benchmarks.processes                     # 2 processes, 2,000 images; writes results/processes.json
    python -m benchmarks.processes --processes 1 2 4   # other numbers of processes
    python -m benchmarks.processes --examples 10000

Each process has one thread, and all of them are on this machine, connected by gloo. A pass is the product of ΦᵀΦ with
64 vectors, the diagonal of JᵀΛJ, the Kronecker factors, or a step of VOGN on 256 images. Bytes are those that one
process sends. DNN2GP_DATA is the folder that contains MNIST; without it, the images are random.
"""

from __future__ import annotations

import argparse
import json
import socket
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing
from torch import Tensor

from dnn2gp import VOGN, CategoricalLikelihood, Processes
from dnn2gp.features import FactoredJacobian, LayerwiseFeatures
from dnn2gp.gp.shared import own_share
from dnn2gp.network import Network
from dnn2gp.network.data import Data
from dnn2gp.paper.datasets import load_images
from dnn2gp.paper.networks import lenet5
from dnn2gp.support.errors import InputError
from dnn2gp.support.files import write_text
from dnn2gp.support.processes import ALONE, Team

RECORD = Path(__file__).parent / "results" / "processes.json"
COLUMNS, BATCH, REPEATS = 64, 256, 5
Row = dict[str, float | int | str]


def images(count: int) -> Data:
    """The first images of MNIST and their labels, or random ones."""
    try:
        found = load_images("mnist")
    except (InputError, OSError):
        generator = torch.Generator().manual_seed(0)
        labels = torch.randint(10, (count,), generator=generator)
        return Data(torch.rand(count, 1, 28, 28, generator=generator), labels)
    return Data(found.train_images[:count], found.train_labels[:count])


def works(data: Data, processes: Processes | None) -> dict[str, Callable[[], object]]:
    """The passes that are measured, by name."""
    team: Team = processes or ALONE
    torch.manual_seed(0)
    module, likelihood = lenet5(), CategoricalLikelihood()
    own, _ = own_share(team, data, likelihood)
    function = Network(module, own.inputs)
    features = LayerwiseFeatures(function, own.inputs, memory_budget=2e9).of_team(team)
    root = likelihood.noise_precision_root(features.outputs(own.inputs))
    jacobian = FactoredJacobian(features, own.inputs, root, columns=COLUMNS)
    vectors = torch.randn(features.num_weights, COLUMNS, generator=torch.Generator().manual_seed(0))
    optimizer = VOGN(module, likelihood, data.num_examples, steps=100, processes=processes)
    inputs, targets = data.inputs, data.targets
    assert isinstance(inputs, Tensor)
    return {
        f"ΦᵀΦ v, {COLUMNS} columns": lambda: jacobian.curvature(vectors),
        "GGN diagonal": lambda: features.ggn_diagonal(own.inputs, root),
        "Kronecker factors": lambda: features.kronecker(own.inputs, root),
        f"step of VOGN, {BATCH} images": lambda: optimizer.step(inputs[:BATCH], targets[:BATCH]),
    }


def measured(data: Data, processes: Processes | None) -> list[Row]:
    """The median time of each pass and the bytes sent, after one pass to warm up."""
    rows: list[Row] = []
    for name, work in works(data, processes).items():
        work()
        seconds, sent, waited = [], [], []
        for _ in range(REPEATS):
            before = (0, 0.0) if processes is None else (processes.traffic.bytes, processes.traffic.seconds)
            begin = time.perf_counter()
            work()
            seconds.append(time.perf_counter() - begin)
            after = (0, 0.0) if processes is None else (processes.traffic.bytes, processes.traffic.seconds)
            sent.append(after[0] - before[0])
            waited.append(after[1] - before[1])
        size = 1 if processes is None else processes.size
        row: Row = {"pass": name, "processes": size, "examples": data.num_examples}
        rows.append({**row, "seconds": median(seconds), "exchange": median(waited), "bytes": sent[0]})
    return rows


def _process(rank: int, size: int, port: int, count: int, folder: str) -> None:
    torch.set_num_threads(1)
    processes = None
    if size > 1:
        dist.init_process_group("gloo", f"tcp://127.0.0.1:{port}", rank=rank, world_size=size)
        processes = Processes()
    rows = measured(images(count), processes)
    if rank == 0:
        (Path(folder) / "rows.json").write_text(json.dumps(rows))
    if processes is not None:
        dist.destroy_process_group()


def run(size: int, count: int) -> list[Row]:
    """Run this many processes; the rows are those of process 0."""
    with socket.socket() as tried:
        tried.bind(("127.0.0.1", 0))
        port = tried.getsockname()[1]
    with TemporaryDirectory() as folder:
        multiprocessing.spawn(_process, (size, port, count, folder), nprocs=size)  # pyright: ignore
        return json.loads((Path(folder) / "rows.json").read_text())


def main() -> None:
    """Measure, print the table and write the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--examples", type=int, default=2000)
    parser.add_argument("--out", type=Path, default=RECORD)
    options = parser.parse_args()
    rows = [row for size in options.processes for row in run(size, options.examples)]
    print(f"{'pass':30s} {'processes':>9s} {'seconds':>9s} {'exchange':>9s} {'MB sent':>8s}")
    for row in sorted(rows, key=lambda row: str(row["pass"])):
        numbers = f"{row['processes']:9d} {row['seconds']:9.3f} {row['exchange']:9.4f} {row['bytes'] / 1e6:8.2f}"  # pyright: ignore
        print(f"{row['pass']:30s} {numbers}")
    write_text(options.out, json.dumps(rows, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
