"""The measurements as tables in Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from benchmarks.calibration.measure import MINIMUM

_RIVALS = {"temperature scaling": "plain", "temperature scaling, prior": "with a prior"}


def page(rows: Sequence[dict]) -> str:
    """All tables, with a line of totals below each."""
    ordinary = [row for row in rows if row["regime"] not in (MINIMUM, "regression")]
    minima = [row for row in rows if row["regime"] == MINIMUM]
    regressions = [row for row in rows if row["regime"] == "regression"]
    parts = [
        _ordinary(ordinary) if ordinary else "",
        _minima(minima) if minima else "",
        _regressions(regressions) if regressions else "",
    ]
    return "\n\n".join(part for part in parts if part)


def _ordinary(rows: Sequence[dict]) -> str:
    head = (
        "| network | examples | network: accuracy | NLL | ECE | temperature scaling (validation): NLL | ECE | with a "
        "prior: NLL | ECE | **GP**: accuracy | NLL | ECE | **GP with validation**: NLL | ECE | mean | a | τ |"
    )
    lines = [head, "|---|" + "---:|" * 13 + "---|---:|---:|"]
    lines += [_ordinary_line(row) for row in rows]
    cells = [f"**{_mean(rows, *key)}**" for key in _COLUMNS]
    lines.append(f"| **mean of {len(rows)}** | | {' | '.join(cells)} | | | |")
    lines += ["", *_verdicts(rows)]
    return "\n".join(lines)


_COLUMNS = (
    ("network", "accuracy"),
    ("network", "nll"),
    ("network", "ece"),
    ("temperature scaling", "nll"),
    ("temperature scaling", "ece"),
    ("temperature scaling, prior", "nll"),
    ("temperature scaling, prior", "ece"),
    ("GP", "accuracy"),
    ("GP", "nll"),
    ("GP", "ece"),
    ("GP, validation", "nll"),
    ("GP, validation", "ece"),
)


def _ordinary_line(row: dict) -> str:
    own, chosen = row["scores"], row["calibration"]
    cells = [_number(own[way][score], score) for way, score in _COLUMNS]
    mean = {"network output": "network", "linearised mode": "mode"}[row["mean"]]
    name = f"{row['data']}, {row['kind']}, {row['regime']}"
    return (
        f"| {name} | {row['num_train']} | {' | '.join(cells)} | {mean} | {chosen['scale']:.2g} | "
        f"{chosen['temperature']:.2g} |"
    )


def _verdicts(rows: Sequence[dict]) -> list[str]:
    """The comparisons that matter, in words."""

    def gaps(way: str, other: str, score: str) -> list[float]:
        return [row["scores"][way][score] - row["scores"][other][score] for row in rows]

    worst = max(gaps("GP", "network", "nll"))
    lost = gaps("network", "GP", "accuracy")
    over = sum(gap > 0.05 for gap in gaps("GP", "network", "nll"))
    return [
        f"- NLL of the GP minus that of its network: {fmean(gaps('GP', 'network', 'nll')):+.3f} on average, "
        f"{worst:+.3f} at worst; {over} of {len(rows)} are above by more than 0.05 nats.",
        *(
            f"- NLL minus that of temperature scaling with validation data ({words}): GP without validation data "
            f"{fmean(gaps('GP', rival, 'nll')):+.3f} on average, GP with it "
            f"{fmean(gaps('GP, validation', rival, 'nll')):+.3f}; ECE of the latter "
            f"{fmean(gaps('GP, validation', rival, 'ece')):+.3f}."
            for rival, words in _RIVALS.items()
        ),
        f"- Accuracy lost by the GP: {100 * fmean(lost):+.2f} points on average, {100 * max(lost):+.1f} at worst.",
    ]


def _minima(rows: Sequence[dict]) -> str:
    head = (
        "| `GPNetClassifier` on | examples | network: NLL | exact GP (a = 1): NLL | leave-one-out | "
        "**GP**: NLL | leave-one-out | a | τ |"
    )
    lines = [head, "|---|" + "---:|" * 8]
    for row in rows:
        own, left, chosen = row["scores"], row["leave_one_out"], row["calibration"]
        lines.append(
            f"| {row['data']} | {row['num_train']} | {own['network']['nll']:.3f} | {own['GP, a = 1']['nll']:.3f} | "
            f"{left['GP, a = 1']:.3f} | {own['GP']['nll']:.3f} | {left['GP']:.3f} | {chosen['scale']:.2g} | "
            f"{chosen['temperature']:.2g} |"
        )
    before, after = (fmean(row["scores"][way]["nll"] for row in rows) for way in ("GP, a = 1", "GP"))
    near = [
        sum(abs(row["leave_one_out"][w] - row["scores"][w]["nll"]) <= 0.05 for row in rows) for w in ("GP, a = 1", "GP")
    ]
    lines += [
        "",
        f"- Mean NLL of the exact GP {before:.3f}, with a and τ by leave-one-out {after:.3f} ({1 - after / before:.0%} "
        "lower).",
        f"- The leave-one-out NLL is within 0.05 nats of the test NLL for {near[0]} of {len(rows)} exact GPs, and for "
        f"{near[1]} of {len(rows)} with a and τ.",
    ]
    return "\n".join(lines)


def _regressions(rows: Sequence[dict]) -> str:
    head = (
        "| regression on | examples | network: RMSE | NLL | **GP**: RMSE | NLL | coverage of 90 % intervals | "
        "calibrated: NLL | coverage |"
    )
    lines = [head, "|---|" + "---:|" * 8]
    for row in rows:
        lines.append(
            f"| {row['data']}, {row['kind']} | {row['num_train']} | {row['rmse']['network']:.3f} | "
            f"{row['nll']['network']:.3f} | {row['rmse']['GP']:.3f} | {row['nll']['GP']:.3f} | {row['coverage']:.1%} | "
            f"{row['nll']['GP, calibrated']:.3f} | {row['coverage, calibrated']:.1%} |"
        )
    return "\n".join([*lines, "", _coverages(rows)])


def _coverages(rows: Sequence[dict]) -> str:
    """The mean coverage of each data set."""
    names = dict.fromkeys(row["data"] for row in rows)
    means = {name: fmean(row["coverage"] for row in rows if row["data"] == name) for name in names}
    return "- Mean coverage: " + ", ".join(f"{name} {value:.1%}" for name, value in means.items()) + "."


def _mean(rows: Sequence[dict], way: str, score: str) -> str:
    return _number(fmean(row["scores"][way][score] for row in rows), score)


def _number(value: float, score: str) -> str:
    return f"{100 * value:.1f} %" if score == "accuracy" else f"{value:.3f}"
