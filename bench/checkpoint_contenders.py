"""Ways to save a training state to S3, behind one small interface, for `checkpoint_gang`."""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Final, Protocol

import boto3
import botocore.config
import torch
from boto3.s3.transfer import TransferConfig
from hack.s3server import BUCKET
from torch import nn
from torch.optim import Optimizer

from muster_runtime.checkpoint.tree import local_part
from muster_runtime.parallel.gang import Gang
from muster_runtime.parallel.wrap import unwrap

THREADS: Final = 4
"""At once, on each rank, for every contender that takes a number of threads."""


class Contender(Protocol):
    """One way to save and restore the state, made before the model, as in a script. All methods are collective."""

    def attach(self, model: nn.Module, optimizer: Optimizer) -> None:
        """The script has built what is to be saved, or restored."""

    def begin(self) -> None:
        """Before the first save of a run."""

    def save(self, step: int) -> None:
        """Returns when training may go on."""

    def save_now(self, step: int) -> None:
        """Returns when the save is durable."""

    def staged(self) -> None:
        """Before the optimizer's step: returns when the parameters may change."""

    def durable(self) -> bool:
        """At a step boundary: whether the last save has reached S3 whole."""

    def restore(self) -> None:
        """Brings the last save back into the model and the optimizer."""

    def close(self) -> None: ...


def client() -> Any:
    return boto3.client(
        "s3",
        config=botocore.config.Config(
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
            max_pool_connections=2 * THREADS,
            s3={"addressing_style": "path", "payload_signing_enabled": False},  # no SHA-256 of what is sent
        ),
    )


class Blocking:
    def begin(self) -> None:
        """Nothing is claimed."""

    def save(self, step: int) -> None:
        raise NotImplementedError

    def save_now(self, step: int) -> None:
        self.save(step)

    def staged(self) -> None:
        """Saved when `save` returned."""

    def durable(self) -> bool:
        return True


class TorchSave(Blocking):
    """Blocking: every rank pickles what it alone holds (replicas: rank 0), then boto3's multipart upload."""

    def __init__(self, gang: Gang, prefix: str) -> None:
        self._gang, self._client, self._key = gang, client(), f"{prefix}/rank-{gang.rank}.pt"

    def attach(self, model: nn.Module, optimizer: Optimizer) -> None:
        self._model, self._optimizer = unwrap(model), optimizer
        self._writes = self._gang.leads or any(local_part(p) is not p for p in self._model.parameters())

    def save(self, step: int) -> None:
        if self._writes:
            body = io.BytesIO()
            torch.save(_local([self._model.state_dict(), self._optimizer.state_dict()]), body)
            body.seek(0)
            self._client.upload_fileobj(body, BUCKET, self._key, Config=TransferConfig(max_concurrency=THREADS))
        self._gang.gather(step)

    def restore(self) -> None:
        body = io.BytesIO()
        key = self._key if self._writes else self._key.replace(f"rank-{self._gang.rank}", "rank-0")
        self._client.download_fileobj(BUCKET, key, body)
        body.seek(0)
        saved = _tensors(torch.load(body))
        for parameter in self._model.parameters():
            averages = {name: torch.zeros_like(parameter) for name in ("exp_avg", "exp_avg_sq")}
            self._optimizer.state[parameter] = {"step": torch.zeros(()), **averages}
        for target, tensor in zip(
            _tensors([self._model.state_dict(), self._optimizer.state_dict()]), saved, strict=True
        ):
            local_part(target).copy_(tensor)

    def close(self) -> None:
        self._client.close()


class PlainPut(Blocking):
    """No checkpoint at all: the state's unique bytes by `put_object` from memory. What the server can take."""

    def __init__(self, gang: Gang, prefix: str) -> None:
        self._gang, self._client, self._prefix = gang, client(), f"{prefix}/rank-{gang.rank}"
        self._pool = ThreadPoolExecutor(THREADS)

    def attach(self, model: nn.Module, optimizer: Optimizer) -> None:
        tensors = _tensors([unwrap(model).state_dict(), optimizer.state_dict()])
        sharded = any(local_part(t) is not t for t in tensors)
        size = sum(local_part(t).nbytes for t in tensors)
        part = size // (1 if sharded else self._gang.world_size) // THREADS
        self._parts = [os.urandom(1 << 20) * (part >> 20) for _ in range(THREADS)]

    def save(self, step: int) -> None:
        def put(number: int) -> None:
            self._client.put_object(Bucket=BUCKET, Key=f"{self._prefix}-{number}", Body=self._parts[number])

        list(self._pool.map(put, range(THREADS)))
        self._gang.gather(step)

    def restore(self) -> None:
        def get(number: int) -> int:
            answer = self._client.get_object(Bucket=BUCKET, Key=f"{self._prefix}-{number}")
            return sum(len(piece) for piece in answer["Body"].iter_chunks(1 << 20))

        list(self._pool.map(get, range(THREADS)))

    def close(self) -> None:
        self._pool.shutdown()
        self._client.close()


def _tensors(state: Any) -> list[torch.Tensor]:
    if isinstance(state, torch.Tensor):
        return [state]
    inner = state.values() if isinstance(state, dict) else state if isinstance(state, (list, tuple)) else ()
    return [tensor for value in inner for tensor in _tensors(value)]


def _local(state: Any) -> Any:
    if isinstance(state, torch.Tensor):
        return local_part(state)
    if isinstance(state, dict):
        return {key: _local(value) for key, value in state.items()}
    return [_local(value) for value in state] if isinstance(state, (list, tuple)) else state


Maker = Callable[[Gang, str], Contender]


def makers(names: list[str], device: torch.device) -> dict[str, Maker]:
    """Constructors by name. KeyError for a name that is none of ours."""
    from checkpoint_muster import Muster, MusterMemory
    from checkpoint_rivals import Async, Connector, Connector4, Files

    known: dict[str, Maker] = {
        "muster": partial(Muster, device=device),
        "muster-memory": partial(MusterMemory, device=device),
        "torch.save": TorchSave,
        "put_object": PlainPut,
        "dcp": Files,
        "dcp-async": Async,
        "s3torch": Connector,
        "s3torch4": Connector4,
    }
    return {name: known[name] for name in names}
