"""The paper's own curves along δ (Laplace; means over draws or splits), and claims that compare ours with them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dnn2gp.plots.report.section import Claim

_NONE = "none of them was computed"


@dataclass(frozen=True)
class PublishedCurve:
    """The paper's values at some δ."""

    deltas: tuple[float, ...]
    evidence: tuple[float, ...]
    """Mean log evidence, in nats."""
    test_error: tuple[float, ...]
    test_stderr: tuple[float, ...]
    """The standard error of that mean."""

    def places(self, deltas: np.ndarray) -> tuple[list[int], list[int]]:
        """The positions of the δ that both have, to within 1 %: in `deltas`, and here."""
        ours, theirs = np.nonzero(np.isclose(deltas[:, None], np.array(self.deltas), rtol=0.01))
        return ours.tolist(), theirs.tolist()


def evidence_claim(
    words: str,
    own: np.ndarray,
    deltas: np.ndarray,
    paper: PublishedCurve,
    bar: float,
    theirs_too: bool,
    start: float = 0.0,
) -> Claim:
    """Compare point by point, judging from δ = `start` on; without a verdict if the data is not the paper's."""
    ours, theirs = paper.places(deltas)
    gaps = np.abs(own[ours] / np.array(paper.evidence)[theirs] - 1)
    judged = deltas[ours] > 0.99 * start
    said = f"{sum(delta > 0.99 * start for delta in paper.deltas)} values (here: each within {100 * bar:g} %)"
    if not judged.any():
        return Claim(words, said, _NONE, None)
    text = f"the {judged.sum()} that were computed differ by at most {gaps[judged].max():.2%}"
    text += f" (below δ = {start:g} up to {gaps[~judged].max():.1%})" if not judged.all() else ""
    return Claim(words, said, text, bool(gaps[judged].max() < bar) if theirs_too else None)


def error_claim(words: str, own: np.ndarray, deltas: np.ndarray, paper: PublishedCurve, theirs_too: bool) -> Claim:
    """Compare point by point; a generous tolerance, as both curves are from the same draws."""
    ours, theirs = paper.places(deltas)
    said = f"{len(paper.deltas)} values (here: each within two of the paper's standard errors over the draws)"
    if not ours:
        return Claim(words, said, _NONE, None)
    off = np.abs(own[ours] - np.array(paper.test_error)[theirs])
    gaps, shares = off / np.array(paper.test_stderr)[theirs], off / np.array(paper.test_error)[theirs]
    text = (
        f"the {len(ours)} that were computed differ by at most {gaps.max():.1f} standard errors, or {shares.max():.1%}"
    )
    return Claim(words, said, text, bool(gaps.max() < 2) if theirs_too else None)


SYNTHETIC = PublishedCurve(
    tuple(10 ** (-2 + 4 * step / 20) for step in range(21)),
    (
        *(-144.0027, -137.5880, -131.0252, -126.2317, -122.0238, -117.1662, -114.4504, -112.5305),
        *(-110.9302, -110.1510, -110.1911, -110.7761, -111.8252, -112.9361, -113.3754, -113.4414),
        *(-114.4901, -115.9143, -117.5651, -118.9082, -119.3267),
    ),
    (
        *(0.2416, 0.2142, 0.1838, 0.1615, 0.1537, 0.1462, 0.1432, 0.1367, 0.1363, 0.1347),
        *(0.1358, 0.1426, 0.1600, 0.1997, 0.2751, 0.3250, 0.3410, 0.3668, 0.4079, 0.4567),
        0.5381,
    ),
    (
        *(0.0384, 0.0283, 0.0157, 0.0151, 0.0144, 0.0132, 0.0119, 0.0111, 0.0097, 0.0067),
        *(0.0053, 0.0048, 0.0065, 0.0091, 0.0125, 0.0054, 0.0057, 0.0062, 0.0064, 0.0073),
        0.0080,
    ),
)
WINE = PublishedCurve(
    tuple(10 ** (-1 + 4.6 * step / 29) for step in range(30)),
    (
        *(-2937.3064, -2841.6037, -2748.3175, -2666.9501, -2573.7633, -2480.3653, -2377.3794, -2278.6915),
        *(-2172.4434, -2081.6275, -1993.0326, -1934.0322, -1898.1519, -1862.2547, -1839.2940, -1828.1456),
        *(-1829.8577, -1851.5608, -1881.3210, -1916.1637, -1959.9126, -2017.4606, -2097.3105, -2205.2817),
        *(-2344.1471, -2440.2346, -2437.3832, -2437.2577, -2437.1474, -2437.0535),
    ),
    (
        *(0.7575, 0.7752, 0.7457, 0.7434, 0.7407, 0.6770, 0.6523, 0.6215, 0.5657, 0.5496),
        *(0.5001, 0.4481, 0.4434, 0.4133, 0.4088, 0.4027, 0.3985, 0.4039, 0.4117, 0.4190),
        *(0.4282, 0.4314, 0.4362, 0.4465, 0.4701, 0.6715, 0.6762, 0.6762, 0.6762, 0.6762),
    ),
    (
        *(0.0340, 0.0320, 0.0240, 0.0283, 0.0233, 0.0252, 0.0234, 0.0204, 0.0218, 0.0211),
        *(0.0166, 0.0145, 0.0167, 0.0137, 0.0115, 0.0108, 0.0109, 0.0103, 0.0103, 0.0104),
        *(0.0108, 0.0110, 0.0114, 0.0120, 0.0132, 0.0212, 0.0195, 0.0195, 0.0195, 0.0195),
    ),
)
