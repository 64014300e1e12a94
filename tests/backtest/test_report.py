"""What is told of a backtest: words, rows, the table on a terminal, and the HTML page with its drawings."""

import functools
import io
import json
import re
import sys
from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from html.parser import HTMLParser

import numpy as np
import pytest
from rich.console import Console

from dispatcher.backtest import figures, html, report
from dispatcher.backtest.profiles import hours_between, mean_day, typical_week
from dispatcher.backtest.results import BacktestResult, Oracle
from dispatcher.errors import BadInput
from tests.backtest.report_samples import DAYS, START, result, run

# --- words and rows -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("got", "base", "by"),
    [(80.0, 100.0, -0.2), (120.0, 100.0, 0.2), (None, 100.0, None), (1.0, None, None), (1.0, 0.0, None), (-12.0, -10.0, -0.2)],
)
def test_change_against_run_now(got: float | None, base: float | None, by: float | None) -> None:
    assert report.change(got, base) == (None if by is None else pytest.approx(by))


def test_the_best_misses_the_fewest_deadlines_and_then_has_the_lowest_score() -> None:
    found = result()
    winner = report.best(found)
    assert winner is not None and winner.policy == "gridshift"  # ecovisor is cheaper and cleaner, but late
    assert report.judged_by(found) == "cost with carbon at 100 EUR/t"
    punctual = replace(found, runs=(*found.runs[:3], replace(found.runs[3], deadline_misses=0)))
    assert report.best(punctual) is punctual.runs[3]


def test_what_is_not_known_of_every_run_is_not_compared() -> None:
    found = result()
    no_cost = replace(found, runs=tuple(replace(one, cost=None) for one in found.runs))
    assert report.judged_by(no_cost) == "carbon" and "of the carbon (75.00 kg CO2e)" in report.headline(no_cost)
    assert "of the cost" not in report.headline(no_cost)
    nothing = replace(no_cost, runs=tuple(replace(one, carbon_kg=None) for one in no_cost.runs))
    assert report.best(nothing) is None and "neither cost nor carbon is known" in report.headline(nothing)
    by_carbon = replace(
        found, runs=tuple(replace(one, settings={"price_weight": 0.0, "carbon_price": 5.0}) for one in found.runs)
    )
    assert report.judged_by(by_carbon) == "carbon"


def test_the_headline_says_what_was_saved_at_what_delay_and_what_was_possible() -> None:
    assert report.headline(result()) == (
        "Simulated: gridshift would have saved 20.0 % of the cost (200.00 EUR) and 15.0 % of the carbon (75.00 kg CO2e) "
        "against running every job at once. Jobs ended 4.5 h later on average, one in twenty more than 13.5 h later; no "
        "deadline was missed. No schedule could have saved more than 35.0 % of the cost or 30.0 % of the carbon "
        "(with everything known beforehand and room without end)."
    )
    worse = result(runs=(run("run-now", 100.0, 50.0), run("gridshift", 110.0, 40.0, deadline_misses=2, impossible=1)))
    told = report.headline(worse)
    assert "added 10.0 % to the cost (10.00 EUR) and saved 20.0 % of the carbon" in told
    assert "2 of 200 jobs missed their deadline (1 of them could not have met it)" in told
    alone = report.headline(result(runs=(run("run-now", 100.0, 50.0),)))
    assert alone == "Simulated: 200 jobs ran at once; nothing can be compared, because no other policy ran."


