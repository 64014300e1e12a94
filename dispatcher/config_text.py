"""Where each key stands in a TOML text, so that a complaint can name its line.

It expects text that tomllib has accepted, and knows nothing of what the keys mean.
"""

from collections.abc import Mapping

Location = tuple[str | int, ...]

_CLOSERS = {"[": "]", "{": "}"}


class _Scanner:
    """Walks over statements of valid TOML and notes the line of each table header and key."""

    def __init__(self, text: str) -> None:
        self.text, self.at = text, 0
        self.lines: dict[Location, int] = {}
        self.counts: dict[Location, int] = {}

    def run(self) -> dict[Location, int]:
        table: Location = ()
        while self._skip_blank():
            line = self.text.count("\n", 0, self.at) + 1
            if self.text.startswith("[[", self.at):
                self.at += 2
                keys = self._keys("]")
                parent = self._resolve(keys[:-1])
                index = self.counts.get((*parent, keys[-1]), 0)
                self.counts[(*parent, keys[-1])] = index + 1
                table = (*parent, keys[-1], index)
                self.lines[table] = line
                self.at += 2
            elif self.text[self.at] == "[":
                self.at += 1
                table = self._resolve(self._keys("]"))
                self.lines.setdefault(table, line)
                self.at += 1
            else:
                self.lines[table + tuple(self._keys("="))] = line
                self.at += 1
                self._value()
            self._to_line_end()
        return self.lines

    def _resolve(self, keys: list[str]) -> Location:
        """The location of a header's keys: an array of tables means its latest entry."""
        location: Location = ()
        for key in keys:
            location = (*location, key)
            if location in self.counts:
                location = (*location, self.counts[location] - 1)
        return location

    def _skip_blank(self) -> bool:
        while self.at < len(self.text):
            if self.text[self.at] == "#":
                self._to_line_end()
            elif self.text[self.at].isspace():
                self.at += 1
            else:
                return True
        return False

    def _to_line_end(self) -> None:
        end = self.text.find("\n", self.at)
        self.at = len(self.text) if end < 0 else end + 1

    def _keys(self, stop: str) -> list[str]:
        """A dotted key up to ``stop``, which is left unread."""
        keys, word = [], ""
        while self.text[self.at] != stop:
            char = self.text[self.at]
            if char in "\"'":
                start = self.at
                self._string()
                word = self.text[start + 1 : self.at - 1]
                continue
            if char == ".":
                keys.append(word)
                word = ""
            elif not char.isspace():
                word += char
            self.at += 1
        return [*keys, word]

    def _string(self) -> None:
        quote = self.text[self.at]
        if self.text.startswith(quote * 3, self.at):
            self.at += 3
            while not self.text.startswith(quote * 3, self.at):
                self.at += 2 if quote == '"' and self.text[self.at] == "\\" else 1
            self.at += 3
            while self.text.startswith(quote, self.at):  # up to two quotes may stand before the closing three
                self.at += 1
            return
        self.at += 1
        while self.text[self.at] != quote:
            self.at += 2 if quote == '"' and self.text[self.at] == "\\" else 1
        self.at += 1

    def _value(self) -> None:
        """Step over a value, which may span lines; a comment at its end is left for the caller."""
        open_brackets: list[str] = []
        while self.at < len(self.text):
            char = self.text[self.at]
            if char in "\"'":
                self._string()
                continue
            if char in _CLOSERS:
                open_brackets.append(_CLOSERS[char])
            elif open_brackets and char == open_brackets[-1]:
                open_brackets.pop()
            elif char == "#" and open_brackets:
                self._to_line_end()
                continue
            elif char in "#\n" and not open_brackets:
                return
            self.at += 1


def key_lines(text: str) -> dict[Location, int]:
    """Line number (from 1) of each key and table of ``text``; an array of tables counts its entries from 0."""
    return _Scanner(text).run()


def line_of(lines: Mapping[Location, int], location: Location) -> int | None:
    """The line of ``location``, or of the nearest thing around it that has one."""
    for length in range(len(location), 0, -1):
        if location[:length] in lines:
            return lines[location[:length]]
    return None


def dotted(location: Location) -> str:
    """``("region", 1, "feed")`` as ``region[1].feed``."""
    text = ""
    for part in location:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text
