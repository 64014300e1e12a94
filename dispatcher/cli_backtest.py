"""``gridshift backtest``: policies over a trace of jobs under virtual time, as a table, as JSON and as an HTML report.

It turns words into Options, shows how far things are, and says in an exit code whether all went well. Everything but click is
imported when it is used.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from dispatcher.cli_common import (
    BAD_INPUT,
    FAILURE,
    INTERRUPTED,
    config_option,
    fail,
    json_option,
    load_config,
    open_store,
    pairs,
    print_json,
    time_option,
)

if TYPE_CHECKING:
    from dispatcher.backtest.build import Options
    from dispatcher.backtest.run import Outcome
    from policies.world import CapPoint, Settings

T = TypeVar("T")

_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
_BY_REGION = "; REGION=N for one region, may be given again"


def _options(command: Callable[..., Any]) -> Callable[..., Any]:
    """All flags, in the order in which --help shows them."""
    flags = [
        click.option("--jobs", multiple=True, type=_FILE, metavar="CSV", help="Job trace, plain or .gz; one file or several."),
        click.option(
            "--signals", multiple=True, metavar="CSV", help="Prices or carbon by hour; REGION=CSV if it names no region."
        ),
        click.option(
            "--stored-signals", is_flag=True, help="Signals of the configured database instead; needs --start and --days."
        ),
        click.option("--regions", metavar="A,B", help="Regions of the signals that jobs may run in; the first is home."),
        click.option(
            "--policy",
            "policies",
            metavar="A,B",
            default="gridshift",
            show_default=True,
            help="Policies to run; run-now always runs as well, as what the others are held against.",
        ),
        click.option("--start", metavar="TIME", help="Begin then (ISO 8601 with offset); default: where signals and jobs do."),
        click.option("--days", type=click.FloatRange(0, min_open=True), help="How long jobs arrive; default: to the last."),
        click.option("--carbon-prices", metavar="0,50,..", help="Also run gridshift at these carbon prices: its Pareto front."),
        click.option("--report", type=click.Path(dir_okay=False, path_type=Path), metavar="HTML", help="Write a report to it."),
        click.option("--workers", type=click.IntRange(1), default=1, show_default=True, help="Policies run at the same time."),
        # the trace
        click.option(
            "--time-unit", type=click.Choice(["seconds", "minutes", "hours"]), help="Of a trace's times; default: seen."
        ),
        click.option("--clip", metavar="DURATION", help="Cut longer jobs to this length."),
        click.option("--skip-unknown-lengths", is_flag=True, help="Leave out jobs without a length; the report says how many."),
        click.option("--max-wait", metavar="6h", help="How long jobs may wait: 24h, or short:6h,long:24h."),
        click.option("--queue-boundary", metavar="2h", default="2h", show_default=True, help="Below it a job is short."),
        click.option("--w-per-gpu", type=float, default=400.0, show_default=True, help="Mean draw, where a trace has none, W."),
        click.option("--w-per-cpu", type=float, default=1.0, show_default=True, help="The same where a trace counts CPUs."),
        click.option("--pausable/--not-pausable", default=False, show_default=True, help="Whether jobs may be paused."),
        click.option("--checkpoint", metavar="DURATION", default="0s", show_default=True, help="Time that each pause takes."),
        click.option("--restart", metavar="DURATION", default="0s", show_default=True, help="Run time that each resume adds."),
        # the regions
        click.option("--gpus", multiple=True, metavar="N", help="GPUs there are; default: no limit" + _BY_REGION),
        click.option("--max-jobs", multiple=True, metavar="N", help="Jobs at once; default: no limit" + _BY_REGION),
        click.option("--power-limit-w", multiple=True, metavar="W", help="Site limit; default: none" + _BY_REGION),
        click.option(
            "--pue", multiple=True, metavar="X", help="Power at the meter for each W of GPUs; default: 1" + _BY_REGION
        ),
        click.option("--cap", "caps", multiple=True, metavar="CAP:DRAW:SPEED", help="A power cap, such as 0.7:0.72:0.93."),
        click.option("--serving", type=_FILE, metavar="CSV", help="Room kept for serving: region,start,end,gpus,power_w."),
        click.option("--events", type=_FILE, metavar="CSV", help="Limits on power: region,start,end,limit_w."),
        click.option(
            "--carbon", type=click.Choice(["lca", "direct"]), default="lca", show_default=True, help="Which intensity."
        ),
        click.option("--zone", "zones", multiple=True, metavar="REGION=ZONE", help="Time zone of a region's calendar."),
        click.option("--currency", help="Currency of all sums; default: that of the signals."),
        click.option("--fx", multiple=True, metavar="CUR=RATE", help="What one unit of another currency is in it."),
        # what is known beforehand
        click.option(
            "--forecast",
            type=click.Choice(["perfect", "as-of", "noisy"]),
            help="What policies know of hours to come.  [default: as-of; perfect with --gaia-compatible]",
        ),
        click.option("--published-prices", is_flag=True, help="Prices of the next day are known from 13:00 local time on."),
        click.option("--seed", type=int, default=1, show_default=True, help="Of the noise in noisy forecasts."),
        click.option(
            "--noise", type=float, default=1.0, show_default=True, help="Its size against that of our forecaster's errors."
        ),
        click.option(
            "--cache-dir", type=click.Path(file_okay=False, path_type=Path), help="For forecasts.  [default: a user's cache]"
        ),
        # the planner
        click.option("--carbon-price", type=float, default=0.0, show_default=True, help="Currency per tonne CO2e."),
        click.option("--price-weight", type=float, default=1.0, show_default=True, help="Weight of money; 0 plans by carbon."),
        click.option("--daily-carbon-kg", type=float, help="Budget for a UTC day; gridshift keeps it in its plans."),
        click.option("--daily-cost", type=float, help="The same in money."),
        click.option("--horizon-hours", type=float, default=48.0, show_default=True, help="How far ahead plans look."),
        click.option("--slot-minutes", type=click.IntRange(1), help="Slots of plans; default: those of the signals."),
        click.option(
            "--plan-minutes", type=click.FloatRange(1), default=60.0, show_default=True, help="How often plans are made."
        ),
        click.option("--slack", type=float, default=0.1, show_default=True, help="Share a run time may be longer than stated."),
        click.option("--launch-s", type=float, default=10.0, show_default=True, help="From a launch until a job runs."),
        click.option("--gaia-compatible", is_flag=True, help="Settings of the GAIA simulator, to compare totals with it."),
        click.option(
            "--start-index", type=int, default=0, show_default=True, help="With it: hour of the carbon window's start."
        ),
    ]
    for flag in reversed(flags):
        command = flag(command)
    return command


class _ManyFiles(click.Group):
    """``--signals a.csv b.csv`` as shells write it for ``--signals *.csv``: each file as if its flag stood before it."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Put the flags in."""
        made: list[str] = []
        flag, taken = "", False
        for arg in args:
            if arg.startswith("-"):
                flag, taken = arg, False
            elif flag in ("--signals", "--jobs"):
                if taken:
                    made.append(flag)
                taken = True
            made.append(arg)
        return super().parse_args(ctx, made)


