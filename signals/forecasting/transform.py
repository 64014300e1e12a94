"""Bring a series to a scale on which errors are even: logarithms for what is always positive, asinh for prices.

Asinh is near linear around the median and logarithmic far out, for both signs, so a spike counts but does not rule.
"""

from dataclasses import dataclass

import numpy as np

from signals.forecasting.grid import Floats

#: How far beyond what was ever seen a forecast may go, in units of the transformed series (about one standard deviation).
BEYOND = 1.0
#: Further than this from the middle no value counts; asinh(200) is 6.
LIMIT = 6.0


@dataclass(frozen=True)
class Transform:
    """Maps values to z and back; ``lowest`` and ``highest`` bound z on the way back."""

    log: bool
    centre: float
    scale: float
    lowest: float
    highest: float

    def forward(self, values: Floats) -> Floats:
        """Values to z, at most LIMIT from the middle: a value beyond that is a fault or a spike nobody can learn from."""
        shifted = (np.log(values) - self.centre) / self.scale if self.log else np.arcsinh((values - self.centre) / self.scale)
        return np.asarray(np.clip(shifted, -LIMIT, LIMIT))

    def back(self, z: Floats) -> Floats:
        """Z to values, at most BEYOND outside of what was seen."""
        held = np.clip(z, self.lowest, self.highest)
        out: Floats = np.exp(held * self.scale + self.centre) if self.log else self.centre + self.scale * np.sinh(held)
        return out


def transform_of(values: Floats, positive: bool) -> Transform:
    """The transform for ``values`` (finite); logarithms only when ``positive`` is asked for and all values are above zero."""
    log = positive and bool((values > 0).all())
    if log:
        logs = np.log(values)
        centre, scale = float(np.median(logs)), float(logs.std())
    else:
        centre = float(np.median(values))
        # 0.6745 makes the median absolute deviation of a normal series its standard deviation
        scale = float(np.median(np.abs(values - centre))) / 0.6745 or float(values.std())
    # a constant series has no scale of its own; any will do
    plain = Transform(log, centre, scale if scale > 1e-9 else 1.0, 0.0, 0.0)
    z = plain.forward(values)
    return Transform(plain.log, plain.centre, plain.scale, float(z.min()) - BEYOND, float(z.max()) + BEYOND)
