"""Feeds' secrets: where the configuration says they are, and how they are kept out of what is said.

It knows variables and small files; it keeps nothing, and no message it makes holds a secret.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from signals.feeds.base import ACCESS, Feed, FeedError, Secret

#: Larger than any token; a file that is larger is another file.
_MOST_BYTES = 65536
#: A shorter "secret" stands in many innocent words.
_SHORTEST = 4


class MissingSecret(FeedError):
    """A feed cannot be asked because one of its secrets is not there; the message says how to give it."""


def resolve(feed: Feed, options: Mapping[str, Any], environ: Mapping[str, str]) -> dict[str, str]:
    """The feed's secrets by name, from the file or variable that ``options`` name, else from each secret's own variable.

    Those that these options do not need are left out. Raises MissingSecret, with one line for the first that is not there.
    """
    return {secret.name: _one(secret, options, environ) for secret in feed.secrets if secret.is_needed(options)}


def _one(secret: Secret, options: Mapping[str, Any], environ: Mapping[str, str]) -> str:
    name, file = secret.name, options.get(f"{secret.name}_file")
    variable = str(options.get(f"{name}_env") or secret.env)
    begin = f"no {name.replace('_', ' ')}"  # whoever tells it names the feed
    if file:
        try:
            with Path(str(file)).expanduser().open("rb") as opened:
                raw = opened.read(_MOST_BYTES + 1)
            text = raw.decode("utf-8-sig").strip()
        except OSError as error:
            raise MissingSecret(ACCESS, f"{begin}: {name}_file {file} cannot be read: {error.strerror}") from None
        except ValueError:  # not text; its bytes are nobody's business
            raise MissingSecret(ACCESS, f"{begin}: {name}_file {file} is not a text file") from None
        if not text or len(raw) > _MOST_BYTES or len(text.splitlines()) > 1:
            wrong = "is empty" if not text else "holds more than the secret"
            raise MissingSecret(ACCESS, f"{begin}: {name}_file {file} {wrong}")
        return text
    value = environ.get(variable, "").strip()
    if not value:
        raise MissingSecret(ACCESS, f"{begin}: set {variable} or {name}_file; get one at {secret.obtain}")
    return value


def scrub(text: str, secrets: Mapping[str, str]) -> str:
    """``text`` without any of the secrets: a provider's refusal may repeat what it refuses."""
    for name, value in secrets.items():
        if len(value) >= _SHORTEST:
            text = text.replace(value, f"({name})")
    return text