@click.group("backtest", cls=_ManyFiles, invoke_without_command=True)
@_options
@config_option
@json_option
@click.pass_context
def backtest(ctx: click.Context, /, **given: Any) -> None:
    """Simulate policies over a trace of jobs, under prices and carbon intensities of the past.

    \b
    gridshift backtest --jobs jobs.csv --signals price.csv carbon.csv --regions DE-LU \\
        --policy lowest-window,gridshift --report report.html

    The table and the JSON have a row a policy, run-now first, and the oracle's bound. cost_vs_run_now and carbon_vs_run_now are
    changes as fractions: -0.12 is 12 % less. All figures are simulated. Exit code 1: a policy failed (the others are shown), or
    the report could not be written.
    """
    if ctx.invoked_subcommand is not None:
        return
    from dispatcher.errors import BadInput

    try:
        _backtest(**given)
    except BadInput as error:
        for field, value, remedy in error.problems:
            click.echo(f"{field}: {value!r}: {remedy}" if value != "" else f"{field}: {remedy}", err=True)
        raise click.exceptions.Exit(BAD_INPUT) from None
    except KeyboardInterrupt:
        click.echo("interrupted", err=True)
        raise click.exceptions.Exit(INTERRUPTED) from None


def _backtest(*, report: Path | None, as_json: bool, workers: int, **given: Any) -> None:
    from dispatcher.backtest import html
    from dispatcher.backtest.build import build
    from dispatcher.backtest.report import as_json as whole
    from dispatcher.backtest.report import view
    from dispatcher.backtest.run import run_all, tasks
    from dispatcher.render import console

    options = _checked(given, workers)
    # What is wrong with a name or with the report's place is told at once, not after an hour.
    wanted = tasks(_names(given["policies"], "--policy"), _numbers(given["carbon_prices"], "--carbon-prices"))
    if report is not None:
        html.require()
        _writable(report)
    with _Bars() as bars:
        scenario = build(options, bars.prepare)
        outcome = run_all(scenario, wanted, workers=workers, progress=bars.policy)
    result = outcome.result
    # Shown before the report is written: a full disk must not take the figures of a long run with it.
    if as_json:
        print_json(whole(result))
    else:
        out = console()
        out.print(view(result, out.width))
    written = report is None or _written(report, html.page(result))
    _tell_failures(outcome)
    if not written:
        raise click.exceptions.Exit(FAILURE)


