"""Where a run's parameters and metrics go beside Prometheus: MLflow, or another tracker."""

from __future__ import annotations

from typing import Annotated

from annotated_types import Len

from muster.api.common import Count, Model, keys, matches
from muster.api.podparts import NameRef
from muster.api.schema import Reason, Rule

TRACKING_RULES = (
    Rule(
        "has(self.uri) || (has(self.enabled) && !self.enabled)",
        "tracking without a uri: say where the run is to be tracked, or enabled: false for a job that its queue's "
        "defaultTemplate would track",
        field_path=".uri",
        reason=Reason.REQUIRED,
    ),
)

TrackingUri = Annotated[
    str,
    Len(1, 512),
    matches(
        r"^(https?://[^\s@?#]+|wandb://[^\s@/?#]+/[^\s@/?#]+|python://[A-Za-z_][A-Za-z0-9_.]*:[A-Za-z_][A-Za-z0-9_]*"
        r"([?][^\s]*)?)$",
        "write the URL of an MLflow server like https://mlflow.example.com (name and password belong into secretRef), "
        "wandb://ENTITY/PROJECT, or python://MODULE:NAME",
    ),
]
_LONGEST_TAG = 250
TagName = Annotated[str, Len(1, _LONGEST_TAG)]
TagValue = Annotated[str, Len(0, 1000)]


class Tracking(Model):
    """Where the run's parameters, metrics and facts go. The training never waits for it, nor ends for it."""

    RULES = TRACKING_RULES

    uri: TrackingUri | None = None
    """URL of an MLflow tracking server; or `wandb://ENTITY/PROJECT`, by the client in the training image; or
    `python://MODULE:NAME`, a tracker of your own in that image."""
    enabled: bool | None = None
    """When false, nothing is tracked, whatever the queue's `defaultTemplate` says. Left out: true."""
    experiment: Annotated[str, Len(1, 250)] | None = None
    """The experiment that the run belongs to; it is made where there is none. Left out: the job's namespace."""
    run_name: Annotated[str, Len(1, 250)] | None = None
    """Left out: the job's name."""
    tags: Annotated[dict[TagName, TagValue], Len(0, 32), keys(_LONGEST_TAG)] | None = None
    """Put on the run, beside Muster's own."""
    secret_ref: NameRef | None = None
    """Secret in the job's namespace with MLFLOW_TRACKING_TOKEN, or MLFLOW_TRACKING_USERNAME and
    MLFLOW_TRACKING_PASSWORD; or with WANDB_API_KEY. Left out: none is sent."""


class TrackingStatus(Model):
    """The run in its tracker."""

    url: Annotated[str, Len(0, 1024)] = ""
    """Link to it."""
    dropped: Count | None = None
    """Values that were given up, because the tracker was away for too long or refused them."""
