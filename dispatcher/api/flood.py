"""How much one sender may send before it is refused or cut off, so that whoever floods us slows nobody else. Pure: time is
told."""

from dataclasses import dataclass


@dataclass(slots=True)
class Bucket:
    """An amount that fills up by ``per_s`` each second to ``most``, and from which is taken."""

    per_s: float
    most: float
    left: float
    at_s: float

    def take(self, amount: float, now_s: float) -> bool:
        """Take an amount; False where there is not that much, and nothing is taken then."""
        if self.left < self.most:
            self.left = min(self.most, self.left + self.per_s * max(0.0, now_s - self.at_s))
        self.at_s = now_s
        if amount > self.left:
            return False
        self.left -= amount
        return True

    def give(self, amount: float) -> None:
        """Add an amount beyond what fills up by itself; a hundred times ``most`` is all that it holds."""
        self.left = min(self.left + amount, max(self.left, 100.0 * self.most))


class Allowance:
    """What one agent may send: a frame of at most ``frame_bytes``, and frames and bytes by the second, with some at once. An
    agent sends its figures and a batch of energy rows each second. Its answer to an order is paid for by the order, for
    hundreds may be answered at once."""

    FRAMES_PER_S, FRAMES_AT_ONCE = 20.0, 100.0
    BYTES_PER_S, BYTES_AT_ONCE = float(1 << 20), float(4 << 20)

    def __init__(self, frame_bytes: int, now_s: float) -> None:
        self._frame_bytes = frame_bytes
        self._frames = Bucket(self.FRAMES_PER_S, self.FRAMES_AT_ONCE, self.FRAMES_AT_ONCE, now_s)
        self._bytes = Bucket(self.BYTES_PER_S, self.BYTES_AT_ONCE, self.BYTES_AT_ONCE, now_s)

    def ordered(self, size: int) -> None:
        """An order of this size was sent, which the agent is to answer: with a frame that tells of each of its parts, and why
        where one could not be done."""
        self._frames.give(1.0)
        self._bytes.give(4.0 * size + 4096.0)

    def excess(self, size: int, now_s: float) -> str | None:
        """Why a frame of this size is too much now, as a sentence; None when it is not."""
        if size > self._frame_bytes:
            return f"a frame has {size} characters; {self._frame_bytes} are allowed"
        if not self._frames.take(1.0, now_s):
            return f"too many frames; {self.FRAMES_PER_S:g} a second are allowed"
        if not self._bytes.take(size, now_s):
            return f"too many bytes; {self.BYTES_PER_S:.0f} a second are allowed"
        return None
