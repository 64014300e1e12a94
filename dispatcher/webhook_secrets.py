"""The secrets that signed webhooks are checked with (Standard Webhooks 1.0)."""

import base64
import binascii

from standardwebhooks import Webhook

_LEAST_BYTES = 16


def checker(secret: str) -> Webhook:
    """What checks signatures made with ``secret``. Raises ValueError, saying what one must be, for what is none."""
    text = secret.removeprefix("whsec_")
    try:
        # The library would skip what is no base64, and so make a short key of a pass phrase.
        key = base64.b64decode(text + "=" * (-len(text) % 4), validate=True)
    except (binascii.Error, ValueError):
        key = b""
    if len(key) < _LEAST_BYTES:
        raise ValueError(f"must be base64 of at least {_LEAST_BYTES} bytes, such as 'whsec_...'")
    return Webhook(key)
