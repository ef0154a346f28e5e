"""Small pieces of HTML: tables of claims and settings, pictures, durations. All that is given as text is escaped."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Mapping
from html import escape
from typing import Any

from dnn2gp.plots.report.claim import Claim
from dnn2gp.plots.report.maps import base64
from dnn2gp.plots.style import DPI

_SCREEN_DPI = 96  # of a browser's pixels


def verdict(claim: Claim) -> str:
    """Whether a claim holds, in a colour and in words."""
    kind, words = {True: ("holds", "holds ✓"), False: ("fails", "does not hold ✗"), None: ("open", "not judged –")}[
        claim.holds
    ]
    return f'<span class="verdict {kind}">{words}</span>'


def claims_table(rows: Iterable[tuple[Claim, str | None]]) -> str:
    """What the paper says beside what was measured. What goes with a claim, if anything, is HTML for a first column."""
    listed = list(rows)
    first = any(place is not None for _, place in listed)
    head = ["where"] * first + ["what", "the paper says", "we measured", "verdict"]
    body = []
    for claim, place in listed:
        cells = [place or ""] * first + [escape(text) for text in (claim.what, claim.paper, claim.measured)]
        body.append([*cells, verdict(claim)])
    return _table("claims", head, body)


def settings_table(config: Mapping[str, Any]) -> str:
    """Name and value of each setting."""
    body = [[f"<code>{escape(str(name))}</code>", escape(_plain(value))] for name, value in config.items()]
    return _table("settings", ["setting", "value"], body)


def picture(content: bytes, caption: str) -> str:
    """A PNG inside the page, with its caption below it."""
    return f'<figure class="picture">{image(content, caption, DPI)}<figcaption>{escape(caption)}</figcaption></figure>'


def image(content: bytes, words: str, dpi: int, kind: str = "") -> str:
    """A PNG inside the page, as large as it was drawn, with words for those who do not see it."""
    width, height = (round(size * _SCREEN_DPI / dpi) or 1 for size in struct.unpack(">II", content[16:24]))
    own = f' class="{kind}"' if kind else ""
    source = f"data:image/png;base64,{base64(content)}"
    return f'<img{own} src="{source}" alt="{escape(words)}" width="{width}" height="{height}">'


def duration(seconds: float) -> str:
    """0.4 s, 12 s, 3 min 05 s, 1 h 02 min."""
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    minutes = round(seconds / 60)
    return f"{minutes // 60} h {minutes % 60:02d} min"


def count_verdicts(claims: Iterable[Claim]) -> tuple[int, int, int]:
    """How many claims hold, do not hold, and have nothing to hold them against."""
    found = [claim.holds for claim in claims]
    return found.count(True), found.count(False), found.count(None)


def paragraphs(text: str) -> str:
    """Text with an empty line between paragraphs."""
    parts = [part.strip() for part in text.split("\n\n")]
    return "".join(f"<p>{escape(part)}</p>" for part in parts if part)


def _table(kind: str, head: list[str], body: list[list[str]]) -> str:
    """Cells are HTML. On a narrow screen each row becomes a block, and each cell says what it is."""
    heading = "".join(f'<th scope="col">{name}</th>' for name in head)
    lines = (
        "<tr>" + "".join(f'<td data-head="{name}">{cell}</td>' for name, cell in zip(head, row, strict=True)) + "</tr>"
        for row in body
    )
    return f'<table class="{kind}"><thead><tr>{heading}</tr></thead><tbody>{"".join(lines)}</tbody></table>'


def _plain(value: object) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, (list, tuple)) and not any(isinstance(each, (list, tuple, dict)) for each in value):
        return ", ".join(str(each) for each in value)
    return json.dumps(value, ensure_ascii=False, default=str)
