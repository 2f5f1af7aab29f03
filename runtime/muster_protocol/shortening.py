"""A failure's own words in the room that there is. What tells most of a traceback stands at its two ends: the script's
frame, and what was raised; and of a long line at its begin, as in torch's lists of missing keys."""

from __future__ import annotations

from typing import Final

LINE: Final = 300
"""Characters that a line keeps where a text has to lose some."""
_GAP: Final = " … "
_LINES_GAP: Final = "  …"


def shortened(text: str, most: int) -> str:
    """`text` in at most so many characters: long lines lose their middles, then the text its middle lines."""
    if len(text) <= most:
        return text
    if "\n" not in text:
        return _without_middle(text, most)
    lines = [_without_middle(line, LINE) for line in text.split("\n")]
    if len(joined := "\n".join(lines)) <= most:
        return joined
    head = _fitting(lines, (most - len(_LINES_GAP)) // 2)
    tail = _fitting(lines[::-1], most - len(_LINES_GAP) - 1 - sum(len(line) + 1 for line in head))[::-1]
    if not head or not tail:
        return _without_middle(text, most)
    return "\n".join([*head, _LINES_GAP, *tail])


def _fitting(lines: list[str], most: int) -> list[str]:
    """The first of the lines that come to so many characters with the ends of each."""
    taken = 0
    for count, line in enumerate(lines):
        taken += len(line) + 1
        if taken > most + 1:
            return lines[:count]
    return lines


def _without_middle(line: str, most: int) -> str:
    if len(line) <= most:
        return line
    kept = most - len(_GAP)
    if kept < 2:
        return line[: max(0, most)]
    end = kept // 3
    return f"{line[: kept - end]}{_GAP}{line[-end:] if end else ''}"
