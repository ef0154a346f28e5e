"""The report of the paper's figures: a header, all claims in one table, then one section per figure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from markupsafe import Markup
from plotly.offline import get_plotlyjs

from dnn2gp.plots.report.maps import NAMES, class_colours, examples_data, map_data
from dnn2gp.plots.report.section import Examples, InteractiveMap, Section
from dnn2gp.plots.report.stills import STILL_DPI, still
from dnn2gp.plots.report.template import duration, image, render
from dnn2gp.plots.style import DPI, colour_limit


def html(
    title: str,
    sections: Sequence[Section],
    preset: str,
    versions: dict[str, str],
    total_seconds: float,
    missing: Mapping[str, str] | None = None,
    note: str = "",
) -> str:
    """The report as the text of one HTML file.

    Args:
        title: The heading of the page.
        sections: The figures, in their order on the page.
        preset: The preset they were computed with.
        versions: Package → version.
        total_seconds: The computing time of all figures.
        missing: Figures that could not be made → why.
        note: A remark about the whole report, shown at its top.
    """
    known = _known_examples(sections)
    verdicts = [claim.holds for section in sections for claim in section.claims]
    since = ", partly since it was resumed" if any(section.resumed for section in sections) else ""
    return render(
        "figures.html.j2",
        title=title,
        note=note,
        facts={
            "preset": preset,
            "computing time": duration(total_seconds) + since,
            "versions": ", ".join(f"{name} {version}" for name, version in versions.items()),
        },
        hold=verdicts.count(True),
        fail=verdicts.count(False),
        open=verdicts.count(None),
        missing=missing or {},
        sections=[_section(*each, known) for each in zip(sections, _anchors(sections), strict=True)],
        orders=NAMES,
        dpi=DPI,
        examples={name: examples_data(examples) for examples, name in known.items()},
        plotly=Markup(get_plotlyjs()) if known else "",
    )


def _section(section: Section, anchor: str, known: Mapping[Examples, str]) -> dict[str, Any]:
    maps = [_map(shown, f"{anchor}-map-{number}", known) for number, shown in enumerate(section.maps)]
    return {"section": section, "anchor": anchor, "maps": maps}


def _map(shown: InteractiveMap, identity: str, known: Mapping[Examples, str]) -> dict[str, Any]:
    classes = shown.examples.classes
    return {
        "identity": identity,
        "title": shown.title,
        "description": shown.description,
        "is_kernel": shown.is_kernel,
        "examples": known[shown.examples],
        "ends": _ends(shown),
        "legend": list(zip(classes, class_colours(len(classes)), strict=True)),
        "still": image(still(shown), STILL_DPI),
        "data": map_data(shown),
    }


def _ends(shown: InteractiveMap) -> str:
    """The range of the colours, in words."""
    end, largest = colour_limit(shown.values), np.abs(shown.values).max()
    beyond = "about one entry in a hundred is outside it" if largest > end else "no entry is outside it"
    return f"White is 0, red is positive, blue is negative. The colour scale ends at ±{end:.3g}; {beyond}."


def _known_examples(sections: Sequence[Section]) -> dict[Examples, str]:
    """A name for each set of examples; maps that share a set share the name."""
    found: dict[Examples, str] = {}
    for section in sections:
        for shown in section.maps:
            found.setdefault(shown.examples, f"examples-{len(found)}")
    return found


def _anchors(sections: Sequence[Section]) -> list[str]:
    """The address of each section inside the page."""
    found = ["section-" + re.sub(r"[^a-z0-9]+", "-", section.name.lower()).strip("-") for section in sections]
    if len(set(found)) != len(found):
        names = ", ".join(repr(section.name) for section in sections)
        raise ValueError(f"expected sections whose names differ in letters or digits; got {names}.")
    return found
