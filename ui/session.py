"""What every page of the console stands on: the connection of this browser session, and failures told in their place.

It knows how to ask the control plane, and nothing of what the answers mean.
"""

import functools
import logging
import os
from collections.abc import Callable, Mapping
from typing import Any, ParamSpec

import streamlit as st

from ui.api import Api, ApiError
from ui.words import Json, error_box

#: Seconds between looks at what changes by itself; charts change slower, except in a replay.
LIVE_S, CHART_S, CHART_REPLAY_S = 2.0, 10.0, 3.0

log = logging.getLogger(__name__)
state = st.session_state


def api() -> Api:
    """This browser session's connection."""
    if "api" not in state:
        state.api = Api(os.environ.get("GRIDSHIFT_ADDRESS") or "http://127.0.0.1:8700", os.environ.get("GRIDSHIFT_TOKEN", ""))
    connection: Api = state.api
    return connection


def look() -> Json | ApiError:
    """The control plane's status, or why there is none."""
    try:
        status: Json = api().read("/v1/status")
        return status if status.get("now") else ApiError("its status names no time", "Do versions differ?", 500)
    except ApiError as error:
        return error


def read_or_say(what: str, path: str, params: Mapping[str, str | int] | None = None, keep_s: float = 1.0) -> Any:
    """The answer, or None after saying on the page what is unknown and why."""
    try:
        return api().read(path, params, keep_s)
    except ApiError as error:
        st.html(error_box(what, error.message, error.remedy))
        return None


P = ParamSpec("P")


def understood(part: Callable[P, None]) -> Callable[P, None]:
    """The part, with an answer of an unexpected shape told in its place: the rest of the page goes on."""

    @functools.wraps(part)
    def shown(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            part(*args, **kwargs)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            log.exception("a part of the page could not be shown")
            remedy = "Check that console and control plane have the same version; the console's log says more."
            st.html(error_box("This part", f"an answer was not understood ({type(error).__name__}: {error})", remedy))

    return shown
