"""YAML files that people write: every key once, and errors that say where."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from muster.api.handwritten import Once, WrongLine, undecoded
from muster.simulate.errors import SimulationError


class _Reader(Once, yaml.SafeLoader):
    """Refuses, besides, what looks like a date and is none."""

    def construct_yaml_timestamp(self, node: yaml.ScalarNode) -> Any:
        try:
            return super().construct_yaml_timestamp(node)
        except ValueError as error:
            raise WrongLine(f"line {node.start_mark.line + 1}: there is no date {node.value}: {error}") from error


_Reader.add_constructor("tag:yaml.org,2002:timestamp", _Reader.construct_yaml_timestamp)


def read_yaml(path: Path, what: str) -> Any:
    """What a file says.

    Args:
        what: the file is, for people.

    Raises:
        SimulationError: it is not there, or no YAML, or says something twice, or names a date that there is not.
    """
    try:
        return yaml.load(path.read_text(encoding="utf-8"), Loader=_Reader)
    except OSError as error:
        raise SimulationError(f"cannot read {what} {path}: {error.strerror}") from error
    except WrongLine as error:
        raise SimulationError(f"{path}, {error}") from error
    except UnicodeDecodeError as error:
        raise SimulationError(undecoded(path)) from error
    except yaml.YAMLError as error:
        raise SimulationError(f"{path} is not YAML: {error}") from error
