"""How good the forecasts of price and carbon are, on open data, against repeating days and their means in the same run.

Each forecast is made at a daily midnight origin from values before it; nothing is tuned on the scored period (the form was
chosen on what lies before it). ``model`` sees the series alone; ``model_mix`` sees the generation by fuel of the past as well.
``--quick`` scores each series at every 14th origin and takes under a minute.
"""

import argparse
import csv
import os
import statistics
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # many small systems: threads would only wait for each other

import numpy as np
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).parents[2]))

from signals.forecasting import History, fit
from tests.benchmarks.common import data_folder, report, without_data

Floats = NDArray[np.float64]
DAYS = 4
ZONES = {
    "CISO": "America/Los_Angeles",
    "ERCO": "America/Chicago",
    "PJM": "America/New_York",
    "MISO": "America/Chicago",
    "BPAT": "America/Los_Angeles",
    "SOCO": "America/New_York",
}
FUELS = ("WND", "SUN", "WAT", "NG", "COL", "NUC")
MARKETS = ("NP", "PJM", "BE", "DE")
#: From the series alone, and with the fuel mix of the past beside it.
MODELS = ("model", "model_mix")
NAIVE = ("repeat_day", "repeat_week", "week_mean", "blend")


@dataclass(frozen=True)
class Series:
    """One file: hourly values from ``start``; the LEAR column of a market, for comparison only; an area's fuel mix."""

    kind: str
    name: str
    start: datetime
    values: Floats
    lear: Floats | None = None
    mix: tuple[History, ...] = ()


def load(folder: Path, kind: str, name: str) -> Series:
    """Read a file; an empty value is NaN."""
    path = folder / ("carbon" if kind == "carbon" else "prices") / (f"{name}_2022.csv" if kind == "carbon" else f"{name}.csv")
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    time_column, column = ("timestamp", "avg_CI") if kind == "carbon" else ("local_time", "real_price")
    start = datetime.fromisoformat(rows[0][time_column])
    # the markets' rows are local with the clock changes taken out: 24 a day, as in UTC
    start = start.replace(tzinfo=UTC) if start.tzinfo is None else start.astimezone(UTC)
    lear = None if kind == "carbon" else np.array([float(row["lear_ensemble"]) for row in rows])
    mix = _mix(start, rows) if kind == "carbon" else ()
    return Series(kind, name, start, np.array([float(row[column] or "nan") for row in rows]), lear, mix)


def _mix(start: datetime, rows: list[dict[str, str]]) -> tuple[History, ...]:
    """Shares of generation by fuel, and the logarithm of it all; NaN where nothing was generated or said."""
    fuels = np.array([[float(row[fuel] or "nan") for fuel in FUELS] for row in rows])
    total = np.nansum(fuels, axis=1)
    total[total <= 0] = np.nan
    return tuple(History(start, 3600, column) for column in [*(fuels / total[:, None]).T, np.log(total)])


def naive(held: Floats, day: int) -> dict[str, Floats]:
    """The simple forecasts from the midnight before ``day``, (DAYS, 24) each; missing inputs held."""
    last, week = held[day - 1], held[day - 7 : day].mean(axis=0)
    return {
        "repeat_day": np.tile(last, (DAYS, 1)),
        "repeat_week": held[day - 7 : day - 7 + DAYS],
        "week_mean": np.tile(week, (DAYS, 1)),
        "blend": np.array([0.5**ahead * last + (1 - 0.5**ahead) * week for ahead in range(1, DAYS + 1)]),
    }


def hold(values: Floats) -> Floats:
    """Missing values replaced by the one before."""
    known = np.where(np.isfinite(values), np.arange(len(values)), 0)
    out: Floats = values[np.maximum.accumulate(known)]
    return out


def score(series: Series, first: int, last: int, step: int) -> tuple[str, dict[str, list[list[float]]], list[float]]:
    """Errors of every method by origin and day ahead (MAPE % or MAE), the share inside the band, and seconds of each fit."""
    carbon = series.kind == "carbon"
    history = History(series.start, 3600, series.values)
    blocks, held = series.values.reshape(-1, 24), hold(series.values).reshape(-1, 24)
    out: dict[str, list[list[float]]] = {}
    taken = []
    for day in range(first, last - DAYS + 1, step):
        origin = series.start + timedelta(days=day)
        actual = blocks[day : day + DAYS].copy()
        actual[~np.isfinite(actual) | (carbon & (actual == 0))] = np.nan
        found = naive(held, day)
        for name in MODELS if carbon else MODELS[:1]:
            begun = time.perf_counter()
            model = fit(
                history,
                origin,
                zone=ZONES[series.name] if carbon else "UTC",
                positive=carbon,
                companions=series.mix if name == "model_mix" else (),
                days=DAYS,
            )
            forecast = model.predict(origin, 24 * DAYS, 3600)
            taken.append(time.perf_counter() - begun)
            found[name] = forecast.point.reshape(DAYS, 24)
            low, high = (forecast.quantiles[i].reshape(DAYS, 24) for i in (0, 2))
            inside = np.where(np.isfinite(actual), (low <= actual) & (actual <= high), np.nan)
            out.setdefault(f"{name}_inside", []).append(np.nanmean(inside, axis=1).tolist())
        if series.lear is not None:
            found["lear"] = series.lear.reshape(-1, 24)[day : day + DAYS]
        for name, values in found.items():
            missed = np.abs(values - actual) / (np.abs(actual) / 100 if carbon else 1)
            out.setdefault(name, []).append(np.nanmean(missed, axis=1).tolist())
    return f"{series.kind} {series.name}", out, taken


