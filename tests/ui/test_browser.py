"""The console in a real browser: what is on the page, and a click that reaches the control plane."""

import pytest
from selenium import webdriver
from selenium.common.exceptions import StaleElementReferenceException, WebDriverException
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from tests.helpers import wait_until
from tests.ui.fake_api import FakeControlPlane

pytestmark = pytest.mark.real
LIMIT_S = 90


def text(browser: webdriver.Chrome) -> str:
    """What is readable on the page now."""
    try:
        return browser.find_element(By.TAG_NAME, "body").text
    except StaleElementReferenceException:
        return ""


def shows(browser: webdriver.Chrome, *words: str) -> None:
    """Wait until the page shows all of these."""
    wait_until(lambda: all(word in text(browser) for word in words), LIMIT_S, f"{words} on the page")


def press(browser: webdriver.Chrome, label: str) -> None:
    """Press a button once; the page redraws itself, so an attempt may meet an element that is just being replaced."""

    def pressed() -> bool:
        try:
            found = browser.find_elements(By.XPATH, f"//button[not(@disabled)][normalize-space()='{label}']")
            for one in found:
                browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", one)
                one.click()
            return bool(found)
        except WebDriverException:
            return False

    wait_until(pressed, LIMIT_S, f"the button {label!r}")


def open_job(browser: webdriver.Chrome, job_id: str) -> None:
    """Open a job by its id."""
    box = wait_until(lambda: browser.find_elements(By.XPATH, "//input[@aria-label='Job id']"), LIMIT_S, "the search box")[0]
    box.send_keys(Keys.CONTROL, "a")
    box.send_keys(job_id, Keys.ENTER)
    shows(browser, f"gridshift jobs logs {job_id}")


def click_row(browser: webdriver.Chrome, row: int) -> None:
    """Tick a row of the jobs table, which is drawn on a canvas: 35 pixels a row under a header of as many."""
    canvas = browser.find_element(By.XPATH, "//canvas[@data-testid='data-grid-canvas']")
    browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", canvas)
    left, top = 16 - canvas.size["width"] // 2, 35 * (row + 1) + 17 - canvas.size["height"] // 2
    ActionChains(browser).move_to_element_with_offset(canvas, left, top).click().perform()


def row_holds(browser: webdriver.Chrome, row: int, job_id: str) -> None:
    """Wait until a row of the table is that job's: the canvas carries its cells as a table for screen readers."""
    script = (
        "return [...document.querySelectorAll(\"canvas[data-testid='data-grid-canvas'] tr\")]"
        ".filter(row => row.getAttribute('aria-rowindex') == arguments[0]).map(row => row.textContent).join()"
    )
    wait_until(lambda: job_id in browser.execute_script(script, row + 2), LIMIT_S, f"row {row} to hold {job_id}")


def test_an_operator_reads_the_page_and_cancels_a_job(plane: FakeControlPlane, console: str, browser: webdriver.Chrome) -> None:
    browser.get(console)
    shows(browser, "ALARM us-east does not answer", "Tue 3 Mar 2026 03:12:05 UTC", "modelled", "UNREACHABLE", "4.3 kW OVER")
    shows(browser, "eu-west: planned load", "41.5 EUR/MWh", "evt-20260303-01", "gCO2e/kWh", "time, UTC")
    assert "Traceback" not in text(browser) and "encountered an error" not in text(browser)

    chosen = plane.jobs[0]["id"]
    open_job(browser, chosen)
    press(browser, "Cancel job")
    shows(browser, f"Cancel {chosen}?", "cannot be undone")
    assert plane.posts == []
    press(browser, "No, leave it")
    press(browser, "Cancel job")
    press(browser, "Yes, cancel it")
    shows(browser, f"cancel requested for {chosen}")
    assert plane.posts == [f"cancel {chosen}"]
    assert plane.tokens == {"Bearer gs_token of the console"}

    # The control plane goes away and comes back: said so, and the same job is still open.
    plane.stop()
    shows(browser, "Control plane unreachable", "What to do:", "It last answered")
    plane.start()
    shows(browser, "ALARM us-east does not answer", f"gridshift jobs logs {chosen}")
    assert plane.posts == [f"cancel {chosen}"]


def test_a_clicked_job_stays_open_while_rows_move(plane: FakeControlPlane, console: str, browser: webdriver.Chrome) -> None:
    browser.get(console)
    shows(browser, "Power budgets", "Jobs")
    wait_until(lambda: browser.find_elements(By.XPATH, "//canvas[@data-testid='data-grid-canvas']"), LIMIT_S, "the table")
    first, chosen, third = (plane.jobs[n]["id"] for n in (0, 2, 3))
    row_holds(browser, 2, chosen)
    click_row(browser, 2)
    shows(browser, f"gridshift jobs logs {chosen}", "3 succeeded")
    plane.jobs[0]["state"] = "succeeded"  # it leaves the top of the table, and the others move up
    shows(browser, "4 succeeded", f"gridshift jobs logs {chosen}")

    row_holds(browser, 2, third)
    moved = plane.tables  # the page knows where its own mark is now only once it has drawn the table again
    wait_until(lambda: plane.tables >= moved + 2, LIMIT_S, "the table to be drawn again")
    click_row(browser, 2)
    shows(browser, f"gridshift jobs logs {third}")
    assert f"gridshift jobs logs {chosen}" not in text(browser)
    open_job(browser, first)
    press(browser, "Close")
    wait_until(lambda: "gridshift jobs logs" not in text(browser), LIMIT_S, "the details to go")

    plane.jobs[3]["pausable"] = "no"
    open_job(browser, third)
    press(browser, "Pause")
    press(browser, "Yes, pause it")
    shows(browser, f"job {third} cannot be paused while it runs")
    assert plane.posts == [f"pause {third}"]
