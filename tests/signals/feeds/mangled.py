"""Good text documents (XML, CSV) made bad: parts cut out, doubled, or replaced by what does not belong there."""

import re

from hypothesis import strategies as st

_INSTEAD = st.one_of(
    st.sampled_from(
        [b"", b"-1", b"0", b"999999999999", b"NaN", b"1e99", b"\x00", b"\xff", b"2026-13-45", b"9999-12-31T23:59Z"]
    ),
    st.binary(max_size=6),
)


def mangled(data: st.DataObject, document: bytes) -> bytes:
    """``document`` with one to three of its tokens (what stands between tags, quotes, commas and lines) dropped, doubled or
    replaced, and sometimes cut short."""
    tokens = re.findall(rb"[^<>,\n\"]+|.", document, re.DOTALL)
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(tokens) - 1))
        match data.draw(st.sampled_from(["drop", "double", "replace"])):
            case "drop":
                tokens[at] = b""
            case "double":
                tokens[at] *= 2
            case _:
                tokens[at] = data.draw(_INSTEAD)
    whole = b"".join(tokens)
    return whole[: data.draw(st.integers(0, len(whole)))] if data.draw(st.integers(0, 3)) == 0 else whole
