"""Forecasts of price and carbon with quantiles, up to seven days ahead, learned from the series' own past.

``fit`` makes a ``Model`` from a ``History``; ``Model.predict`` lays its forecast on slots. Pure: no clock, no feeds, no store.
"""

from signals.forecasting.grid import History
from signals.forecasting.model import MAX_DAYS, QUANTILES, Forecast, Model, fit

__all__ = ["MAX_DAYS", "QUANTILES", "Forecast", "History", "Model", "fit"]
