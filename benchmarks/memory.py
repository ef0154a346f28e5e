"""The peak memory of whole calls with a memory budget, for three networks and six posteriors.

    python -m benchmarks.memory                                   # writes benchmarks/results/memory.json and memory.md
    python -m benchmarks.memory --budgets 100 --networks LeNet-5  # a part of it; the rest of the results is kept

Each cell (a network, a posterior, a budget) is a process, and each call a fork of it that has warmed up on a few
examples: see memory_worker.py. The figure is the growth of the resident memory at its peak. Linux only.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.environment import commit, environment
from benchmarks.memory_cases import ARCHITECTURES, BUDGETS, CALLS, POSTERIORS

_ROOT = Path(__file__).parents[1]
_RESULTS = _ROOT / "benchmarks" / "results"
_ALLOWED = 1.1
_WORDS = (
    "The growth of the resident memory at its peak, in MB, in float32 with one thread. Calls that exceed their budget "
    'by more than a tenth are in bold; "refused" is a `MemoryBudgetError`, and – was not measured in time.'
)
_KEY = ("network", "posterior", "budget", "call")


def main() -> int:
    """Measure, and write the results; 1 if a call exceeded its budget by more than a tenth, or failed."""
    options = _parse()
    record = options.out / "memory.json"
    rows = json.loads(record.read_text())["rows"] if record.exists() else []
    for network, posterior, budget in _cells(options):
        found = _measured(network, posterior, budget, options)
        new = {_key(row) for row in found}
        rows = [*(row for row in rows if _key(row) not in new), *found]
        write(rows, options.out)
    print(table(rows))
    return 1 if any(_verdict(row) not in ("held", "refused") for row in rows) else 0


def write(rows: Sequence[dict], out: Path) -> None:
    """memory.json and memory.md."""
    out.mkdir(parents=True, exist_ok=True)
    around = environment("LayerwiseFeatures", False)
    (out / "memory.json").write_text(json.dumps({"environment": around, "commit": commit(), "rows": rows}, indent=1))
    (out / "memory.md").write_text(f"# Memory of whole calls\n\n{around['machine']}.\n\n{_WORDS}\n\n{table(rows)}\n")


def table(rows: Sequence[dict]) -> str:
    """The peaks in MB as Markdown, one line for each network, posterior and budget."""
    calls = [call for call in CALLS if any(row["call"] == call for row in rows)]
    lines = [f"| network | posterior | budget | {' | '.join(calls)} |", "|---|---|---:|" + "---:|" * len(calls)]
    found = {_key(row): row for row in rows}
    for budget in sorted({row["budget"] for row in rows}):
        for network in ARCHITECTURES:
            for posterior in POSTERIORS:
                own = [found.get((network, posterior, budget, call)) for call in calls]
                if any(own):
                    cells = " | ".join(_cell(row) for row in own)
                    lines.append(f"| {network} | {posterior} | {budget} | {cells} |")
    return "\n".join(lines)


def _cell(row: dict | None) -> str:
    if row is None:
        return "–"
    if "bytes" not in row:
        return _verdict(row)
    peak = f"{row['bytes'] / 1e6:.0f}"
    peak = peak if _verdict(row) == "held" else f"**{peak}**"
    return f"{peak} ({row['large'] / 1e6:.0f})" if row.get("large") else peak


def _verdict(row: dict) -> str:
    if "bytes" not in row:
        return "refused" if "refused" in row else "failed"
    return "held" if row["bytes"] <= _ALLOWED * 1e6 * row["budget"] else "exceeded"


def _measured(network: str, posterior: str, budget: int, options: argparse.Namespace) -> list[dict]:
    """One process for a cell, which prints a line for each call; what it did not come to in time is missing."""
    command = [sys.executable, "-m", "benchmarks.memory_worker", network, posterior, str(budget)]
    command += ["--large", str(options.large), "--calls", *options.calls]
    command += [] if options.tensors else ["--no-tensors"]
    process = subprocess.Popen(
        command,
        cwd=_ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    try:
        text, _ = process.communicate(timeout=options.seconds)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)  # its forks, too
        text, _ = process.communicate()
    print(text, end="", flush=True)
    return [{**json.loads(line), "commit": commit()} for line in text.splitlines() if line.endswith("}")]


def _cells(options: argparse.Namespace) -> list[tuple[str, str, int]]:
    return [(n, p, b) for b in options.budgets for n in options.networks for p in options.posteriors]


def _key(row: dict) -> tuple:
    return tuple(row[name] for name in _KEY)


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--budgets", nargs="*", type=int, default=list(BUDGETS), help="in MB")
    parser.add_argument("--networks", nargs="*", default=list(ARCHITECTURES))
    parser.add_argument("--posteriors", nargs="*", default=list(POSTERIORS))
    parser.add_argument("--calls", nargs="*", default=list(CALLS))
    parser.add_argument("--large", type=int, default=16_000, help="a budget that does not bind, in MB; 0: none")
    parser.add_argument("--tensors", action="store_true", help="measure what torch allocates, too")
    parser.add_argument("--seconds", type=float, default=600.0, help="the most time for a cell")
    parser.add_argument("--out", type=Path, default=_RESULTS)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