def speed(series: Series) -> dict[str, float]:
    """Seconds of a fit over all seven days from all the history there is, and ms of a 96 h forecast in 15-minute slots."""
    carbon = series.kind == "carbon"
    end = series.start + timedelta(hours=len(series.values))
    history = History(series.start, 3600, series.values)
    fits, forecasts = [], []
    for _ in range(5):
        begun = time.perf_counter()
        model = fit(history, end, zone=ZONES[series.name] if carbon else "UTC", positive=carbon)
        fits.append(time.perf_counter() - begun)
        begun = time.perf_counter()
        model.predict(end, 4 * 96, 900)
        forecasts.append(time.perf_counter() - begun)
    return {"refit_s": statistics.median(fits), "forecast_96h_ms": statistics.median(forecasts) * 1e3}


def main() -> int:
    """Run and report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="every 14th origin; under a minute")
    parser.add_argument("--development", action="store_true", help="score the early part on which the form was chosen instead")
    parser.add_argument("--step", type=int, help="score every n-th origin")
    arguments = parser.parse_args()
    folder = data_folder("forecast")
    if folder is None:
        return without_data("forecast")
    step = arguments.step or (14 if arguments.quick else 1)
    every = [load(folder, "carbon", name) for name in ZONES] + [load(folder, "price", name) for name in MARKETS]
    spans = {"carbon": (75, 181), "price": (120, 364)} if arguments.development else {"carbon": (181, 365), "price": (364, 728)}
    figures = speed(every[0])
    scores: dict[str, dict[str, Floats]] = {}
    with ProcessPoolExecutor(min(2, os.cpu_count() or 1)) as pool:
        jobs = [pool.submit(score, series, *spans[series.kind], step) for series in every]
        for job in jobs:
            name, found, taken = job.result()
            scores[name] = {method: np.mean(rows, axis=0) for method, rows in found.items()}
            if sys.stderr.isatty() or arguments.step:
                print(f"{name}: {len(taken)} origins, {statistics.mean(taken):.3f} s each", file=sys.stderr, flush=True)
    more, wanted = judge(scores)
    method = (
        f"{len(scores)} series, every {step}. daily origin from day {spans['carbon'][0]} of 2022 (carbon) and from day "
        f"{spans['price'][0]} (price), refit at each on the past only; model sees the series alone, model_mix the fuel mix of "
        "the past too, and the mean over areas is judged for it; carbon MAPE over 96 h against the blend (0.5^day on the last "
        "day, rest 7-day mean), price MAE of day 1 against the best of repeat day, repeat week and 7-day mean; LEAR's ensemble "
        "has outside data and is for comparison only; ratios are shares"
    )
    return report("forecast", figures | more, wanted, method)


def judge(scores: dict[str, dict[str, Floats]]) -> tuple[dict[str, float], list[tuple[str, str, float]]]:
    """Figures by series and method, and the targets."""
    figures: dict[str, float] = {}
    wanted: list[tuple[str, str, float]] = [("refit_s", "<=", 10), ("forecast_96h_ms", "<=", 50)]
    means: dict[str, list[float]] = {}
    for name, found in scores.items():
        kind, place = name.split(" ")
        key, unit = f"{kind}_{place}", "mape" if kind == "carbon" else "mae"
        for method in (*MODELS, *NAIVE, "lear"):
            if method not in found:
                continue
            # the LEAR column is a day-ahead forecast: its later days were made a day later, so only the first compares
            for day in range(1 if method == "lear" else DAYS):
                figures[f"{key}_{method}_{unit}_day{day + 1}"] = float(found[method][day])
            if method != "lear":
                figures[f"{key}_{method}_{unit}_96h"] = float(found[method].mean())
        for method in MODELS:
            if method not in found:
                continue
            label, model = key + method.removeprefix("model"), found[method]
            coverage = float(found[f"{method}_inside"].mean())
            figures |= {f"{label}_coverage": coverage, f"{label}_coverage_miss": abs(coverage - 0.8)}
            wanted.append((f"{label}_coverage_miss", "<=", 0.05))
            if kind == "carbon":
                ratios = {
                    "to_blend": float(model.mean() / found["blend"].mean()),
                    "day1_to_naive": float(model[0] / min(found["repeat_day"][0], found["week_mean"][0])),
                }
                means.setdefault(f"{kind}{method.removeprefix('model')}_to_blend_mean", []).append(ratios["to_blend"])
                wanted += [(f"{label}_to_blend", "<=", 0.95), (f"{label}_day1_to_naive", "<=", 1.0)]
            else:
                best = min(float(found[simple][0]) for simple in NAIVE[:3])
                ratios = {"day1_to_naive": float(model[0]) / best}
                means.setdefault("price_day1_to_naive_mean", []).append(ratios["day1_to_naive"])
                wanted.append((f"{label}_day1_to_naive", "<=", 0.92))
                for day in range(1, DAYS):
                    ratios[f"day{day + 1}_to_week_mean"] = float(model[day] / found["week_mean"][day])
                    wanted.append((f"{label}_day{day + 1}_to_week_mean", "<", 1.0))
            figures |= {f"{label}_{ratio}": value for ratio, value in ratios.items()}
    figures |= {name: statistics.mean(values) for name, values in means.items()}
    # both ways are held to it: the series alone came close to this mean and did not reach it when this was written
    wanted += [(name, "<=", 0.90) for name in ("carbon_to_blend_mean", "carbon_mix_to_blend_mean")]
    wanted.append(("price_day1_to_naive_mean", "<=", 0.80))
    return figures, wanted


if __name__ == "__main__":
    sys.exit(main())
