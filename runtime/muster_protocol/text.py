"""Text that can be passed on. JSON may hold halves of surrogate pairs, which no encoding has: a script may print them,
and may write its own last word."""

from __future__ import annotations


def encodable(text: str) -> str:
    """`text` with a question mark for each half of a surrogate pair."""
    return text.encode("utf-8", "replace").decode()
