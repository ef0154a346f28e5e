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
    "released code's loop": "dimgray",
    "neural-tangents": "tab:red",
    "curvlinops": "tab:brown",
    "laplace-torch": "tab:purple",
    "autograd": "tab:olive",
}
_AXES = {"N": "examples N", "K": "outputs K", "P": "weights P"}
# Ratios to these mean nothing as a race: they are parts, or a unit of measure.
_NO_RACE = ("peak", "mnist", "growth", "exact-gp", "optimizers")


def draw(results: Mapping, folder: Path) -> list[Path]:
    """All pictures for each number of threads; returns the files."""
    files = []
    for threads in sorted({record["threads"] for record in results["records"]}):
        records = [record for record in results["records"] if record["threads"] == threads]
        for work in ("full-kernel", "ggn-diagonal"):
            family = [record for record in records if record["case"].startswith(f"growth/{work}")]
            if family:
                words = "1 thread" if threads == 1 else f"{threads} threads"
                files.append(_growth(family, work, words, folder / f"growth-{work}-{threads}.png"))
        races = [record for record in records if record["group"] not in _NO_RACE]
        if races:
            files.append(_ratios(races, folder / f"ratios-{threads}.png"))
    return files


def _growth(family: Sequence[Mapping], work: str, threads: str, file: Path) -> Path:
    axes_names = [axis for axis in _AXES if any(record["axis"] == axis for record in family)]
    figure, axes = plt.subplots(1, len(axes_names), figsize=(4.2 * len(axes_names), 3.6), squeeze=False)
    for axis, name in zip(axes[0], axes_names, strict=True):
        chosen = [record for record in family if record["axis"] == name]
        for implementation, (xs, ys) in _lines(chosen).items():
            axis.loglog(xs, ys, "o-", label=implementation, color=_colour(implementation))
        _plain(axis.xaxis)
        axis.set_xlabel(_AXES[name])
        axis.set_title(_held_fixed(chosen[0]["title"], name), fontsize=9)
        axis.grid(True, which="both", alpha=0.2)
    axes[0][0].set_ylabel("seconds (median)")
    axes[0][0].legend()
    figure.suptitle(f"Time of the {work.replace('-', ' ').replace('ggn', 'GGN')}, {threads}")
    return _save(figure, file)


def _held_fixed(title: str, axis: str) -> str:
    """What the title of a case says besides the work and the place on the axis: "LeNet-5, N = 100"."""
    return ", ".join(part for part in title.split(", ")[1:] if not part.startswith(f"{axis} ="))


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
    """A bar for each peer of each case, its time over ours, below a line that names the case."""
    lines: list[tuple[str, float | None, str]] = []
    for record in records:
        mine = record["implementations"][0]["median"]
        rows = [row for row in record["implementations"][1:] if not row["name"].startswith("dnn2gp")]
        found = [(_label(row), row["median"] / mine, row["name"]) for row in rows if mine and row["median"]]
        lines += [(record["title"], None, ""), *found] if found else []
    figure, axis = plt.subplots(figsize=(9, 0.8 + 0.21 * len(lines)))
    for position, (label, ratio, name) in zip(range(len(lines), 0, -1), lines, strict=True):
        if ratio is None:
            axis.annotate(label, (0.0, position), xycoords=("axes fraction", "data"), xytext=(-170, -3),
                          textcoords="offset points", fontsize=8, weight="bold", annotation_clip=False,
                          bbox={"facecolor": "white", "edgecolor": "none", "pad": 1})  # fmt: skip
            continue
        axis.barh(position, ratio - 1, left=1, color=_colour(name), height=0.75)  # to the right where ours is faster
        axis.annotate(f" {_plain_number(ratio)} ×", (max(ratio, 1), position), va="center", fontsize=7)
    axis.set_yticks(
        [len(lines) - i for i, line in enumerate(lines) if line[1] is not None],
        [line[0] for line in lines if line[1] is not None],
        fontsize=7,
    )
    axis.set_xscale("log")
    axis.xaxis.set_major_locator(LogLocator())
    axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
    axis.set_ylim(0.2, len(lines) + 0.8)
    low, high = axis.get_xlim()
    axis.set_xlim(low, high * 3)
    axis.axvline(1, color="black", linewidth=0.8)
    axis.grid(True, axis="x", alpha=0.25)
    axis.set_axisbelow(True)
    axis.spines[["top", "right"]].set_visible(False)
    axis.set_xlabel("how many times as long as dnn2gp († scaled from a part)")
    return _save(figure, file)


def _label(row: Mapping) -> str:
    return row["name"] + ("†" if row["scale"] != 1 else "")


def _plain_number(value: float) -> str:
    return f"{float(f'{value:.3g}'):,g}"


def _colour(implementation: str) -> str | None:
    return next((colour for name, colour in _COLOURS.items() if implementation.startswith(name)), None)


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
