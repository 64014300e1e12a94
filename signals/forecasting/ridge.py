"""Ridge regressions of every hour of a day, at several cut-offs of the past and towards several priors, in one go.

Each expert is the same regression shrunk towards another simple forecast: where the data say little, the 7-day mean, a slower
mean or the last day is what remains. The Gram matrix is shared, so a further expert costs one more right-hand side.
"""

import numpy as np

from signals.forecasting.features import OWN_LAST, OWN_SLOW, Design
from signals.forecasting.grid import Floats

#: Penalty by days ahead, as a share of each regressor's own sum of squares: the further ahead, the less the past can teach.
PENALTY = (0.3, 1.0, 3.0, 3.0, 3.0, 3.0, 3.0)
EXPERTS = 4
#: How far outside of its past range a regressor may be, as a share of that range.
ODDER = 0.5


def priors(features: int, horizon: int) -> Floats:
    """(features, experts): coefficients that stand for the 7-day mean, the slow mean, the last day, and a blend with it."""
    out = np.zeros((features, EXPERTS))
    out[OWN_SLOW, 1] = 1.0
    out[OWN_LAST, 2] = 0.5**horizon
    out[OWN_LAST, 3] = 1.0
    return out


def experts(design: Design, targets: Floats, weights: Floats, horizon: int, cutoffs: list[int], first_row: int) -> list[Floats]:
    """For each cut-off c (ascending) the forecasts (rows, 24, experts) of rows c up to the next one, the last up to the end.

    ``targets[b]`` is what horizon ``horizon`` of row b came to (deviation from the base), ``weights[b, hour]`` its weight, 0
    where unknown. The regression at c uses rows whose target ended before block c: none of it was unknown then.
    """
    rows = design.rows
    prior = priors(rows.shape[2], horizon)
    features = rows.shape[2]
    gram = np.zeros((24, features, features))
    moment = np.zeros((24, features, 1))
    grams, moments = [], []
    begin = first_row
    for cutoff in cutoffs:
        end = max(cutoff - horizon + 1, begin)
        part = rows[begin:end].transpose(1, 0, 2)
        weighted = (part * weights[begin:end].T[..., None]).transpose(0, 2, 1)
        gram = gram + weighted @ part
        moment = moment + weighted @ targets[begin:end].T[..., None]
        grams.append(gram)
        moments.append(moment)
        begin = end
    every, right = np.stack(grams), np.stack(moments)
    diagonal = np.einsum("chff->chf", every)
    penalised = every.copy()
    # the small constant keeps a regressor that never moved (a constant series) from making it singular
    np.einsum("chff->chf", penalised)[...] += PENALTY[horizon - 1] * diagonal + 1e-6
    # the forecast's own row may be odder than any before it; how much odder is bounded, as nothing was learned there
    lowest, highest = rows[first_row:-1].min(axis=0), rows[first_row:-1].max(axis=0)
    room = ODDER * (highest - lowest)
    rows = np.concatenate([rows[:-1], np.clip(rows[-1:], lowest - room, highest + room)])
    coefficients = prior + np.linalg.solve(penalised, right - every @ prior)
    ends = [*cutoffs[1:], len(rows)]
    return [
        design.base[a:b, :, None] + np.einsum("bhf,hfe->bhe", rows[a:b], coefficients[index])
        for index, (a, b) in enumerate(zip(cutoffs, ends, strict=True))
    ]