def test_the_json_has_a_row_a_policy_and_only_plain_values() -> None:
    found = result(oracle=Oracle(650.0, None))
    told = json.loads(json.dumps(report.as_json(found), allow_nan=False))
    assert [row["policy"] for row in told["rows"]] == ["run-now", "lowest-window", "gridshift", "ecovisor"]
    assert set(told["rows"][0]) == {
        "policy", "label", "settings", "energy_kwh", "cost", "carbon_kg", "cost_vs_run_now", "carbon_vs_run_now",
        "delay_mean_h", "delay_p95_h", "deadline_misses", "impossible", "unfinished", "pauses", "moves", "gap", "wall_s",
    }  # fmt: skip
    ours = told["rows"][2]
    assert (ours["cost_vs_run_now"], ours["carbon_vs_run_now"]) == (pytest.approx(-0.2), pytest.approx(-0.15))
    assert (told["rows"][0]["cost_vs_run_now"], ours["gap"], ours["moves"]) == (0.0, 0.0043, 56)
    assert told["oracle"] == {"cost": 650.0, "carbon_kg": None, "cost_vs_run_now": -0.35, "carbon_vs_run_now": None}
    assert [row["settings"]["carbon_price"] for row in told["front"]] == [0.0, 50.0, 100.0]
    assert told["energy_basis"] == "simulated" and told["jobs"] == 200 and told["currency"] == "EUR"
    assert told["start"] == "2023-03-01T00:00:00+00:00" and told["warnings"] == ["price of north: 5 hours are missing"]


def test_where_no_job_ended_no_delay_is_told() -> None:
    ran, held = run("run-now", 100.0, 50.0), run("gridshift", 0.0, 0.0, delay_mean_h=np.nan, unfinished=200)
    found = result(runs=(ran, held), front=())
    assert "No job ended, so that nothing is known of delays; no deadline was missed, 200 had not" in report.headline(found)
    told = json.loads(json.dumps(report.as_json(found), allow_nan=False))["rows"][1]
    assert told["delay_mean_h"] is None and told["delay_p95_h"] is None
    out = io.StringIO()
    Console(file=out, width=160, color_system=None).print(report.view(found, 160))
    (line,) = [line for line in out.getvalue().splitlines() if line.startswith("gridshift")]
    assert line.split()[-7:] == ["-", "-", "0", "0", "0", "-", "1.5"], "delay, p95, missed, pauses, moves, gap, seconds"
    assert "gap is how far" in out.getvalue()
    assert "nan" not in out.getvalue()


@pytest.mark.parametrize("width", [80, 100, 160, 200])
def test_the_table_fits_the_terminal_and_shows_bound_and_baseline(width: int) -> None:
    out = io.StringIO()
    Console(file=out, width=width, color_system=None).print(report.view(result(), width))
    lines = out.getvalue().splitlines()
    assert all(len(line.rstrip()) <= width for line in lines)
    rows = {line.split("  ")[0]: line for line in lines}
    assert "1,000.00" in rows["run-now"] and "-35.0 %" in rows["oracle (bound)"] and "-20.0 %" in rows["gridshift"]
    assert ("1,234" in rows["gridshift"]) == (width >= 112)
    assert "assumed: A job draws 400 W" in out.getvalue() and "(simulated)" in out.getvalue()


def test_columns_of_which_nothing_is_known_are_left_out() -> None:
    found = result()
    out = io.StringIO()
    no_cost = replace(found, runs=tuple(replace(one, cost=None) for one in found.runs))
    Console(file=out, width=160, color_system=None).print(report.view(no_cost, 160))
    (head,) = [line for line in out.getvalue().splitlines() if line.startswith("policy")]
    assert "cost" not in head and "carbon kg" in head


def test_small_and_large_amounts_keep_figures_that_say_something() -> None:
    assert report.money(0.0384, "EUR") == "0.0384 EUR" and report.money(1234567.8, "EUR") == "1,234,568 EUR"
    assert report.carbon(0.15) == "0.1500 kg CO2e" and report.carbon(250_000.0) == "250.0 t CO2e"
    assert report.signed(-0.00001) == "0.0 %" and report.signed(0.1234) == "+12.3 %" and report.signed(None) is None


# --- profiles -----------------------------------------------------------------------------------------------------------


def test_the_mean_day_leaves_unknown_hours_out() -> None:
    start = datetime(2023, 1, 1, 6, 30, tzinfo=UTC)
    values = np.array([1.0, np.nan] + [5.0] * 22 + [3.0, np.nan])
    day = mean_day(values, start)
    assert day[6] == 2.0 and np.isnan(day[7]) and day[8] == 5.0


