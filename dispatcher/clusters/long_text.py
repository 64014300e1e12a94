"""The one long string of a JSON object such as ``{"logs": ".."}``, piece by piece, so that nobody has to hold all of it."""

import codecs
import json
import re

#: What may come before the string: its object's beginning and its key. Longer than this, it is something else.
_HEAD = re.compile(r'\s*\{\s*"(\w+)"\s*:\s*"')
_MAX_HEAD = 256
#: Whole characters and escapes; a first half of a surrogate pair only together with its other half.
_WHOLE = re.compile(
    r'(?:[^"\\]|\\[^u]|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|\\u(?![dD][89abAB])[0-9a-fA-F]{4})+'
)
#: A half that its other half does not follow: no text, but JSON can say it.
_LONE = re.compile(r"\\u[dD][89abAB][0-9a-fA-F]{2}(?:[^\\]|\\[^u]|\\u(?![dD][c-fC-F])[0-9a-fA-F]{4})")


class LongText:
    """Fed with the bytes of the object in order. ``feed`` returns what more of the string is known."""

    def __init__(self, key: str) -> None:
        self._key, self._inside, self._left = key, False, ""
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        #: Whether the string's end has come.
        self.ended = False

    def feed(self, data: bytes) -> str:
        """Take the next bytes. Raises ValueError when this is no such object."""
        if self.ended:
            return ""
        self._left += self._decoder.decode(data)
        if not self._inside:
            head = _HEAD.match(self._left)
            if head is None and len(self._left) < _MAX_HEAD:
                return ""
            if head is None or head[1] != self._key:
                raise ValueError(f"it does not begin with the text {self._key!r}")
            self._inside, self._left = True, self._left[head.end() :]
        pieces = []
        while not self.ended and (piece := self._next()):
            pieces.append(piece)
        return "".join(pieces)

    def _next(self) -> str:
        found = _WHOLE.match(self._left)
        if found is None:
            if self._left.startswith('"'):
                self.ended, self._left = True, ""
            elif _LONE.match(self._left):
                self._left = self._left[6:]
                return "\ufffd"
            return ""
        self._left = self._left[found.end() :]
        text: str = json.loads(f'"{found[0]}"', strict=False)
        return text
