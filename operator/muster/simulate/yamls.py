"""YAML files that people write: every key once, and errors that say where."""

from __future__ import annotations

from collections.abc import Hashable
from pathlib import Path
from typing import Any

import yaml

from muster.simulate.errors import SimulationError, undecoded


class _Wrong(yaml.YAMLError):
    """In which line, and what: a key stands twice in one map, of which YAML's own reader would drop the first without a
    word, or what looks like a date is none."""


class _Once(yaml.SafeLoader):
    """Refuses both."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        lines: dict[str, int] = {}
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                continue  # the reader itself refuses it
            line = key.start_mark.line + 1
            if key.value in lines:
                raise _Wrong(f"line {line}: {key.value!r} stands in line {lines[key.value]} already; leave one of them")
            lines[key.value] = line
        return super().construct_mapping(node, deep=deep)

    def construct_yaml_timestamp(self, node: yaml.ScalarNode) -> Any:
        try:
            return super().construct_yaml_timestamp(node)
        except ValueError as error:
            raise _Wrong(f"line {node.start_mark.line + 1}: there is no date {node.value}: {error}") from error


_Once.add_constructor("tag:yaml.org,2002:timestamp", _Once.construct_yaml_timestamp)


def read_yaml(path: Path, what: str) -> Any:
    """What a file says.

    Args:
        what: the file is, for people.

    Raises:
        SimulationError: it is not there, or no YAML, or says something twice, or names a date that there is not.
    """
    try:
        return yaml.load(path.read_text(encoding="utf-8"), Loader=_Once)
    except OSError as error:
        raise SimulationError(f"cannot read {what} {path}: {error.strerror}") from error
    except _Wrong as error:
        raise SimulationError(f"{path}, {error}") from error
    except UnicodeDecodeError as error:
        raise undecoded(path) from error
    except yaml.YAMLError as error:
        raise SimulationError(f"{path} is not YAML: {error}") from error