def test_the_typical_week_is_a_whole_one_of_median_energy() -> None:
    monday = 5 * 24  # START is a Wednesday
    load = np.zeros(monday + 4 * 168 + 10)
    for week, level in enumerate((9.0, 1.0, 4.0, 0.0)):
        load[monday + week * 168 : monday + (week + 1) * 168] = level
    assert typical_week(load, START) == slice(monday + 2 * 168, monday + 3 * 168)
    assert typical_week(load[:100], START) == slice(0, 100)
    assert hours_between(START + timedelta(minutes=30), START + timedelta(hours=2, minutes=1)) == 3


# --- the page -----------------------------------------------------------------------------------------------------------

_EMPTY = {"meta", "br", "use", "path", "rect", "image", "stop"}


class Page(HTMLParser):
    """What a page holds; refuses tags that do not close in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: Counter[str] = Counter()
        self.ids: Counter[str] = Counter()
        self.attributes: list[tuple[str, str, str]] = []
        self.cells: dict[tuple[str, str], list[float]] = {}
        self.text: list[str] = []
        self._policy = ""
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._noted(tag, attrs)
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._noted(tag, attrs)

    def _noted(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        given = {name: value or "" for name, value in attrs}
        self.attributes += [(tag, name, value) for name, value in given.items()]
        if "id" in given:
            self.ids[given["id"]] += 1
        if tag == "tr":
            self._policy = given.get("data-policy", "")
        if tag == "td" and "data-value" in given:
            self.cells.setdefault((self._policy, given["data-key"]), []).append(float(given["data-value"]))

    def handle_endtag(self, tag: str) -> None:
        assert self.open and self.open.pop() == tag, tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


@functools.cache
def sample() -> tuple[str, Page]:
    return drawn(result())


def drawn(found: BacktestResult) -> tuple[str, Page]:
    pytest.importorskip("matplotlib", reason="drawings need matplotlib, the extra 'report'")
    text = html.page(found)
    return text, Page(text)


def test_the_page_stands_alone_and_is_well_formed() -> None:
    text, page = sample()
    assert "http:" not in text and "https:" not in text and "//" not in re.sub(r"<style>.*?</style>", "", text, flags=re.DOTALL)
    assert not {"script", "link", "img", "iframe", "object", "image"} & page.tags.keys()
    assert not [one for one in page.attributes if one[1] in {"src", "srcset", "data"} or one[1].startswith("on")]
    links = [value for _, name, value in page.attributes if name in {"href", "xlink:href"}]
    assert links and all(value.startswith("#") and value[1:] in page.ids for value in links)
    assert "@import" not in text and set(re.findall(r"url\((.)", text)) <= {"#"}
    assert all(count == 1 for count in page.ids.values())


def test_each_drawing_has_words_and_the_pages_colours() -> None:
    text, page = sample()
    assert page.tags["svg"] == page.tags["figure"] == page.tags["desc"] == 8  # four of policies, two a region
    for tag, name, value in page.attributes:
        if tag == "svg" and name == "aria-labelledby":
            assert all(part in page.ids for part in value.split())
    drawings = re.findall(r"<svg.*?</svg>", text, flags=re.DOTALL)
    assert not any(colour in one for one in drawings for colour in figures.COLOURS.values())
    assert "var(--best)" in drawings[1] and "gridshift saves 20.0 % of cost and 15.0 % of carbon" in drawings[0]
    assert "prefers-color-scheme:dark" in text and "@media print" in text


def test_the_numbers_of_the_page_are_those_of_the_result() -> None:
    found = result()
    _, page = sample()
    for one in found.runs:
        for key in ("cost", "carbon_kg", "delay_mean_h", "delay_p95_h", "deadline_misses", "pauses", "moves", "unfinished"):
            expected = getattr(one, key)
            assert page.cells[one.policy, key][0] == expected, (one.policy, key)
    assert page.cells["gridshift", "gap"] == [0.0043]
    assert page.cells["gridshift", "cost"][1:] == [one.cost for one in found.front]
    assert page.cells["gridshift", "cost_vs_run_now"][0] == pytest.approx(-0.2)
    assert page.cells["oracle", "carbon_kg"] == [350.0] and page.cells["oracle", "cost_vs_run_now"] == [pytest.approx(-0.35)]
    words = " ".join(page.text)
    assert "simulated" in words.lower() and "no power was measured" in words
    assert "saved 20.0 % of the cost (200.00 EUR)" in words
    assert all(sentence in words for sentence in (*found.assumptions, *found.warnings))


def test_a_page_where_no_job_ended_says_so() -> None:
    never = run("gridshift", 0.0, 0.0, delay_mean_h=np.nan, unfinished=200)
    for others in ((never,), (never, run("ecovisor", 90.0, 45.0, delay_mean_h=2.0))):
        text, page = drawn(result(runs=(run("run-now", 100.0, 50.0), *others), front=()))
        assert "unknown<small>no job ended</small>" in text and ("gridshift", "delay_mean_h") not in page.cells
        words = " ".join(page.text)
        assert "but no job ended" in words and "gridshift: no job ended" in words and "nan" not in words


def test_names_cannot_break_the_page() -> None:
    found = result()
    evil = '<script>alert("$x^2$ & co")</script>'
    runs = (*found.runs[:2], replace(found.runs[2], label=evil, policy=evil))
    region = replace(found.regions[0], region=evil, currency="<b>")
    text, page = drawn(replace(found, runs=runs, regions=(region,), jobs_file=evil, assumptions=(evil,), warnings=(evil,)))
    assert "script" not in page.tags and "b" not in page.tags and "&lt;script&gt;" in text
    assert evil in " ".join(page.text)


@pytest.mark.parametrize("case", ["alone", "no signals", "earning", "short", "unequal", "zero"])
def test_odd_results_have_a_page_too(case: str) -> None:
    found = result()
    if case == "alone":
        found = result(runs=found.runs[:1], front=())
    elif case == "no signals":
        regions = tuple(replace(region, price=None, carbon=None) for region in found.regions)
        runs = tuple(replace(one, cost=None, carbon_kg=None) for one in found.runs)
        found = result(regions=regions, runs=runs, front=(), oracle=Oracle(None, None))
    elif case == "earning":
        found = result(runs=(run("run-now", -5.0, 10.0), run("gridshift", -12.0, 9.0)))
    elif case == "short":
        found = result(end=START + timedelta(hours=3), warnings=())
    elif case == "unequal":
        longer = replace(found.runs[1], load_w={"north": np.ones(DAYS * 24 + 99)})
        found = result(runs=(found.runs[0], longer))
    else:
        nothing = {"north": np.zeros(DAYS * 24)}
        runs = tuple(replace(run(name, 0.0, 0.0), jobs=0, energy_kwh=0.0, load_w=nothing) for name in ("run-now", "gridshift"))
        found = result(runs=runs, front=(), oracle=Oracle(0.0, 0.0))
    text, page = drawn(found)
    assert page.tags["h1"] == 1 and page.tags["figure"] >= 4 and "nan" not in " ".join(page.text)
    if case == "earning":
        assert "saved 140.0 % of the cost (7.00 EUR)" in text
    if case == "no signals":
        assert "neither cost nor carbon is known throughout" in text and "savings-title" not in page.ids


def test_drawings_come_out_the_same_each_time() -> None:
    assert html.page(result()) == sample()[0]


def test_without_matplotlib_it_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(figures.NoDrawing, match=r"pip install 'gridshift\[report\]'"):
        html.page(result())
    with pytest.raises(figures.NoDrawing):
        html.require()


def test_a_result_without_runs_is_refused() -> None:
    with pytest.raises(BadInput, match="run-now"):
        html.page(result(runs=()))
