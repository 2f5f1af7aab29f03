"""A TrainingJob as a list shows it: one row, made when the operator sees the job, and never changed.

A row keeps what is filtered and sorted by, and its JSON as it goes out: a page of a hundred is then joined, not made.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from muster.api.names import DEFAULT_QUEUE

Object = Mapping[str, Any]

MESSAGE: Final = 256
"""Characters of `message` in a list; the job's own page has all."""
_NO_LABELS: Final[Mapping[str, str]] = {}


@dataclass(frozen=True, slots=True, eq=False)
class JobRow:
    """Equal to itself alone, so that sets of rows tell quickly which are new.

    Attributes:
        created: as Kubernetes writes it, which sorts by time.
        position: in its queue, or 0.
        document: a `JobSummary` as JSON.
    """

    namespace: str
    name: str
    queue: str
    phase: str
    created: str
    gpus: int
    position: int
    labels: Mapping[str, str]
    document: bytes

    @classmethod
    def from_raw(cls, raw: Object) -> JobRow:
        """From a TrainingJob as the API server gives it, also one that the operator can't read."""
        metadata, spec, status = raw.get("metadata") or {}, raw.get("spec") or {}, raw.get("status") or {}
        labels = metadata.get("labels")
        place = status.get("queue") or {}
        return cls(
            namespace=sys.intern(metadata.get("namespace") or ""),
            name=metadata.get("name") or "",
            queue=sys.intern(spec.get("queue") or DEFAULT_QUEUE),
            phase=sys.intern(status.get("phase") or ""),
            created=metadata.get("creationTimestamp") or "",
            gpus=status.get("gpus") or 0,
            position=place.get("position") or 0,
            labels={sys.intern(key): sys.intern(value) for key, value in labels.items()} if labels else _NO_LABELS,
            document=json.dumps(summary(raw), separators=(",", ":")).encode(),
        )


def summary(raw: Object) -> dict[str, Any]:
    """The fields of `JobSummary`; what the job does not say is left out."""
    metadata, spec, status = raw.get("metadata") or {}, raw.get("spec") or {}, raw.get("status") or {}
    workers, place = spec.get("workers") or {}, status.get("queue") or {}
    placement, progress = status.get("placement") or {}, status.get("progress") or {}
    found = {
        "namespace": metadata.get("namespace"),
        "name": metadata.get("name"),
        "uid": metadata.get("uid"),
        "labels": metadata.get("labels"),
        "createdAt": metadata.get("creationTimestamp"),
        "queue": spec.get("queue") or DEFAULT_QUEUE,
        "phase": status.get("phase"),
        "reason": place.get("reason"),
        "message": (place.get("message") or "")[:MESSAGE],
        "position": place.get("position"),
        "expectedStart": place.get("expectedStart"),
        "workers": workers.get("replicas"),
        "placedWorkers": placement.get("workers"),
        "gpus": status.get("gpus"),
        "gpuType": workers.get("gpuType"),
        "nodes": status.get("nodes"),
        "step": progress.get("step"),
        "totalSteps": progress.get("totalSteps"),
        "eta": progress.get("eta"),
        "checkpointStep": (status.get("checkpoint") or {}).get("step"),
        "goodput": (status.get("goodput") or {}).get("ratio"),
        "restarts": status.get("restarts"),
        "preemptions": status.get("preemptions"),
        "submittedAt": status.get("submittedAt"),
        "startedAt": status.get("startedAt"),
        "finishedAt": status.get("finishedAt"),
    }
    return {key: value for key, value in found.items() if value not in (None, "", {})}