def _written(path: Path, page: str) -> bool:
    """Write the report and say where it is, or why it could not be written."""
    try:
        path.write_text(page, encoding="utf-8")
    except OSError as error:
        click.echo(f"gridshift: {path}: the report could not be written: {error.strerror or error}", err=True)
        return False
    click.echo(f"report: {path}", err=True)
    return True


def _tell_failures(outcome: Outcome) -> None:
    for failure in outcome.failures:
        click.echo(f"gridshift: {failure.label} failed: {failure.message}", err=True)
    if outcome.failures:
        raise click.exceptions.Exit(FAILURE)


def _checked(given: dict[str, Any], workers: int) -> Options:
    """The flags as Options."""
    from dispatcher.backtest.build import Options

    for flag in ("jobs", "regions") if given["stored_signals"] else ("jobs", "signals", "regions"):
        if not given[flag]:
            raise click.UsageError(f"give --{flag}; 'gridshift backtest --help' shows an example")
    if given["stored_signals"] and (given["signals"] or given["start"] is None or given["days"] is None):
        raise click.UsageError("--stored-signals goes with --start and --days, and without --signals")
    gaia = given["gaia_compatible"]
    return Options(
        jobs=given["jobs"],
        signals=given["signals"],
        regions=_names(given["regions"], "--regions"),
        start=time_option(given["start"], "--start"),
        days=given["days"],
        time_unit=given["time_unit"],
        clip=given["clip"],
        skip_unknown_lengths=given["skip_unknown_lengths"],
        carbon=given["carbon"],
        gpus=_by_region(given["gpus"], "--gpus", float),
        max_jobs=_by_region(given["max_jobs"], "--max-jobs", int),
        power_limit_w=_by_region(given["power_limit_w"], "--power-limit-w", float),
        pue=_by_region(given["pue"], "--pue", float),
        caps=tuple(_cap(text) for text in given["caps"]),
        max_wait=given["max_wait"],
        queue_boundary=given["queue_boundary"],
        w_per_gpu=given["w_per_gpu"],
        w_per_cpu=given["w_per_cpu"],
        pausable=given["pausable"],
        checkpoint=given["checkpoint"],
        restart=given["restart"],
        forecast=given["forecast"] or ("perfect" if gaia else "as-of"),
        published_prices=given["published_prices"],
        zones=pairs(given["zones"], "--zone"),
        seed=given["seed"],
        noise=given["noise"],
        serving=given["serving"],
        events=given["events"],
        currency=given["currency"],
        fx={currency: _number(rate, "--fx", float) for currency, rate in pairs(given["fx"], "--fx").items()},
        settings=_settings(given),
        slot_s=given["slot_minutes"] * 60 if given["slot_minutes"] else None,
        plan_s=given["plan_minutes"] * 60,
        gaia_compatible=gaia,
        start_index=given["start_index"],
        cache_dir=given["cache_dir"] or _user_cache(),
        workers=workers,
        tables=_stored(given) if given["stored_signals"] else None,
    )


