"""The page that `dnn2gp reproduce` writes, in Chromium: pictures, and maps beside the arrays that were saved."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from browser.hand import panel, point_at, show, sort
from made_data import make_data
from selenium.webdriver import Chrome
from selenium.webdriver.common.by import By
from typer.testing import CliRunner

from dnn2gp.apps.cli import app

pytestmark = pytest.mark.browser
KERNEL, MEAN = "section-binary-mnist-map-0", "section-binary-mnist-map-1"


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of two figures at smoke size, on digits made up."""
    folder = tmp_path_factory.mktemp("figures")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DNN2GP_DATA", str(make_data(tmp_path_factory.mktemp("data"))))
        for figure in ("binary_mnist", "moons"):
            found = CliRunner().invoke(app, ["reproduce", figure, "--preset", "smoke", "--out", str(folder)])
            assert found.exit_code == 0, found.output
    return folder / "smoke"


@pytest.fixture(scope="module")
def arrays(out: Path) -> dict[str, np.ndarray]:
    return dict(np.load(out / "results" / "binary_mnist.npz"))


@pytest.fixture(scope="module")
def browser(open_browser: Callable[..., Chrome], out: Path) -> Chrome:
    found = open_browser()
    found.get((out / "report.html").as_uri())
    found.execute_script("document.documentElement.style.scrollBehavior = 'auto'")
    return found


def test_both_figures_and_their_pictures(browser: Chrome, out: Path) -> None:
    """The page has the figure of the earlier run too; every picture is there and has its size."""
    sections = [each.get_attribute("id") for each in browser.find_elements(By.CSS_SELECTOR, "main > section[id]")]
    assert [name for name in sections if "moons" in name or "mnist" in name] == [
        "section-binary-mnist",
        "section-moons",
    ]
    sizes = browser.execute_script(
        "return [...document.querySelectorAll('.pictures img')].map((each) => [each.complete, each.naturalWidth])"
    )
    assert len(sizes) == len(list((out / "pictures").glob("*.png")))
    assert all(complete and width > 300 for complete, width in sizes)
    for link in browser.find_elements(By.CSS_SELECTOR, ".files a"):
        assert (out / str(link.get_dom_attribute("href"))).is_file()
    assert browser.get_log("browser") == []


@pytest.mark.parametrize("order", ["class", "uncertainty"])
def test_pointing_at_the_kernel(browser: Chrome, arrays: dict[str, np.ndarray], order: str) -> None:
    """Value, labels, predictions, uncertainties and images are those of the arrays."""
    show(browser, KERNEL)
    sort(browser, KERNEL, order)
    labels, epistemic = arrays["labels"], arrays["vi_epistemic"].sum(1)
    keys = labels if order == "class" else -epistemic
    rows = sorted(range(len(labels)), key=lambda place: keys[place])  # sorted keeps the order of equals
    for places in ((1, 2), (7, 20), (29, 0)):
        point_at(browser, arrays["vi_kernel"].shape, KERNEL, *places)
        pair = [rows[place] for place in places]
        value = browser.find_element(By.CSS_SELECTOR, f"#{KERNEL} .panel .value").get_attribute("data-value")
        assert np.float32(value) == np.float32(arrays["vi_kernel"][pair[0], pair[1]])
        assert panel(browser, KERNEL, ".truth") == [str(labels[each]) for each in pair]
        for text, each in zip(panel(browser, KERNEL, ".guess"), pair, strict=True):
            own = arrays["vi_probabilities"][each]  # of 0 and 1 alone
            wrong = "" if own.argmax() == labels[each] else ": wrong"
            assert text == f"{own.argmax()}, {100 * own.max():.1f} %{wrong}"
        told = [float(text.replace("−", "-")) for text in panel(browser, KERNEL, ".epistemic")]
        assert told == pytest.approx(epistemic[pair], rel=5e-4)
        pixels = browser.execute_script(
            f"return [...document.querySelectorAll('#{KERNEL} canvas')].map((canvas) => "
            "[...canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data])"
        )
        for found, each in zip(pixels, pair, strict=True):
            np.testing.assert_array_equal(np.array(found).reshape(28, 28, 4)[..., 0], arrays["images"][each])


def test_pointing_at_the_posterior_mean(browser: Chrome, arrays: dict[str, np.ndarray]) -> None:
    """Two outputs, named as the digits that the network was trained on."""
    show(browser, MEAN)
    sort(browser, MEAN, "class")
    rows = np.argsort(arrays["labels"], kind="stable")
    for row, column in ((3, 0), (25, 1)):
        point_at(browser, arrays["vi_posterior_mean"].shape, MEAN, row, column)
        value = browser.find_element(By.CSS_SELECTOR, f"#{MEAN} .panel .value").get_attribute("data-value")
        assert np.float32(value) == np.float32(arrays["vi_posterior_mean"][rows[row], column])
        assert panel(browser, MEAN, ".output b") == [str(column)]
