"""``gridshift signals``: what power costs and emits, where that comes from, what is forecast, and what a feed says.

``list``, ``show`` and ``forecast REGION`` ask the control plane; the others read feeds by themselves, and only ``backfill``
stores something.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dispatcher.cli_common import (
    BAD_INPUT,
    FAILURE,
    busy,
    config_option,
    fail,
    group,
    json_option,
    load_config,
    open_store,
    over_http,
    pairs,
    show,
    time_option,
)

if TYPE_CHECKING:
    from datetime import datetime

    from rich.console import RenderableType

    from dispatcher.client import Client

signals = group(None, "signals", "Prices and carbon intensities.", default="list")

_HOURS = 96.0
kind_option = click.option("--kind", type=click.Choice(["price", "carbon", "load"]), default="price", show_default=True)


# --- of the control plane -------------------------------------------------------------------------------------------


@signals.command("list")
@over_http
def signals_list(client: Client, as_json: bool) -> None:
    """List each region's signals, their values now, and what is wrong with their sources."""
    answer = client.get_json("/v1/signals")

    def view() -> RenderableType:
        from dispatcher.render_signals import signals_table

        return signals_table(answer["signals"])

    show(answer, as_json, view)


@signals.command("show")
@click.argument("region")
@kind_option
@over_http
def signals_show(client: Client, region: str, kind: str, as_json: bool) -> None:
    """Plot a region's signal as the planner sees it, with its sources."""
    answer = client.get_json("/v1/signals", {"region": region, "kind": kind})

    def view() -> RenderableType:
        from dispatcher.render import console
        from dispatcher.render_signals import signal_view

        return signal_view(answer, console().width)

    show(answer, as_json, view)


@signals.command("forecast")
@click.argument("region", required=False)
@click.option("--kind", help="price or carbon; with --feed a kind that the feed has, by default the first that is there.")
@click.option("--hours", type=click.FloatRange(0.25, 24 * 7), help=f"How far ahead.  [default: {_HOURS:g}]")
@click.option("--feed", "feed_name", help="Without a control plane: forecast from what this feed has, csv for instance.")
@click.option("--option", "options", multiple=True, metavar="KEY=VALUE", help="Option of the feed, as in gridshift.toml.")
@click.option("--now", "now_text", metavar="TIME", help="With --feed: forecast as of then, of what was known then.")
@click.option("--zone", default="UTC", show_default=True, help="With --feed: time zone of the calendar, such as Europe/Berlin.")
@over_http
def signals_forecast(
    client: Client,
    region: str | None,
    *,
    kind: str | None,
    hours: float | None,
    feed_name: str | None,
    options: tuple[str, ...],
    now_text: str | None,
    zone: str,
    as_json: bool,
) -> None:
    """Show a signal from now on, and how sure the forecast is: REGION's as it is planned with, or what follows a feed's past.

    The values of REGION are those of the planner: published ones as far as there are any, then our forecast with its 10 and
    90 % quantiles. With --feed no control plane is needed; with --now, say of a file of last year, nothing is used that was
    not known then, unless the option lookahead says how far ahead values were published (a price file: lookahead=24h).
    """
    if feed_name is not None:
        answer = _feed_forecast(feed_name, options, region, kind, now_text, zone, hours or _HOURS)
    else:
        if region is None:
            raise click.UsageError("name a REGION of the control plane, or a --feed to forecast from")
        if options or now_text:
            raise click.UsageError("--option and --now go with --feed")
        kind = kind or "price"
        if kind not in ("price", "carbon", "load"):
            raise click.BadParameter(f"{kind!r}; must be price, carbon or load", param_hint="--kind")
        answer = _cut(client.get_json("/v1/signals", {"region": region, "kind": kind}), hours or _HOURS)
        covered_h = len(answer["values"]) * answer["slot_s"] / 3600
        if hours is not None and covered_h < hours:
            click.echo(f"the planner looks {covered_h:g} h ahead; planning.horizon_hours sets how far", err=True)

    def view() -> RenderableType:
        from dispatcher.render import console
        from dispatcher.render_signals import forecast_view

        return forecast_view(answer, console().width)

    show(answer, as_json, view)


