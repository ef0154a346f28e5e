"""What a reader does with a map of the report, and what she then sees."""

from __future__ import annotations

import time

from selenium.webdriver import ActionChains, Chrome
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import Select


def wait(browser: Chrome, condition: str, seconds: float = 20) -> None:
    end = time.monotonic() + seconds
    while not browser.execute_script(f"return Boolean({condition})"):
        assert time.monotonic() < end, f"never true: {condition}; console: {browser.get_log('browser')}"
        time.sleep(0.02)


def show(browser: Chrome, identity: str) -> None:
    """Scroll to a map, and wait until it is drawn."""
    browser.execute_script(f"document.getElementById('{identity}').scrollIntoView()")
    wait(browser, f"dnn2gp.maps['{identity}'].drawn")


def sort(browser: Chrome, identity: str, order: str) -> None:
    Select(browser.find_element(By.ID, f"{identity}-order")).select_by_value(order)
    wait(browser, f"dnn2gp.maps['{identity}'].order === '{order}'")


def box(browser: Chrome, identity: str, subplot: str = "xy") -> tuple[float, float, float, float]:
    """Left, top, width and height on the screen of the matrix, or of a bar beside it."""
    found = browser.execute_script(
        f"const box = document.querySelector('#{identity} .nsewdrag[data-subplot=\"{subplot}\"]')"
        ".getBoundingClientRect(); return [box.left, box.top, box.width, box.height]"
    )
    return tuple(found)


def point_at(
    browser: Chrome, shape: tuple[int, int], identity: str, row: int, column: int, click: bool = False
) -> None:
    """Put the pointer on a place of the drawn matrix of this shape."""
    rows, columns = shape
    left, top, width, height = box(browser, identity)
    x, y = left + (column + 0.5) * width / columns, top + (row + 0.5) * height / rows
    actions = ActionChains(browser, duration=50)
    actions.w3c_actions.pointer_action.move_to_location(round(x) - 3, round(y))
    actions.w3c_actions.pointer_action.move_to_location(round(x), round(y))
    (actions.click() if click else actions).perform()
    time.sleep(0.15)


def panel(browser: Chrome, identity: str, what: str) -> list[str]:
    return [each.text for each in browser.find_elements(By.CSS_SELECTOR, f"#{identity} .panel {what}")]