def _user_cache() -> Path:
    import os

    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "gridshift" / "backtest"


def _stored(given: dict[str, Any]) -> Any:
    """The signals that the configured database has, a year before the start too: forecasts learn from it."""
    from contextlib import closing
    from datetime import timedelta

    from dispatcher.backtest.signals import from_store
    from dispatcher.clock import SystemClock
    from signals.store import SignalStore

    start = time_option(given["start"], "--start")
    assert start is not None  # checked by the caller
    end = start + timedelta(days=given["days"] + 28)
    regions = _names(given["regions"], "--regions")
    with closing(open_store(load_config(given["config_path"]))) as store:
        return from_store(SignalStore(store.engine), regions, start - timedelta(days=366), end, SystemClock().now())


def _settings(given: dict[str, Any]) -> Settings:
    from policies.world import Settings

    for flag in ("carbon_price", "price_weight", "daily_carbon_kg", "daily_cost", "slack", "launch_s", "horizon_hours"):
        value = given[flag]
        if value is not None and (not math.isfinite(value) or value < 0 or (flag == "horizon_hours" and value == 0)):
            raise click.BadParameter(f"{value}: must be a number from 0 on", param_hint=f"--{flag.replace('_', '-')}")
    if given["price_weight"] == 0 and given["carbon_price"] == 0:
        given = {**given, "carbon_price": 1.0}  # money counts nothing, so that any price of carbon orders plans alike
    return Settings(
        horizon_s=round(given["horizon_hours"] * 3600),
        currency=given["currency"] or "EUR",
        carbon_price=given["carbon_price"],
        price_weight=given["price_weight"],
        daily_carbon_kg=given["daily_carbon_kg"],
        daily_cost=given["daily_cost"],
        runtime_slack=given["slack"],
        launch_s=given["launch_s"],
    )


def _names(text: str, flag: str) -> tuple[str, ...]:
    found = tuple(part.strip() for part in text.split(","))
    if not all(found):
        raise click.BadParameter(f"{text!r}: give names with commas between them", param_hint=flag)
    return found


def _number(text: str, flag: str, kind: Callable[[str], T]) -> T:
    try:
        value = kind(text)
        if math.isfinite(value):  # type: ignore[arg-type]
            return value
    except ValueError:
        pass
    raise click.BadParameter(f"{text!r} is not a number", param_hint=flag)


def _numbers(text: str | None, flag: str) -> list[float]:
    made = [_number(part, flag, float) for part in _names(text, flag)] if text else []
    if any(value < 0 for value in made):
        raise click.BadParameter(f"{text!r}: must be numbers from 0 on", param_hint=flag)
    return made


def _by_region(texts: Sequence[str], flag: str, kind: Callable[[str], T]) -> dict[str, T]:
    """ "8" for all regions, "north=8" for one."""
    made: dict[str, T] = {}
    for text in texts:
        region, equals, value = text.rpartition("=")
        if equals and not region:
            raise click.BadParameter(f"{text!r} must be N or REGION=N", param_hint=flag)
        if region in made:
            raise click.BadParameter(f"{text!r}: {region or 'all regions'} is given twice", param_hint=flag)
        made[region] = _number(value, flag, kind)
    return made