def _cut(signal: dict[str, Any], hours: float) -> dict[str, Any]:
    """The first ``hours`` of a signal."""
    count = max(1, round(hours * 3600 / signal["slot_s"]))
    return {**signal, **{key: signal[key][:count] for key in ("values", "basis", "low", "high")}}


# --- feeds, asked here ----------------------------------------------------------------------------------------------


def _feed_forecast(
    name: str, options: Sequence[str], region: str | None, kind: str | None, now_text: str | None, zone: str, hours: float
) -> dict[str, Any]:
    from dispatcher.api.views import now_json, slots_json
    from dispatcher.clock import SystemClock
    from dispatcher.signal_tools import forecast_of_feed, iso
    from signals.feeds.base import FeedError
    from signals.points import SignalError

    feed = _feed(name)
    kinds = [k for k in _kinds(feed, kind) if k == "price" or k.startswith("carbon_")]
    kinds.sort(key=lambda k: k != "price")
    if not kinds:
        raise click.BadParameter(f"feed {name} has neither a price nor a carbon intensity", param_hint="--feed")
    checked = _checked_options(feed, options, kinds[0])
    present = SystemClock().now()
    now = time_option(now_text, "--now") or present
    try:
        with busy(f"reading {name} and forecasting"):
            made = forecast_of_feed(
                name,
                checked,
                region=region or name,
                kinds=kinds,
                now=now,
                zone=zone,
                hours=hours,
                hindsight=now < present and now_text is not None,
            )
    except FeedError as error:
        hint = "; give a --now that lies within it" if error.kind == "no_data" else ""
        fail(f"{_not_told(name, error.kind, error.message)}{hint}", FAILURE)
    except SignalError as error:
        fail(error, BAD_INPUT)
    for warning in made.warnings:
        click.echo(f"warning: {warning}", err=True)
    return {
        "region": made.region,
        "kind": "price" if made.kind == "price" else "carbon",
        "signal": made.kind,
        **(now_json(made.series, now) or {}),
        "learned_from": [iso(at) for at in made.learned_from],
        **slots_json(made.series),
    }


def _feed_options(values: Sequence[str]) -> dict[str, Any]:
    """--option values; those that read as JSON (numbers, lists) are taken so."""
    out: dict[str, Any] = {}
    for key, text in pairs(values, "--option").items():
        try:
            out[key] = json.loads(text)
        except ValueError:
            out[key] = text
    return out


def _kinds(feed: Any, kind: str | None) -> list[Any]:
    from signals.points import Kind

    if kind is None:
        return sorted(feed.kinds)
    if kind == "carbon":
        kind = next((k for k in sorted(feed.kinds) if k.startswith("carbon_")), kind)
    if kind not in list(Kind) or Kind(kind) not in feed.kinds:
        raise click.BadParameter(f"{kind!r}; feed {feed.name} has {', '.join(sorted(feed.kinds))}", param_hint="--kind")
    return [Kind(kind)]


def _feed(name: str) -> Any:
    from signals.feeds import FEEDS

    if name not in FEEDS:
        raise click.BadParameter(f"{name!r}; there are: {', '.join(sorted(FEEDS))}", param_hint="--feed")
    return FEEDS[name]


def _given_options(feed: Any, values: Sequence[str]) -> dict[str, Any]:
    """For a saved answer, which needs none of what asking would need: only what was given must be right."""
    return _checked_options(feed, values, None, only_given=True)


def _checked_options(feed: Any, values: Sequence[str], kind: Any, *, only_given: bool = False) -> dict[str, Any]:
    from signals.feeds import validate_options

    options = _feed_options(values)
    problems = [p for p in validate_options(feed.name, options, kind) if not only_given or p.key in options]
    if problems:
        text = "\n".join(f"{key}: {value!r}: {remedy}" for key, value, remedy in problems)
        raise click.BadParameter(text, param_hint="--option")
    return options


