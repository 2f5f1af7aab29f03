"""Weights & Biases, by its own client where the training image has it: `wandb://ENTITY/PROJECT`."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any, Final

from muster_runtime.tracking.tracker import Point, Run, RunStatus, TrackerError

STEP: Final = "step"
"""What charts are drawn over. W&B's own steps only rise, and a restored run does some of its steps again."""
_EXIT_CODES: Final = {RunStatus.FINISHED: 0, RunStatus.SCHEDULED: 0}


class WandB:
    """The client keeps what it can't send and tries again by itself, so it is told everything once."""

    def __init__(self, uri: str) -> None:
        self._entity, _, self._project = uri.removeprefix("wandb://").strip("/").partition("/")
        try:
            import wandb
        except ImportError as error:
            raise TrackerError(
                f"tracking.uri is {uri}, but the training image has no wandb: install it there (pip install wandb)"
            ) from error
        self._wandb: Any = wandb
        self._run: Any = None

    def begin(self, run: Run) -> str:
        settings = self._wandb.Settings(console="off", x_disable_stats=True, silent=True, init_timeout=30)
        self._run = self._wandb.init(
            entity=self._entity or None,
            project=self._project or None,
            group=run.experiment,
            name=run.name,
            config=dict(run.tags),
            id=run.key or None,
            resume="allow",
            dir=os.environ.get("WANDB_DIR") or tempfile.gettempdir(),  # the image's own folders may be read-only
            settings=settings,
        )
        self._run.define_metric(STEP)
        self._run.define_metric("*", step_metric=STEP)
        return str(getattr(self._run, "url", None) or "")

    def params(self, values: Mapping[str, str]) -> None:
        self._run.config.update(dict(values), allow_val_change=True)

    def tags(self, values: Mapping[str, str]) -> None:
        """W&B's tags are words without values, so facts go into the run's config."""
        self._run.config.update(dict(values), allow_val_change=True)

    def metrics(self, points: Sequence[Point]) -> None:
        for step, group in groupby(points, key=lambda point: point.step):
            self._run.log({STEP: step, **{point.name: point.value for point in group}})

    def end(self, status: RunStatus, at: float) -> None:
        self._run.config.update({"muster.status": status.value}, allow_val_change=True)
        self._run.finish(exit_code=_EXIT_CODES.get(status, 1))
