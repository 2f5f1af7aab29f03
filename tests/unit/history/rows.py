"""Rows for tests, all from one small cluster."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any

from muster.telemetry.cost.intervals import Interval
from muster.telemetry.history.rows import Attempt, Job

T0 = datetime(2026, 11, 20, 12, 0, tzinfo=timezone.utc)


def at(minutes: float) -> datetime:
    return T0 + timedelta(minutes=minutes)


def job(uid: str, **more: Any) -> Job:
    values: dict[str, Any] = {
        "uid": uid,
        "namespace": "research",
        "name": f"run-{uid}",
        "queue": "research",
        "user": "ada",
        "project": "llm",
        "labels": {"team": "blue"},
        "image": "example/train:1",
        "gpu_type": "H100",
        "gpus": 16,
        "workers": 2,
        "phase": "Running",
        "cause": "",
        "message": "",
        "submitted_at": at(0),
        "started_at": at(2),
        "finished_at": None,
        "deleted_at": None,
        "estimated": False,
        "restarts": 0,
        "preemptions": 0,
        "lost_gpu_seconds": 0,
        "gpu_seconds": 0,
        "goodput": {"queued": 60, "starting": 60},
        "step": None,
    }
    return Job(**{**values, **more})


def attempt(uid: str, number: int = 1, **more: Any) -> Attempt:
    values: dict[str, Any] = {
        "job": uid,
        "attempt": number,
        "queue": "research",
        "workers": 2,
        "gpus": 16,
        "domain": "rack r1",
        "placed_at": at(1),
        "running_at": None,
        "ended_at": None,
        "estimated": False,
        "reason": "",
        "cause": "",
        "message": "",
        "restarts": 0,
        "replacements": 0,
        "goodput": {},
    }
    return Attempt(**{**values, **more})


def interval(uid: str, index: int = 0, **more: Any) -> Interval:
    values: dict[str, Any] = {
        "job": uid,
        "attempt": 1,
        "index": index,
        "replacement": 0,
        "node": f"node-{index}",
        "gpu_type": "H100",
        "capacity": "on-demand",
        "gpus": 8,
        "begins": at(1),
    }
    return Interval(**{**values, **more})
