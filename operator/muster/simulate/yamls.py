"""YAML files that people write: every key once, and errors that say where."""

from __future__ import annotations

from collections.abc import Hashable
from pathlib import Path
from typing import Any

import yaml

from muster.simulate.errors import SimulationError


class _Twice(yaml.YAMLError):
    """A key stands twice in one map: YAML's own reader would drop the first without a word."""


class _Once(yaml.SafeLoader):
    """Refuses such a key."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        lines: dict[str, int] = {}
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                continue  # the reader itself refuses it
            line = key.start_mark.line + 1
            if key.value in lines:
                raise _Twice(f"line {line}: {key.value!r} stands in line {lines[key.value]} already; leave one of them")
            lines[key.value] = line
        return super().construct_mapping(node, deep=deep)


def read_yaml(path: Path, what: str) -> Any:
    """What a file says.

    Args:
        what: the file is, for people.

    Raises:
        SimulationError: it is not there, or no YAML, or says something twice.
    """
    try:
        return yaml.load(path.read_text(encoding="utf-8"), Loader=_Once)
    except OSError as error:
        raise SimulationError(f"cannot read {what} {path}: {error.strerror}") from error
    except _Twice as error:
        raise SimulationError(f"{path}, {error}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise SimulationError(f"{path} is not YAML: {error}") from error
