"""The loss of every step, bit by bit, beside the checkpoints; read with S3 alone.

Below a job's `checkpoint.uri` each save adds one small object, `metrics/<epoch>-<step>.jsonl`: a first line
`{"epoch": E, "restored": R}`, then a line `{"step": N, "loss": "0x1.8p+1"}` for each step since the save before. Steps
are numbered from 0, as `session.steps` yields them. A gang that restored the checkpoint after R steps makes void what
older epochs wrote about step R and later ones, since it trains those steps again.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

METRICS_PREFIX: Final = "metrics/"


@dataclass(frozen=True)
class LossRecord:
    """What one object holds. `losses` are means over the global batch, by step."""

    epoch: int
    restored: int
    losses: tuple[tuple[int, float], ...]


def metrics_key(epoch: int, step: int) -> str:
    """Key of the object that is written with the checkpoint of `step`; keys sort by epoch, then step."""
    return f"{METRICS_PREFIX}{epoch:06d}-{step:08d}.jsonl"


def encode(record: LossRecord) -> bytes:
    lines = [json.dumps({"epoch": record.epoch, "restored": record.restored})]
    lines += [json.dumps({"step": step, "loss": float(loss).hex()}) for step, loss in record.losses]
    return ("\n".join(lines) + "\n").encode()


def decode(body: bytes) -> LossRecord:
    """ValueError when `body` is not such an object."""
    try:
        head, *rest = [json.loads(line) for line in body.decode().splitlines()]
        losses = tuple((int(line["step"]), float.fromhex(line["loss"])) for line in rest)
        return LossRecord(int(head["epoch"]), int(head["restored"]), losses)
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"not a loss record: {error}") from error


def loss_curve(records: Iterable[LossRecord]) -> dict[int, float]:
    """Step (from 0) -> loss of the run as it went in the end, in order of steps."""
    curve: dict[int, float] = {}
    epoch: int | None = None
    for record in sorted(records, key=lambda record: (record.epoch, record.losses[:1])):
        if record.epoch != epoch:
            epoch = record.epoch
            curve = {step: loss for step, loss in curve.items() if step < record.restored}
        curve.update(record.losses)
    return dict(sorted(curve.items()))


def read(client: Any, bucket: str, prefix: str) -> dict[int, float]:
    """The loss curve of the run at `s3://bucket/prefix`. `client` is boto3's S3 client, or one like it."""
    below = f"{prefix.rstrip('/')}/{METRICS_PREFIX}".lstrip("/")
    pages = client.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=below)
    keys = sorted(entry["Key"] for page in pages for entry in page.get("Contents", ()))
    return loss_curve(decode(client.get_object(Bucket=bucket, Key=key)["Body"].read()) for key in keys)
