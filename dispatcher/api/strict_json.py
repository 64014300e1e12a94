"""JSON as the API takes it: bounded depth, finite numbers, no key twice, text that every database and every cluster can hold.

It knows nothing of what the values mean.
"""

import json
import math
from typing import Any

from dispatcher.errors import BadInput

#: Deeper than anything that makes sense in a runtime_env, far below what exhausts a stack.
MAX_DEPTH = 64
#: What is to be done about a key that an object has more than once.
TWICE = "this key is given twice in one object; give it once"


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"the number {text[:40]} is too large")
    return number


def _no_constant(text: str) -> Any:
    raise ValueError(f"{text} is no JSON number")


class Twice(ValueError):
    """An object has a key more than once; its message is the key."""


def each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object from its keys and values (json's ``object_pairs_hook``). Raises Twice where a key comes again: nobody can say
    which of the two values was meant, and readers differ in which they take."""
    made = dict(pairs)
    if len(made) != len(pairs):
        keys = [key for key, _ in pairs]
        raise Twice(next(key for i, key in enumerate(keys) if key in keys[:i]))
    return made


_decoder = json.JSONDecoder(parse_float=_finite, parse_constant=_no_constant, object_pairs_hook=each_once)


def parse(body: bytes) -> Any:
    """The value of a JSON body. Raises BadInput with what is wrong and where."""
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError as error:
        raise BadInput([("body", f"byte {error.start}", "must be UTF-8 text")]) from None
    try:
        value = _decoder.decode(text)
    except Twice as error:
        key = str(error)[:80].encode("utf-8", "replace").decode()  # an escape can be half of a surrogate pair
        raise BadInput([("body", key, TWICE)]) from None
    except (ValueError, RecursionError) as error:
        raise BadInput([("body", text[:80], f"must be JSON: {error}")]) from None
    if text.count("{") + text.count("[") > MAX_DEPTH:
        _check_depth(value)
    if "\\u" in text:
        _check_text(value)
    return value


def parse_object(body: bytes) -> dict[str, Any]:
    """The same, for a body that must be a JSON object."""
    value = parse(body)
    if not isinstance(value, dict):
        raise BadInput([("body", type(value).__name__, "must be a JSON object")])
    return value


def _check_depth(value: Any) -> None:
    level = [value] if isinstance(value, dict | list) else []
    for _ in range(MAX_DEPTH + 1):
        inner = [item for one in level for item in (one.values() if isinstance(one, dict) else one)]
        level = [item for item in inner if isinstance(item, dict | list)]
        if not level:
            return
    raise BadInput([("body", f"nested deeper than {MAX_DEPTH}", "nest less")])


def _check_text(value: Any) -> None:
    """Escapes can smuggle in what no UTF-8 body can hold: NUL and halves of surrogate pairs."""
    if isinstance(value, str):
        if "\x00" in value or any("\ud800" <= char <= "\udfff" for char in value):
            raise BadInput([("body", value[:80], "must not contain NUL characters or unpaired surrogates")])
    elif isinstance(value, dict):
        for key, item in value.items():
            _check_text(key)
            _check_text(item)
    elif isinstance(value, list):
        for item in value:
            _check_text(item)
