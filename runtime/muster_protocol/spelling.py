"""Answers a name that does not exist with those that do: the one that was meant, and no more than a person reads."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Final

MOST: Final = 10
"""Names in one sentence."""
ALIKE: Final = 0.6
"""Least likeness, by difflib's ratio from 0 to 1, of a name that is offered."""


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The one of `known` that was most likely meant by `name`, in whatever case; None where none is near."""
    by_case = {one.lower(): one for one in sorted(known, reverse=True)}
    found = difflib.get_close_matches(name.lower(), by_case, n=1, cutoff=ALIKE)
    return by_case[found[0]] if found else None


def there_are(name: str, known: Iterable[str]) -> str:
    """What follows a semicolon after "there is no NAME": `did you mean 'b'? There are: a, b`, or `there are none`."""
    names = sorted(known)
    if not names:
        return "there are none"
    more = f", and {len(names) - MOST} more" if len(names) > MOST else ""
    listed = f"here are: {', '.join(names[:MOST])}{more}"
    meant = nearest(name, names)
    return f"did you mean {meant!r}? T{listed}" if meant is not None else f"t{listed}"