def _cap(text: str) -> CapPoint:
    from policies.world import CapPoint

    parts = text.split(":")
    if len(parts) != 3:
        raise click.BadParameter(f"{text!r} must be CAP:DRAW:SPEED, such as 0.7:0.72:0.93", param_hint="--cap")
    cap, draw, speed = (_number(part, "--cap", float) for part in parts)
    if not (0 < cap <= 1 and 0 < draw <= 1 and 0 < speed <= 1):
        raise click.BadParameter(f"{text!r}: all three must be above 0 and at most 1", param_hint="--cap")
    return CapPoint(cap, draw, speed)


def _writable(path: Path) -> None:
    """Say before a long run, not after it, that the report has no place."""
    if not path.resolve().parent.is_dir():
        raise click.BadParameter(f"{str(path)!r}: there is no such folder", param_hint="--report")
    try:
        path.open("a").close()
    except OSError as error:
        raise click.BadParameter(f"{str(path)!r}: {error.strerror or error}", param_hint="--report") from None


class _Bars:
    """A bar for what is being prepared and one a policy, with the time left; nothing at all where there is no terminal."""

    def __init__(self) -> None:
        from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

        from dispatcher.render import console

        out = console(stderr=True)
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            TaskProgressColumn(),
            TimeRemainingColumn(elapsed_when_finished=True),
        )
        self._bars = Progress(*columns, console=out, transient=True, disable=not out.is_terminal)
        self._known: dict[str, Any] = {}

    def __enter__(self) -> _Bars:
        self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bars.stop()

    def prepare(self, what: str, done: int, of: int) -> None:
        """``done`` of ``of`` parts of a preparation."""
        self._show(what, done, of)

    def policy(self, label: str, share: float) -> None:
        """A policy's run is done up to ``share``."""
        self._show(label, share, 1.0)

    def _show(self, what: str, done: float, of: float) -> None:
        if what not in self._known:
            self._known[what] = self._bars.add_task(what, total=of)
        self._bars.update(self._known[what], completed=done, total=of)


@backtest.command("export")
@click.option("--output", type=click.Path(dir_okay=False, path_type=Path), metavar="CSV", help="Where to; default: stdout.")
@config_option
@json_option
def backtest_export(output: Path | None, config_path: Path | None, as_json: bool) -> None:
    """Write the jobs that succeeded here as a trace to backtest with.

    It reads the configured database; a control plane may use it at the same time.
    """
    from contextlib import closing

    from dispatcher.backtest.traces import export

    if output is not None and not output.resolve().parent.is_dir():
        raise click.BadParameter(f"{str(output)!r}: there is no such folder", param_hint="--output")
    with closing(open_store(load_config(config_path))) as store:
        text, left_out = export(_all_jobs(store), store.attempts)
    count = max(0, text.count("\n") - 1)
    if output is not None:
        try:
            output.write_text(text, encoding="utf-8")
        except OSError as error:
            fail(f"{output}: {error.strerror or error}", FAILURE)
    if as_json:
        where = {"csv": text} if output is None else {"output": str(output)}
        print_json({"jobs": count, "left_out": list(left_out), **where})
        return
    if output is None:
        click.echo(text, nl=False)
    for sentence in left_out:
        click.echo(sentence, err=True)
    if output is not None:
        click.echo(f"{count:,} jobs written to {output}", err=True)


def _all_jobs(store: Any) -> list[Any]:
    """Every job of the store, page by page."""
    found: list[Any] = []
    cursor = None
    while True:
        page = store.page(cursor=cursor, limit=1000)
        found += page.jobs
        cursor = page.next_cursor
        if cursor is None:
            return found