def _tell_points(answer: dict[str, Any], as_json: bool, failed: Callable[[str, str], str]) -> None:
    """Show what was read; an error goes to stderr, and with nothing else to show there is no empty table."""

    def view() -> RenderableType:
        from rich.console import Group
        from rich.text import Text

        from dispatcher.render import cell, clean, number, table

        made = table("region", "kind", "variant", "start", "end", "value", "unit", "quality", right=["value"])
        for p in answer["points"]:
            texts = (p["region"], p["kind"], p["variant"], p["start"], p["end"], number(p["value"]), p["unit"], p["quality"])
            made.add_row(*(cell(text) for text in texts))
        notes = [f"gap: {gap['start']} to {gap['end']}" for gap in answer["gaps"]]
        notes += [f"warning: {warning}" for warning in answer["warnings"]]
        return Group(*([made] if answer["points"] else []), *(Text(clean(note)) for note in notes))

    error = answer["error"]
    if as_json or error is None or answer["points"] or answer["gaps"] or answer["warnings"]:
        show(answer, as_json, view)
    if error is not None:
        fail(failed(error["kind"], error["message"]), FAILURE)


def _not_told(feed: str, kind: str, message: str) -> str:
    """Why a feed said nothing: it could not be asked, or there was something wrong with the answer."""
    return f"{feed} could not be asked: {message}" if kind == "access" else f"{feed}: {kind}: {message}"


