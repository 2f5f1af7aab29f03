"""Files that people write, and what is wrong with their text: a byte that is no UTF-8, a key that stands twice."""

from __future__ import annotations

from collections.abc import Hashable
from pathlib import Path
from typing import Any

import yaml
from yaml.constructor import BaseConstructor


class WrongLine(yaml.YAMLError):
    """A sentence: in which line, what is wrong there, and how to mend it."""


class Once(BaseConstructor):
    """Stands before a loader of YAML's, which by itself drops the first of two alike keys without a word, and has it
    raise `WrongLine`."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        lines: dict[str, int] = {}
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                continue  # the reader itself refuses it
            line = key.start_mark.line + 1
            if key.value in lines:
                raise WrongLine(
                    f"line {line}: {key.value!r} stands in line {lines[key.value]} already; leave one of them"
                )
            lines[key.value] = line
        return super().construct_mapping(node, deep=deep)


def undecoded(path: Path) -> str:
    """A sentence about a file that is not in UTF-8. It is read again as a whole: where that was done in parts, the
    error met counts from the last of these."""
    content = path.read_bytes()
    try:
        content.decode("utf-8")
    except UnicodeDecodeError as error:
        content = content[: error.start + 1]
    return f"{path}, line {len(content.splitlines())}: it is not in UTF-8; save it in UTF-8"
