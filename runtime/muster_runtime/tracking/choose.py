"""From `tracking.uri` to the tracker that takes it. Only that one is imported."""

from __future__ import annotations

from importlib import import_module
from typing import Any, Final

from muster_runtime.tracking.tracker import Tracker, TrackerError

KNOWN: Final = "http(s)://HOST for MLflow, wandb://ENTITY/PROJECT, or python://MODULE:NAME for a tracker of your own"


def tracker(uri: str) -> Tracker:
    """Raises TrackerError where there is none, or none can be made."""
    scheme, _, rest = uri.partition("://")
    if scheme in ("http", "https") and rest:
        from muster_runtime.tracking.mlflow_rest import MLflow

        return MLflow(uri)
    if scheme == "wandb" and rest:
        from muster_runtime.tracking.wandb_client import WandB

        return WandB(uri)
    if scheme == "python" and rest:
        return _own(uri, rest)
    raise TrackerError(f"tracking.uri is {uri!r}; write {KNOWN}")


def _own(uri: str, rest: str) -> Tracker:
    """`NAME` of `MODULE`, called with the URI; what follows a `?` there is the tracker's own."""
    module, _, name = rest.partition("?")[0].partition(":")
    try:
        made: Any = getattr(import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise TrackerError(f"tracking.uri is {uri}, but the training image has no {rest}: {error}") from error
    own: Tracker = made(uri)
    return own
