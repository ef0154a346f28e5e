"""The report in Chromium: what is drawn, pointed at, kept and sorted is what numpy says it must be."""

from __future__ import annotations

import io
import json
import time
from collections.abc import Callable
from pathlib import Path

import matplotlib
import numpy as np
import pytest
from browser import hand
from browser.hand import box, panel, show, sort, wait
from PIL import Image
from plots.report.made import CLASSES, OUTPUTS, examples, kernel_map, mean_map, section
from selenium.webdriver import ActionChains, Chrome, Keys
from selenium.webdriver.common.by import By

from dnn2gp.plots.report import InteractiveMap, html
from dnn2gp.plots.report.maps import NAMES, orders

pytestmark = pytest.mark.browser

GIVEN = examples()
KERNEL, MEAN = kernel_map(GIVEN), mean_map(GIVEN)
KERNEL_ID, MEAN_ID, FAR_ID = "section-first-map-0", "section-first-map-1", "section-last-map-0"
MAPS = {KERNEL_ID: KERNEL, MEAN_ID: MEAN}
TALL = "\n\n".join(["A caption that goes on."] * 60)


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("report") / "report.html"
    first = section("first", maps=(KERNEL, MEAN))
    last = section("last", caption=TALL, maps=(kernel_map(examples(7, colour=True)),))
    path.write_text(html("<i>Report</i>", [first, last], "smoke", {"dnn2gp": "0"}, 1.0), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def started(open_browser: Callable[..., Chrome]) -> Chrome:
    return open_browser()


@pytest.fixture
def browser(started: Chrome, page: Path) -> Chrome:
    """The page, opened anew."""
    ActionChains(started).reset_actions()
    started.get(page.as_uri())
    started.execute_script("document.documentElement.style.scrollBehavior = 'auto'")
    return started


def point_at(browser: Chrome, identity: str, row: int, column: int, *, click: bool = False) -> None:
    hand.point_at(browser, MAPS[identity].values.shape, identity, row, column, click)


def expected(shown: InteractiveMap, order: str) -> tuple[np.ndarray, np.ndarray]:
    """The matrix in an order, and the example at each row."""
    rows = orders(shown)[order]
    values = shown.values.astype(np.float32)[rows]
    return (values[:, rows] if shown.is_kernel else values), rows


def expect_entry(browser: Chrome, identity: str, row: int, column: int) -> None:
    """The panel tells of this entry of the matrix as it was given."""
    shown = MAPS[identity]
    value = browser.find_element(By.CSS_SELECTOR, f"#{identity} .panel .value")
    exact = shown.values.astype(np.float32)[row, column]
    assert np.float32(value.get_attribute("data-value")) == exact
    assert float(value.text.replace("−", "-")) == pytest.approx(float(exact), rel=5e-4)
    involved = [row, column] if shown.is_kernel else [row]
    assert panel(browser, identity, ".example > .label") == [f"example {each}" for each in involved]
    assert panel(browser, identity, ".truth") == [CLASSES[GIVEN.labels[each]] for each in involved]
    for text, each in zip(panel(browser, identity, ".guess"), involved, strict=True):
        right = GIVEN.predictions[each] == GIVEN.labels[each]
        share = f"{100 * GIVEN.probabilities[each]:.1f} %"
        assert text == f"{CLASSES[GIVEN.predictions[each]]}, {share}" + ("" if right else ": wrong")
    for kind, truth in (("epistemic", GIVEN.epistemic), ("aleatoric", GIVEN.aleatoric)):
        told = [float(text.replace("−", "-")) for text in panel(browser, identity, f".{kind}")]
        assert told == pytest.approx(truth[involved], rel=5e-4)


def screen(browser: Chrome) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(browser.get_screenshot_as_png())).convert("RGB")).astype(int)


def colours_at(picture: np.ndarray, where: tuple[float, float, float, float], rows: int, columns: int) -> np.ndarray:
    """The colour in the middle of each entry, as it is on the screen."""
    left, top, width, height = where
    y = np.floor(top + (np.arange(rows) + 0.5) * height / rows).astype(int)
    x = np.floor(left + (np.arange(columns) + 0.5) * width / columns).astype(int)
    return picture[np.ix_(y, x)]


# The page -------------------------------------------------------------------------------------------------------------


