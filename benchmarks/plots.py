"""Pictures of the results: growth on log-log axes, and bars of ratios."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.axis import Axis
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

_COLOURS = {
    "dnn2gp": "tab:blue",
    "vmap-jacrev": "tab:orange",
    "BackPACK": "tab:green",
    "per-example loop": "tab:gray",
    "neural-tangents": "tab:red",
}
_AXES = {"N": "examples N", "K": "outputs K", "P": "weights P"}
# Ratios to these mean nothing as a race: they are parts, or a unit of measure.
_NO_RACE = ("peak", "mnist", "growth", "exact-gp")


def draw(results: Mapping, folder: Path) -> list[Path]:
    """All pictures for each number of threads; returns the files."""
    files = []
    for threads in sorted({record["threads"] for record in results["records"]}):
        records = [record for record in results["records"] if record["threads"] == threads]
        for work in ("full-kernel", "ggn-diagonal"):
            family = [record for record in records if record["case"].startswith(f"growth/{work}")]
            if family:
                files.append(_growth(family, work, folder / f"growth-{work}-{threads}.png"))
        races = [record for record in records if record["group"] not in _NO_RACE]
        if races:
            files.append(_ratios(races, folder / f"ratios-{threads}.png"))
    return files


def _growth(family: Sequence[Mapping], work: str, file: Path) -> Path:
    axes_names = [axis for axis in _AXES if any(record["axis"] == axis for record in family)]
    figure, axes = plt.subplots(1, len(axes_names), figsize=(4.2 * len(axes_names), 3.6), squeeze=False)
    for axis, name in zip(axes[0], axes_names, strict=True):
        for implementation, (xs, ys) in _lines([record for record in family if record["axis"] == name]).items():
            axis.loglog(xs, ys, "o-", label=implementation, color=_COLOURS.get(implementation))
        _plain(axis.xaxis)
        axis.set_xlabel(_AXES[name])
        axis.grid(True, which="both", alpha=0.2)
    axes[0][0].set_ylabel("seconds (median)")
    axes[0][0].legend()
    figure.suptitle(f"{work.replace('-', ' ').replace('ggn', 'GGN')}: time")
    return _save(figure, file)


def _lines(records: Sequence[Mapping]) -> dict[str, tuple[list[float], list[float]]]:
    """x and median seconds of each implementation, in the order of x."""
    lines: dict[str, tuple[list[float], list[float]]] = {}
    for record in sorted(records, key=lambda record: record["x"]):
        for row in record["implementations"]:
            if row["median"] is not None:
                xs, ys = lines.setdefault(row["name"], ([], []))
                xs.append(record["x"])
                ys.append(row["median"])
    return lines


def _ratios(records: Sequence[Mapping], file: Path) -> Path:
    """A bar for each peer of each case: its time over ours."""
    bars = []
    for record in records:
        mine = record["implementations"][0]["median"]
        for row in record["implementations"][1:]:
            if mine and row["median"] and not row["name"].startswith("dnn2gp"):
                scaled = "†" if row["scale"] != 1 else ""
                bars.append((f"{record['title']}\n{row['name']}{scaled}", row["median"] / mine, row["name"]))
    figure, axis = plt.subplots(figsize=(9, 0.6 + 0.48 * len(bars)))
    positions = range(len(bars), 0, -1)
    widths = [ratio - 1 for _, ratio, _ in bars]  # from 1: to the right where ours is faster
    axis.barh(positions, widths, left=1, color=[_COLOURS.get(bar[2], "tab:purple") for bar in bars])
    axis.set_yticks(positions, [bar[0] for bar in bars], fontsize=7)
    for position, (_, ratio, _) in zip(positions, bars, strict=True):
        axis.annotate(f" {ratio:.3g} ×", (ratio, position), va="center", fontsize=7)
    axis.set_xscale("log")
    _plain(axis.xaxis)
    axis.axvline(1, color="black", linewidth=0.8)
    axis.set_xlabel("time over that of dnn2gp († scaled from a part)")
    axis.margins(x=0.12)
    return _save(figure, file)


def _plain(axis: Axis) -> None:
    """Ticks at 1, 2 and 5 times the powers of ten, as plain numbers."""
    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
    axis.set_minor_formatter(NullFormatter())


def _save(figure: plt.Figure, file: Path) -> Path:
    figure.tight_layout()
    figure.savefig(file, dpi=150)
    plt.close(figure)
    return file
