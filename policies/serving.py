"""How far batch has to step aside for interactive serving beside it."""

from enum import IntEnum


class Level(IntEnum):
    """What batch has to give; each level includes those below it."""

    CALM = 0
    HOLD = 1
    CAP = 2
    FREEZE = 3
    PAUSE = 4