def test_no_errors_and_no_requests(browser: Chrome) -> None:
    for identity in (KERNEL_ID, MEAN_ID, FAR_ID):
        show(browser, identity)
    show(browser, KERNEL_ID)
    point_at(browser, KERNEL_ID, 2, 3)
    assert browser.get_log("browser") == []
    messages = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    asked = [each["params"]["request"]["url"] for each in messages if each["method"] == "Network.requestWillBeSent"]
    assert asked, "the page itself is a request"
    assert not [url for url in asked if not url.startswith(("file:", "data:"))]
    assert len([url for url in asked if url.startswith("file:") and not url.endswith("report.html")]) == 0


def test_text_is_text(browser: Chrome) -> None:
    assert browser.title == "<i>Report</i>"
    assert browser.find_element(By.TAG_NAME, "h1").text == "<i>Report</i>"
    show(browser, MEAN_ID)
    assert CLASSES[1] in browser.find_element(By.CSS_SELECTOR, f"#{MEAN_ID} .plot").text
    show(browser, KERNEL_ID)
    assert KERNEL.scale in browser.find_element(By.CSS_SELECTOR, f"#{KERNEL_ID} .plot").text


def test_maps_are_drawn_when_they_come_near(browser: Chrome) -> None:
    browser.execute_script("scrollTo(0, 0)")
    time.sleep(0.3)
    assert browser.execute_script(f"return dnn2gp.maps['{FAR_ID}'].drawn") is False
    assert browser.find_elements(By.CSS_SELECTOR, f"#{FAR_ID} img.still")
    show(browser, FAR_ID)
    assert not browser.find_elements(By.CSS_SELECTOR, f"#{FAR_ID} img.still")


def test_state_is_read_only(browser: Chrome) -> None:
    show(browser, KERNEL_ID)
    browser.execute_script(f"dnn2gp.maps['{KERNEL_ID}'].drawn = 3; window.dnn2gp = 4; dnn2gp.maps.other = 5")
    assert browser.execute_script(f"return dnn2gp.maps['{KERNEL_ID}'].drawn") is True
    assert set(browser.execute_script("return Object.keys(dnn2gp.maps)")) == {KERNEL_ID, MEAN_ID, FAR_ID}


def test_fits_a_narrow_screen(browser: Chrome) -> None:
    browser.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride", {"width": 380, "height": 700, "deviceScaleFactor": 1, "mobile": False}
    )
    try:
        for identity in (KERNEL_ID, MEAN_ID):
            show(browser, identity)
        assert browser.execute_script("return document.documentElement.scrollWidth") <= 380
    finally:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_without_scripts(open_browser: Callable[..., Chrome], page: Path) -> None:
    browser = open_browser(scripts=False)
    browser.get(page.as_uri())
    assert len(browser.find_elements(By.CSS_SELECTOR, "img.still")) == 3
    assert "JavaScript is disabled in your browser" in browser.find_element(By.ID, KERNEL_ID).text
    assert not browser.find_element(By.CSS_SELECTOR, f"#{KERNEL_ID} select").is_displayed()


# Sorting --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", NAMES)
@pytest.mark.parametrize("identity", list(MAPS))
def test_sorted(browser: Chrome, identity: str, order: str) -> None:
    show(browser, identity)
    sort(browser, identity, order)
    values, rows = expected(MAPS[identity], order)
    drawn = browser.execute_script(f"return document.querySelector('#{identity} .drawing').data.map((each) => each.z)")
    np.testing.assert_array_equal(np.array(drawn[0], np.float32), values)
    np.testing.assert_array_equal(np.array(drawn[1])[:, 0], GIVEN.labels[rows])
    assert len(drawn) == (3 if MAPS[identity].is_kernel else 2)
    if MAPS[identity].is_kernel:
        np.testing.assert_array_equal(np.array(drawn[2])[0], GIVEN.labels[rows])


@pytest.mark.parametrize("order", NAMES)
@pytest.mark.parametrize("identity", list(MAPS))
def test_colours_on_the_screen(browser: Chrome, identity: str, order: str) -> None:
    show(browser, identity)
    sort(browser, identity, order)
    time.sleep(0.2)
    values, rows = expected(MAPS[identity], order)
    end = np.percentile(np.abs(values), 99)
    table = matplotlib.colormaps["RdBu_r"]
    seen = colours_at(screen(browser), box(browser, identity), *values.shape)
    truth = 255 * table(np.clip((values + end) / (2 * end), 0, 1))[..., :3]
    np.testing.assert_allclose(seen, truth, atol=6)
    classes = 255 * matplotlib.colormaps["tab10"](GIVEN.labels[rows])[:, :3]
    bar = colours_at(screen(browser), box(browser, identity, "x2y"), len(rows), 1)[:, 0]
    np.testing.assert_allclose(bar, classes, atol=2)
    if MAPS[identity].is_kernel:
        bar = colours_at(screen(browser), box(browser, identity, "xy2"), 1, len(rows))[0]
        np.testing.assert_allclose(bar, classes, atol=2)


