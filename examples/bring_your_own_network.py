"""Your own network: several named inputs, frozen layers and weight decay; convert, diagnose, predict, save and load it.

python examples/bring_your_own_network.py                              # uses a temporary file
python examples/bring_your_own_network.py --output own.safetensors     # keeps the file
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from dnn2gp import CategoricalLikelihood, convert, diagnose, load, precision_from_weight_decay, save

WEIGHT_DECAY = 2e-3
NUM_CLASSES = 3


class TwoInputs(nn.Module):
    """A frozen encoder of a signal, and a head on its features and a table of numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Conv1d(1, 4, kernel_size=5), nn.Tanh(), nn.AdaptiveAvgPool1d(4), nn.Flatten())
        self.head = nn.Sequential(nn.Linear(16 + 2, 8), nn.Tanh(), nn.Linear(8, NUM_CLASSES))

    def forward(self, signal: Tensor, table: Tensor) -> Tensor:
        return self.head(torch.cat([self.encoder(signal), table], dim=1))


class Examples(Dataset):
    """Pairs of a dict of inputs and a label; the keys are the argument names of `forward`."""

    def __init__(self, num_examples: int, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.labels = torch.randint(NUM_CLASSES, (num_examples,), generator=generator)
        time = torch.linspace(0, 6.3, 20)
        waves = torch.sin((1 + self.labels[:, None]) * time + 3 * torch.rand(num_examples, 1, generator=generator))
        self.signal = (waves + 0.5 * torch.randn(waves.shape, generator=generator)).unsqueeze(1)
        self.table = 0.7 * torch.randn(num_examples, 2, generator=generator) + self.labels[:, None] - 1

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[dict[str, Tensor], Tensor]:
        return {"signal": self.signal[index], "table": self.table[index]}, self.labels[index]


def train(network: nn.Module, data: Dataset, epochs: int) -> None:
    """Train as usual: mean cross-entropy, Adam with weight decay (not AdamW), a learning rate that decays to zero."""
    weights = [weight for weight in network.parameters() if weight.requires_grad]
    optimizer = torch.optim.Adam(weights, lr=0.05, weight_decay=WEIGHT_DECAY)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs)
    inputs, labels = next(iter(DataLoader(data, batch_size=len(data))))  # small enough for one batch
    for _ in range(epochs):
        optimizer.zero_grad()
        nn.functional.cross_entropy(network(**inputs), labels).backward()
        optimizer.step()
        schedule.step()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, help="file for the saved GP")
    parser.add_argument("--smoke", action="store_true", help="a short run with little data and few epochs")
    arguments = parser.parse_args()

    torch.manual_seed(0)
    network = TwoInputs()
    network.encoder.requires_grad_(False)  # frozen weights get no posterior
    data = Examples(24 if arguments.smoke else 150, seed=0)
    train(network, data, epochs=20 if arguments.smoke else 600)

    # The mean loss with weight decay λ has the same minima as the summed loss with δ = N λ.
    delta = precision_from_weight_decay(WEIGHT_DECAY, num_examples=len(data))
    gp = convert(network, data, CategoricalLikelihood(), prior_precision=delta)
    total = sum(weight.numel() for weight in network.parameters())
    print(f"δ = {delta:.3g}; {gp.network.num_weights} of {total} weights have a posterior; {gp.inference.name}\n")
    print(diagnose(gp), "\n")

    test = Examples(4, seed=1)
    inputs = {"signal": test.signal, "table": test.table}
    prediction = gp.predict(inputs)
    print("label  probabilities          epistemic standard deviation")
    for label, mean, epistemic in zip(test.labels, prediction.delta(), prediction.epistemic.sqrt(), strict=True):
        print(f"{label:5d}  {_row(mean)}      {_row(epistemic)}")

    with tempfile.TemporaryDirectory() as folder:
        path = arguments.output or Path(folder) / "own.safetensors"
        save(gp, path)
        again = load(path, TwoInputs)  # the class builds the module; the weights come from the file
        same = torch.equal(again.predict(inputs).epistemic, prediction.epistemic)
        print(f"\nsaved {path.stat().st_size / 1000:.0f} kB; the loaded GP predicts the same: {same}")


def _row(values: Tensor) -> str:
    return "  ".join(f"{value:.3f}" for value in values.tolist())


if __name__ == "__main__":
    main()
