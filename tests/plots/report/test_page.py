"""The report without a browser: what is in it, what is not, and what is refused."""

from __future__ import annotations

import io
import json
import re
from base64 import b64decode
from dataclasses import replace
from html.parser import HTMLParser
from importlib.resources import files

import matplotlib
import numpy as np
import pytest
from PIL import Image
from plotly.offline import get_plotlyjs
from plots.report.made import CLASSES, examples, kernel, kernel_map, mean_map, section

from dnn2gp.plots.report import Examples, InteractiveMap, Section, html
from dnn2gp.plots.report.maps import sprite
from dnn2gp.plots.report.section import Claim
from dnn2gp.plots.report.template import duration
from dnn2gp.plots.style import colour_limit

EVIL = "<script>alert('x')</script>\"&"


def page(*sections: Section, title: str = "Report") -> str:
    return html(title, sections, "smoke", {"dnn2gp": "0.1.0", "torch": "2.13"}, 3725.0)


def with_maps(name: str = "fig4") -> Section:
    given = examples()
    return section(name, maps=(kernel_map(given), mean_map(given)))


class Reader(HTMLParser):
    """Tags with their attributes, and the text outside scripts and styles."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text, self.scripts = "", []
        self.open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in ("meta", "img", "link", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "script":
            self.scripts.append(data)
        elif not self.open or self.open[-1] != "style":
            self.text += data + " "


def named(reader: Reader, tag: str) -> list[dict[str, str | None]]:
    return [attributes for name, attributes in reader.tags if name == tag]


# What is in it --------------------------------------------------------------------------------------------------------


def test_header_claims_and_verdicts() -> None:
    read = Reader(page(section("fig4"), section("fig5", claims=(Claim("slope", "one", "1.02", True),))))
    for words in ("smoke", "dnn2gp 0.1.0, torch 2.13", "1 h 02 min", "99.1 %", "not told", "1.02", "And what is not."):
        assert words in read.text
    counts = re.sub(r"\s+", " ", read.text)
    assert "2 claims hold ✓" in counts
    assert "1 does not hold ✗" in counts
    assert "1 not judged –" in counts
    kinds = [each.get("class") for each in named(read, "span")]
    assert kinds.count("verdict holds") == 1 + 2 * 2  # the header, the overview, the section
    assert kinds.count("verdict fails") == kinds.count("verdict open") == 1 + 2
    assert read.text.count("not judged –") == 3
    assert not read.open, "every tag is closed"


def test_links_inside_the_page_lead_somewhere() -> None:
    read = Reader(page(with_maps("Fig. 4 (a)"), section("fig5")))
    ids = [attributes["id"] for _, attributes in read.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    links = [str(link["href"])[1:] for link in named(read, "a") if str(link["href"]).startswith("#")]
    assert set(links) == {"section-fig-4-a", "section-fig5"}
    assert set(links) <= set(ids)
    assert {label["for"] for label in named(read, "label")} <= set(ids)


def test_pictures_have_words_and_size() -> None:
    (shown,) = named(Reader(page(section())), "img")
    assert shown["alt"] == "A pixel"
    assert shown["width"] == shown["height"] == "1"


def test_settings_and_files() -> None:
    read = Reader(page(section(files=("pictures/a b.png", "javascript:alert(1)"))))
    assert [link["href"] for link in named(read, "a")][-2:] == ["pictures/a%20b.png", "javascript%3Aalert%281%29"]
    assert all(words in read.text for words in ("sizes", "1, 2", '{"a": null}', "1 min 15 s"))


def test_no_sections_and_no_claims() -> None:
    assert "No section makes a claim." in page()
    assert "<table" not in page(section(claims=(), config={}))


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0.04, "0.0 s"),
        (9.96, "10 s"),
        (59.6, "1 min 00 s"),
        (185.0, "3 min 05 s"),
        (3599.7, "1 h 00 min"),
        (3725.0, "1 h 02 min"),
    ],
)
def test_duration(seconds: float, words: str) -> None:
    assert duration(seconds) == words


# What is not ----------------------------------------------------------------------------------------------------------


def test_nothing_comes_from_elsewhere() -> None:
    text = page(with_maps())
    assert "Content-Security-Policy" in text
    read = Reader(text)
    for tag, attributes in read.tags:
        for name in ("src", "href", "data", "action", "poster", "srcset"):
            address = attributes.get(name) or ""
            assert not re.match(r"(https?:)?//", address), (tag, address)
        assert tag not in ("iframe", "object", "embed", "base")
    own = text.replace(get_plotlyjs(), "")
    assert "http://" not in own
    assert "https://" not in own
    assert not re.search(r"url\(|@import|fetch\(|XMLHttpRequest", own)


def test_plotly_is_there_once_if_needed() -> None:
    bundle = get_plotlyjs()
    assert "</script" not in bundle.lower()
    assert page(with_maps("a"), with_maps("b")).count(bundle) == 1
    assert bundle not in page(section())
    assert "<script" not in page(section()).split("<body>")[1]


def test_everything_is_escaped() -> None:
    given = examples()
    given = replace(given, classes=(EVIL, *CLASSES[1:]))
    shown = InteractiveMap(EVIL, kernel(given), None, given, EVIL, EVIL)
    outputs = InteractiveMap(EVIL, kernel(given)[:, :2], (EVIL, "b"), given, EVIL, EVIL)
    bad = section(
        EVIL,
        title=EVIL,
        caption=EVIL,
        pictures={EVIL: section().pictures["A pixel"]},
        config={EVIL: EVIL},
        claims=(Claim(EVIL, EVIL, EVIL, None),),
        maps=(shown, outputs),
        files=(EVIL,),
    )
    text = html(EVIL, [bad], EVIL, {EVIL: EVIL}, 1.0)
    assert "<script>alert" not in text
    read = Reader(text)
    assert not read.open
    assert not [code for code in read.scripts if code.startswith("alert")]
    assert read.text.count("alert('x')") > 15
    assert {str(each.get("alt")) for each in named(read, "img")} == {EVIL, f"{EVIL}. {EVIL}"}
    assert json.loads(data_of(text)[0])["scale"] == EVIL


# What the script reads ------------------------------------------------------------------------------------------------


def data_of(text: str) -> list[str]:
    return re.findall(r'<script type="application/json"[^>]*>(.*?)</script>', text, re.DOTALL)


def test_data_of_maps() -> None:
    given = examples()
    kernels, means = kernel_map(given), mean_map(given)
    text = page(section("a", maps=(kernels, means)), section("b", maps=(kernel_map(examples(colour=True)),)))
    first, second, _, shared, other = [json.loads(data) for data in data_of(text)]
    for data, shown in ((first, kernels), (second, means)):
        stored = np.frombuffer(b64decode(data["values"]), "<f4").reshape(data["rows"], data["columns"])
        np.testing.assert_array_equal(stored, shown.values.astype(np.float32))
        assert data["limit"] == pytest.approx(np.quantile(np.abs(shown.values), 0.99))
    assert first["names"] is None
    assert second["names"][-1] == "none of these"
    assert shared["labels"] == given.labels.tolist()
    np.testing.assert_allclose(shared["epistemic"], given.epistemic, rtol=1e-5)
    tab10 = [matplotlib.colors.to_hex(matplotlib.colormaps["tab10"](i)) for i in range(3)]
    assert shared["colours"] == tab10
    assert first["colours"][32] == [0.5, matplotlib.colors.to_hex(matplotlib.colormaps["RdBu_r"](0.5))]
    assert other["sprite"] != shared["sprite"]


@pytest.mark.slow
@pytest.mark.parametrize("colour", [False, True])
@pytest.mark.parametrize("count", [1, 2, 12])
def test_sprite(count: int, colour: bool) -> None:
    given = examples(count, colour=colour)
    stored = json.loads(data_of(page(section(maps=(kernel_map(given),))))[-1])
    picture = np.asarray(Image.open(io.BytesIO(b64decode(stored["sprite"].split(",")[1]))))
    np.testing.assert_array_equal(picture, sprite(given.images))
    for index, image in enumerate(given.images):
        top, left = index // stored["across"] * 5, index % stored["across"] * 6
        np.testing.assert_array_equal(picture[top : top + 5, left : left + 6], image)


def test_limit_of_zeros() -> None:
    assert colour_limit(np.zeros((3, 3))) == 1.0
    few = np.zeros((20, 20))
    few[0, 0] = -3.0
    assert colour_limit(few) == 3.0


@pytest.mark.parametrize("name", ["interactive.js", "style.css"])
def test_package_data(name: str) -> None:
    text = files("dnn2gp.plots.report").joinpath("templates", name).read_text(encoding="utf-8")
    assert not re.search("</s(cript|tyle)", text, re.IGNORECASE)
    assert max(map(len, text.splitlines())) <= 180


# What is refused ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"images": np.zeros((12, 5, 6))}, "images: expected uint8"),
        ({"images": np.zeros((12, 5, 6, 4), np.uint8)}, "images: expected uint8"),
        ({"images": np.zeros((0, 5, 6), np.uint8)}, "of 1 or more"),
        ({"labels": np.zeros(11, int)}, "labels: expected 12 integers"),
        ({"labels": np.zeros(12)}, "labels: expected 12 integers"),
        ({"labels": np.full(12, 3)}, "labels: expected class indices from 0 to 2"),
        ({"predictions": np.full(12, -1)}, "predictions: expected class indices"),
        ({"probabilities": np.full(12, 1.5)}, "probabilities: expected numbers between 0 and 1"),
        ({"epistemic": np.full(12, np.nan)}, "epistemic: expected finite numbers"),
        ({"aleatoric": np.zeros((12, 2))}, r"aleatoric: expected floats of shape \(12,\)"),
    ],
)
def test_bad_examples(changes: dict, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        replace(examples(), **changes)


@pytest.mark.parametrize(
    ("values", "columns", "words"),
    [
        (np.zeros((12, 3)), None, r"expected floats of shape \(12, 12\)"),
        (np.zeros((12, 3)), ("a", "b"), r"expected floats of shape \(12, 2\)"),
        (np.zeros((11, 2)), ("a", "b"), r"expected floats of shape \(12, 2\)"),
        (np.full((12, 1), np.inf), ("a",), "expected finite numbers"),
        (np.full((12, 1), 1e300), ("a",), "range of float32"),
        (np.zeros((12, 0)), (), "expected at least one name"),
    ],
)
def test_bad_maps(values: np.ndarray, columns: tuple[str, ...] | None, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        InteractiveMap("Kernel", values, columns, examples(), "", "")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"name": ""}, "expected a short name"),
        ({"pictures": {"a": b"GIF89a"}}, "expected the bytes of a PNG"),
        ({"seconds": -1.0}, "expected a time"),
    ],
)
def test_bad_sections(changes: dict, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        replace(section(), **changes)


def test_two_sections_of_one_name() -> None:
    with pytest.raises(ValueError, match="names differ"):
        page(section("fig 4"), section("Fig-4"))


@pytest.mark.slow
def test_one_example_makes_a_page() -> None:
    given: Examples = examples(1)
    assert "figure" in page(section(maps=(kernel_map(given), mean_map(given))))