@signals.command("parse")
@click.option("--feed", "feed_name", required=True, help="Which feed the responses are from.")
@click.option("--region", help="Region the points are for; default: the feed's name.")
@click.option("--kind", help="Which kind of signal; default: all that the feed has.")
@click.option("--option", "options", multiple=True, metavar="KEY=VALUE", help="Option of the feed, as in gridshift.toml.")
@click.option("--retrieved-at", metavar="TIME", help="When the responses were fetched (ISO 8601 with offset); default: now.")
@click.argument("files", nargs=-1, required=True, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@json_option
def signals_parse(
    feed_name: str,
    region: str | None,
    kind: str | None,
    options: tuple[str, ...],
    retrieved_at: str | None,
    files: tuple[Path, ...],
    as_json: bool,
) -> None:
    """Say what saved responses of a feed mean; nothing is asked and nothing stored."""
    from dispatcher.clock import SystemClock
    from dispatcher.signal_tools import points_json, those_that_hold

    feed = _feed(feed_name)
    at = time_option(retrieved_at, "--retrieved-at") or SystemClock().now()
    kinds = _kinds(feed, kind)
    checked = _given_options(feed, options)
    results = []
    for path in files:
        payload = path.read_bytes()
        read = [feed.parse(payload, region=region or feed_name, kind=k, retrieved_at=at, options=checked) for k in kinds]
        results += those_that_hold(read, kinds)
    _tell_points(points_json(results), as_json, lambda kind, message: f"{kind}: {message}")


@signals.command("fetch")
@click.option("--feed", "feed_name", required=True, help="Which feed to ask.")
@click.option("--region", help="Region the points are for; default: the feed's name.")
@click.option("--kind", help="Which kind of signal; default: all that the feed has.")
@click.option("--option", "options", multiple=True, metavar="KEY=VALUE", help="Option of the feed, as in gridshift.toml.")
@click.option("--hours", type=click.FloatRange(0.25, 24 * 30), default=24.0, show_default=True, help="How far back and ahead.")
@json_option
def signals_fetch(
    feed_name: str, region: str | None, kind: str | None, options: tuple[str, ...], hours: float, as_json: bool
) -> None:
    """Ask a feed now and show what it says; nothing is stored."""
    from datetime import timedelta

    from dispatcher.clock import SystemClock
    from dispatcher.signal_tools import points_json, those_that_hold
    from signals.ingest import fetch

    feed = _feed(feed_name)
    kinds = _kinds(feed, kind)
    checked = _checked_options(feed, options, kinds[0])
    now, reach = SystemClock().now(), timedelta(hours=hours)
    results = []
    for k in kinds:
        with busy(f"asking {feed_name} for {k}"):
            start, end, name = now - reach, now + reach, region or feed_name
            results.append(fetch(feed_name, checked, region=name, kind=k, now=now, window_start=start, window_end=end))
    found = those_that_hold(results, kinds)
    _tell_points(points_json(found), as_json, lambda kind, message: _not_told(feed_name, kind, message))


# --- filling the database -------------------------------------------------------------------------------------------


@signals.command("backfill")
@click.argument("region")
@kind_option
@click.option("--days", type=click.FloatRange(0.1, 3660), default=182.0, show_default=True, help="How far back.")
@click.option("--source", help="Which of the region's sources, by name; default: its first.")
@click.option("--again", is_flag=True, help="Fetch what is there already too, for what was revised since.")
@config_option
@json_option
def signals_backfill(
    region: str, kind: str, days: float, source: str | None, again: bool, config_path: Path | None, as_json: bool
) -> None:
    """Fetch the past of REGION's signal into the configured database, so that forecasts have something to learn from.

    It may run beside the control plane: it writes signals and nothing else, one window after the other, and does not ask for
    the lead. Stopped, it goes on where it was when it is run again. The control plane uses what is there with its next
    forecast.
    """
    from contextlib import closing

    from sqlalchemy.exc import SQLAlchemyError

    from dispatcher.clock import SystemClock
    from dispatcher.signal_tools import backfill_of, iso
    from signals.points import SignalError
    from signals.store import SignalStore

    config = load_config(config_path)
    # A replay's present begins at its start: what counts as learned later it would never see.
    now: Callable[[], datetime] = SystemClock().now if config.replay is None else _always(config.replay.start)
    try:
        with closing(open_store(config)) as store, _Windows() as progress:
            name, start, end, done = backfill_of(
                config,
                SignalStore(store.engine),
                region=region,
                what=kind,
                days=days,
                source=source,
                again=again,
                now=now,
                progress=progress.step,
            )
    except SignalError as error:
        fail(error, FAILURE)
    except SQLAlchemyError as error:
        what = str(getattr(error, "orig", None) or error).strip().partition("\n")[0]
        fail(f"database: {what or type(error).__name__}; what was stored stays, run it again for the rest", FAILURE)
    answer: dict[str, Any] = {"region": region, "kind": kind, "source": name, "start": iso(start), "end": iso(end)}
    answer |= {key: getattr(done, key) for key in ("skipped", "fetched", "failed", "left", "stored")}
    answer["errors"] = [{"kind": error.kind, "message": error.message} for error in done.errors]
    answer["warnings"] = list(done.warnings)

    def view() -> RenderableType:
        from rich.text import Text

        told = f"{region} {kind} from {name}: {done.stored} new points; windows: {done.fetched} fetched"
        told += f", {done.skipped} there already, {done.failed} failed" + (f", {done.left} left out" if done.left else "")
        return Text("\n".join([told, *(f"doubted: {warning}" for warning in done.warnings)]))

    show(answer, as_json, view)
    if done.failed:
        again_later = "; run it again later for the rest"
        fail(f"{name}: {done.errors[-1].message}{again_later}", FAILURE)


def _always(at: datetime) -> Callable[[], datetime]:
    return lambda: at


class _Windows:
    """Progress of a backfill: a bar on a terminal, elsewhere only a line for each window that failed."""

    def __init__(self) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        from dispatcher.render import console

        out = console(stderr=True)
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        self._bar = Progress(*columns, console=out, transient=True, disable=not out.is_terminal)
        self._task = self._bar.add_task("looking what is there", total=None)

    def __enter__(self) -> _Windows:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def step(self, step: Any) -> None:
        """A window is done."""
        self._bar.update(
            self._task, total=step.total, completed=step.done, description=f"{step.start:%Y-%m-%d}, {step.stored} new"
        )
        if step.error is not None and step.error.kind != "no_data":
            click.echo(f"{step.start:%Y-%m-%d} to {step.end:%Y-%m-%d}: {step.error.message}", err=True)
