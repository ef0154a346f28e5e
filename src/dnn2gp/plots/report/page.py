"""The page: a header, all claims in one table, then a part for each section. One file that needs no network."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from importlib.resources import files
from urllib.parse import quote

import numpy as np
from plotly.offline import get_plotlyjs

from dnn2gp.plots.report import markup
from dnn2gp.plots.report.claim import Claim
from dnn2gp.plots.report.maps import class_colours, examples_data, limit, map_data, script_json
from dnn2gp.plots.report.orders import NAMES
from dnn2gp.plots.report.section import Examples, InteractiveMap, Section
from dnn2gp.plots.report.stills import STILL_DPI, still

# The browser itself then refuses every request, whatever a script in the page may ask for.
_POLICY = (
    "default-src 'none'; img-src data: blob:; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
    "base-uri 'none'; form-action 'none'"
)


def html(
    title: str,
    sections: Sequence[Section],
    preset: str,
    versions: dict[str, str],
    total_seconds: float,
    missing: Mapping[str, str] | None = None,
    note: str = "",
) -> str:
    """The report as the text of one HTML file; `missing` are figures that are not in it, and why; `note` is for all."""
    anchors = _anchors(sections)
    known = _known_examples(sections)
    parts = [
        _header(title, sections, preset, versions, total_seconds, note),
        _missing(missing or {}),
        _contents(sections, anchors),
        _overview(sections, anchors),
        *(_section(section, anchor, known) for section, anchor in zip(sections, anchors, strict=True)),
    ]
    body = f"<main>{''.join(parts)}</main>{_scripts(known)}"
    return (
        f'<!DOCTYPE html><html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1"><link rel="icon" href="data:,">'
        f'<style>{_resource("style.css")}</style><script>document.documentElement.className = "scripted";</script>'
        f"</head><body>{body}</body></html>\n"
    )


def _header(
    title: str, sections: Sequence[Section], preset: str, versions: dict[str, str], total_seconds: float, note: str
) -> str:
    since = ", some of it only since it was resumed" if any(section.resumed for section in sections) else ""
    facts = {
        "preset": preset,
        "time to compute": markup.duration(total_seconds) + since,
        "versions": ", ".join(f"{name} {version}" for name, version in versions.items()),
    }
    listed = "".join(f"<div><dt>{name}</dt><dd>{escape(value)}</dd></div>" for name, value in facts.items())
    words = f'<p class="note">{escape(note)}</p>' if note else ""
    counts = _counts(_all_claims(sections))
    return f'<header><h1>{escape(title)}</h1>{words}<dl class="facts">{listed}</dl>{counts}</header>'


def _counts(claims: Sequence[Claim]) -> str:
    """How many claims hold, fail, or are not judged."""
    hold, fail, unknown = markup.count_verdicts(claims)
    return (
        '<p class="counts">'
        f'<span class="verdict holds"><b>{hold}</b> {"claim holds" if hold == 1 else "claims hold"} ✓</span> '
        f'<span class="verdict fails"><b>{fail}</b> {"does" if fail == 1 else "do"} not hold ✗</span> '
        f'<span class="verdict open"><b>{unknown}</b> not judged –</span></p>'
    )


def _missing(missing: Mapping[str, str]) -> str:
    """What should be here and is not."""
    if not missing:
        return ""
    lines = "".join(f"<li><b>{escape(name)}</b>: {escape(why)}</li>" for name, why in missing.items())
    return f'<section class="missing"><h2>Figures that are not here</h2><ul>{lines}</ul></section>'


def _contents(sections: Sequence[Section], anchors: Sequence[str]) -> str:
    lines = (
        f'<li><a href="#{anchor}">{escape(section.title)}</a></li>'
        for section, anchor in zip(sections, anchors, strict=True)
    )
    return f'<nav aria-label="contents"><h2>Contents</h2><ol>{"".join(lines)}</ol></nav>'


def _overview(sections: Sequence[Section], anchors: Sequence[str]) -> str:
    rows = [
        (claim, f'<a href="#{anchor}">{escape(section.name).replace("_", "_<wbr>")}</a>')
        for section, anchor in zip(sections, anchors, strict=True)
        for claim in section.claims
    ]
    table = markup.claims_table(rows) if rows else "<p>No section makes a claim.</p>"
    return f'<section id="overview"><h2>What the paper says, and what we measured</h2>{table}</section>'


def _section(section: Section, anchor: str, known: dict[Examples, str]) -> str:
    parts = [f"<h2>{escape(section.title)}</h2>", markup.paragraphs(section.caption)]
    pictures = "".join(markup.picture(content, caption) for caption, content in section.pictures.items())
    parts += [f'<div class="pictures">{pictures}</div>'] if pictures else []
    if section.claims:
        parts.append(markup.claims_table((claim, None) for claim in section.claims))
    parts += [_map(shown, f"{anchor}-map-{number}", known[shown.examples]) for number, shown in enumerate(section.maps)]
    if section.files:
        links = ", ".join(f'<a href="{quote(name)}">{escape(name)}</a>' for name in section.files)
        parts.append(f'<p class="files">Files: {links}</p>')
    if section.config:
        parts.append(f"<details><summary>Settings</summary>{markup.settings_table(section.config)}</details>")
    since = " since it was resumed" if section.resumed else ""
    parts.append(f'<p class="time">Time to compute: {markup.duration(section.seconds)}{since}</p>')
    return f'<section id="{anchor}">{"".join(parts)}</section>'


def _map(shown: InteractiveMap, identity: str, examples: str) -> str:
    """A map: its still picture, the choice of the order, and the panel that the script fills."""
    what = "rows and columns" if shown.is_kernel else "rows"
    options = "".join(f'<option value="{name}">{name}</option>' for name in NAMES)
    words = f"{shown.title}. {shown.description}"
    return (
        f'<figure class="map {"kernel" if shown.is_kernel else "outputs"}" id="{identity}" data-examples="{examples}">'
        f"<figcaption><strong>{escape(shown.title)}</strong>{markup.paragraphs(shown.description)}"
        f"<p>{_ends(shown)}</p></figcaption>"
        "<noscript><p>This map is a picture only: your browser runs no JavaScript. With it you can point at an entry "
        "to see the examples behind it, and sort the rows.</p></noscript>"
        f'<div class="choice"><label for="{identity}-order">{what} sorted by:</label> '
        f'<select id="{identity}-order" autocomplete="off">{options}</select></div>{_legend(shown.examples)}'
        f'<div class="beside"><div class="plot">{markup.image(still(shown), words, STILL_DPI, "still")}</div>'
        f'<div class="panel" role="region" aria-label="the entry pointed at: {escape(shown.title)}"></div></div>'
        f'<script type="application/json">{script_json(map_data(shown))}</script></figure>'
    )


def _ends(shown: InteractiveMap) -> str:
    """Where the colours end, in words."""
    end, largest = limit(shown.values), np.abs(shown.values).max()
    beyond = "about one entry in a hundred is beyond, in the last colour" if largest > end else "no entry is beyond"
    return f"White is 0, red above, blue below. The colours end at ±{end:.3g}; {beyond}."


def _legend(examples: Examples) -> str:
    """The name of each class beside its colour."""
    colours = class_colours(len(examples.classes))
    listed = "".join(
        f'<li><span style="background:{colour}"></span>{escape(name)}</li>'
        for name, colour in zip(examples.classes, colours, strict=True)
    )
    return f'<ul class="legend" aria-label="colours of the classes">{listed}</ul>'


def _scripts(known: dict[Examples, str]) -> str:
    """Plotly once, the examples once each, and our own script; nothing if there is no map."""
    if not known:
        return ""
    data = "".join(
        f'<script type="application/json" id="{name}">{script_json(examples_data(examples))}</script>'
        for examples, name in known.items()
    )
    plotly = f'<script type="text/plain" id="plotly">{get_plotlyjs()}</script>'  # run when the first map comes near
    return f"{data}{plotly}<script>{_resource('interactive.js')}</script>"


def _known_examples(sections: Sequence[Section]) -> dict[Examples, str]:
    """A name for each set of examples; maps that share a set share the name."""
    found: dict[Examples, str] = {}
    for section in sections:
        for shown in section.maps:
            found.setdefault(shown.examples, f"examples-{len(found)}")
    return found


def _all_claims(sections: Sequence[Section]) -> list[Claim]:
    return [claim for section in sections for claim in section.claims]


def _anchors(sections: Sequence[Section]) -> list[str]:
    """The address of each section inside the page."""
    found = list(_slugs(sections))
    if len(set(found)) != len(found):
        names = ", ".join(repr(section.name) for section in sections)
        raise ValueError(f"expected sections whose names differ in letters or digits; got {names}.")
    return found


def _slugs(sections: Sequence[Section]) -> Iterator[str]:
    for section in sections:
        yield "section-" + re.sub(r"[^a-z0-9]+", "-", section.name.lower()).strip("-")


def _resource(name: str) -> str:
    return files("dnn2gp.plots.report").joinpath(name).read_text(encoding="utf-8")
