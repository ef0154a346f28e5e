"""Chromium without a window. These tests are collected only where they are asked for: `-m browser`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from selenium.webdriver import Chrome

CHROMIUM, DRIVER = Path("/usr/bin/chromium"), Path("/usr/bin/chromedriver")
FLAGS = (
    "--headless=new --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --force-device-scale-factor=1 --window-size=1200,900"
)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Nothing here is even imported without `-m browser`: `make test` needs neither selenium nor a browser."""
    asked = config.getoption("markexpr").replace("not browser", "")
    return None if "browser" in asked else True


@pytest.fixture(scope="session")
def open_browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Chrome]]:
    """A new browser with a profile of its own, which notes its console and its requests."""
    missing = [str(path) for path in (CHROMIUM, DRIVER) if not path.is_file()]
    if missing:
        pytest.fail(f"No {' and no '.join(missing)}: install Debian's chromium and chromium-driver, and try again.")
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    opened: list[Chrome] = []

    def start(scripts: bool = True) -> Chrome:
        options = webdriver.ChromeOptions()
        options.binary_location = str(CHROMIUM)
        for flag in (*FLAGS.split(), f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
            options.add_argument(flag)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
        if not scripts:
            options.add_experimental_option("prefs", {"profile.managed_default_content_settings.javascript": 2})
        opened.append(webdriver.Chrome(options=options, service=Service(executable_path=str(DRIVER))))
        opened[-1].get("about:blank")
        for log in ("browser", "performance"):
            opened[-1].get_log(log)  # what the browser did for itself
        return opened[-1]

    yield start
    for browser in opened:
        browser.quit()