def test_select_by_keyboard(browser: Chrome) -> None:
    show(browser, KERNEL_ID)
    for _ in range(40):
        ActionChains(browser).send_keys(Keys.TAB).perform()
        if browser.switch_to.active_element.get_attribute("id") == f"{KERNEL_ID}-order":
            break
    assert browser.switch_to.active_element.accessible_name == "Sort rows and columns by:"
    for key, order in ((Keys.ARROW_DOWN, "uncertainty"), (Keys.ARROW_DOWN, "similarity"), (Keys.HOME, "class")):
        ActionChains(browser).send_keys(key).perform()
        wait(browser, f"dnn2gp.maps['{KERNEL_ID}'].order === '{order}'")


# Pointing -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", NAMES)
def test_point_at_a_kernel(browser: Chrome, order: str) -> None:
    show(browser, KERNEL_ID)
    sort(browser, KERNEL_ID, order)
    rows = orders(KERNEL)[order]
    for row, column in ((0, 0), (2, 9), (11, 4)):
        point_at(browser, KERNEL_ID, row, column)
        expect_entry(browser, KERNEL_ID, rows[row], rows[column])


@pytest.mark.parametrize("order", NAMES)
def test_point_at_outputs(browser: Chrome, order: str) -> None:
    show(browser, MEAN_ID)
    sort(browser, MEAN_ID, order)
    rows = orders(MEAN)[order]
    for row, column in ((0, 3), (7, 1), (11, 0)):
        point_at(browser, MEAN_ID, row, column)
        expect_entry(browser, MEAN_ID, rows[row], column)
        assert panel(browser, MEAN_ID, ".output b") == [OUTPUTS[column]]


def test_images_are_those_of_the_examples(browser: Chrome) -> None:
    show(browser, KERNEL_ID)
    rows = orders(KERNEL)["class"]
    point_at(browser, KERNEL_ID, 3, 10)
    pixels = browser.execute_script(
        f"return [...document.querySelectorAll('#{KERNEL_ID} canvas')].map((canvas) => "
        "[...canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data])"
    )
    for found, place in zip(pixels, (3, 10), strict=True):
        np.testing.assert_array_equal(np.array(found).reshape(5, 6, 4)[..., 0], GIVEN.images[rows[place]])


def test_wrong_predictions_are_red_and_said(browser: Chrome) -> None:
    show(browser, KERNEL_ID)
    rows = orders(KERNEL)["class"].tolist()
    point_at(browser, KERNEL_ID, rows.index(3), rows.index(4))  # every fourth is wrong: 3 is, 4 is not
    wrong, right = browser.find_elements(By.CSS_SELECTOR, f"#{KERNEL_ID} .guess")
    assert wrong.text.endswith(": wrong")
    assert wrong.value_of_css_property("color") == "rgba(164, 14, 38, 1)"
    assert "wrong" not in right.text
    assert right.value_of_css_property("color") != "rgba(164, 14, 38, 1)"


def test_a_click_keeps_the_entry_until_the_next(browser: Chrome) -> None:
    show(browser, KERNEL_ID)
    rows = orders(KERNEL)["class"]
    point_at(browser, KERNEL_ID, 1, 2, click=True)
    wait(browser, f"dnn2gp.maps['{KERNEL_ID}'].pinned")
    point_at(browser, KERNEL_ID, 8, 5)
    expect_entry(browser, KERNEL_ID, rows[1], rows[2])
    assert "Pinned." in panel(browser, KERNEL_ID, ".hint")[-1]
    sort(browser, KERNEL_ID, "similarity")
    expect_entry(browser, KERNEL_ID, rows[1], rows[2])
    sort(browser, KERNEL_ID, "class")
    time.sleep(0.4)  # two clicks at once would be a double click
    point_at(browser, KERNEL_ID, 8, 5, click=True)
    wait(browser, f"!dnn2gp.maps['{KERNEL_ID}'].pinned")
    expect_entry(browser, KERNEL_ID, rows[8], rows[5])
    point_at(browser, KERNEL_ID, 4, 4)
    expect_entry(browser, KERNEL_ID, rows[4], rows[4])
