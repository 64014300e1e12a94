"""A small reader of XML from strangers: no document types, no entities, bounded size, depth and number of elements.

It knows no vocabulary; names come without their namespaces.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from xml.parsers import expat

from dispatcher.dr.model import Refused

MAX_BYTES = 1 << 20
_MAX_DEPTH = 64
_MAX_ELEMENTS = 20_000


@dataclass(slots=True)
class Element:
    """An element: its local name, the text right in it, its attributes by local name, its children."""

    name: str
    attributes: dict[str, str] = field(default_factory=dict)
    text: str = ""
    children: list["Element"] = field(default_factory=list)

    def all(self, *path: str) -> Iterator["Element"]:
        """The descendants at ``path``, each name a child of the one before."""
        for child in self.children:
            if child.name == path[0]:
                if len(path) == 1:
                    yield child
                else:
                    yield from child.all(*path[1:])

    def first(self, *path: str) -> "Element | None":
        """The first of them, or None."""
        return next(self.all(*path), None)

    def word(self, *path: str) -> str | None:
        """The text there without blanks around it, or None where nothing is or it is empty."""
        found = self.first(*path)
        return (found.text.strip() or None) if found is not None else None

    def find(self, name: str) -> Iterator["Element"]:
        """Every element of that name in the tree, this one too, in the document's order."""
        if self.name == name:
            yield self
        for child in self.children:
            yield from child.find(name)


def parse(body: bytes) -> Element:
    """The root element. Raises Refused for what is no XML, and for what could harm whoever reads it."""
    if len(body) > MAX_BYTES:
        raise Refused("too_large", f"body: {len(body)} bytes: at most {MAX_BYTES}")
    parser = expat.ParserCreate(namespace_separator="\n")
    parser.buffer_text = True
    builder = _Builder()
    parser.StartDoctypeDeclHandler = _no_doctype
    parser.EntityDeclHandler = _no_doctype
    parser.ExternalEntityRefHandler = _no_entity
    parser.StartElementHandler = builder.start
    parser.EndElementHandler = builder.end
    parser.CharacterDataHandler = builder.text
    try:
        parser.Parse(body, True)
    except (expat.ExpatError, LookupError, ValueError) as error:  # the latter two: an encoding that is none
        raise Refused("bad_xml", f"body: must be XML: {error}") from None
    if builder.root is None:
        raise Refused("bad_xml", "body: must be XML: no element")
    return builder.root


def _no_doctype(*_: object) -> None:
    raise Refused("unsafe_xml", "body: document types and entities are not accepted")


def _no_entity(*_: object) -> int:
    raise Refused("unsafe_xml", "body: references to other documents are not accepted")


class _Builder:
    def __init__(self) -> None:
        self.root: Element | None = None
        self._open: list[Element] = []
        self._count = 0

    def start(self, name: str, attributes: dict[str, str]) -> None:
        self._count += 1
        if len(self._open) >= _MAX_DEPTH or self._count > _MAX_ELEMENTS:
            raise Refused("too_large", f"body: at most {_MAX_ELEMENTS} elements, {_MAX_DEPTH} deep")
        element = Element(_local(name), {_local(key): value for key, value in attributes.items()})
        if self._open:
            self._open[-1].children.append(element)
        else:
            self.root = element
        self._open.append(element)

    def end(self, _: str) -> None:
        self._open.pop()

    def text(self, data: str) -> None:
        if self._open:
            self._open[-1].text += data


def _local(name: str) -> str:
    return name.rpartition("\n")[2]
