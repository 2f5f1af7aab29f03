"""torch's distributed checkpoints as contenders of `bench/checkpoint.py`: blocking, in threads, by s3torchconnector.

Each at its documented best: plans are cached, staging memory is kept, four threads write where a writer takes threads,
and s3torchconnector reads by its DCP-optimized reader, which is its default.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Final

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from boto3.s3.transfer import TransferConfig
from hack.s3server import BUCKET
from s3torchconnector import S3ClientConfig
from s3torchconnector.dcp import S3StorageReader, S3StorageWriter
from torch import nn
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType, AsyncSaveResponse
from torch.optim import Optimizer

from checkpoint_contenders import THREADS, Blocking, client
from muster_runtime.parallel.gang import Gang
from muster_runtime.parallel.wrap import unwrap

_SETTINGS: Final = S3ClientConfig(force_path_style=True)


class _Planned(Blocking):
    """What torch's recipes do around a save and a restore."""

    def __init__(self, gang: Gang, prefix: str) -> None:
        self._gang, self._prefix = gang, prefix
        self._planner = DefaultSavePlanner(enable_plan_caching=True)
        group = dist.new_group(backend="gloo")
        assert isinstance(group, dist.ProcessGroup)  # every rank is a member
        self._group = group

    def attach(self, model: nn.Module, optimizer: Optimizer) -> None:
        self._model, self._optimizer = unwrap(model), optimizer

    def _state(self) -> dict[str, Any]:
        model, optimizer = get_state_dict(self._model, self._optimizer)
        return {"model": model, "optimizer": optimizer}

    def _load(self, reader: dcp.StorageReader) -> None:
        state = self._state()
        dcp.load(state, storage_reader=reader, process_group=self._group)
        set_state_dict(
            self._model, self._optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"]
        )

    def close(self) -> None:
        """Nothing is open."""


class Files(_Planned):
    """Blocking DCP: files in a local folder, then boto3's multipart upload of each; back by its download."""

    def __init__(self, gang: Gang, prefix: str) -> None:
        super().__init__(gang, prefix)
        self._client = client()
        self._transfer = TransferConfig(max_concurrency=THREADS)
        folder = [tempfile.mkdtemp(prefix="muster-bench-dcp-")] if gang.leads else [""]
        dist.broadcast_object_list(folder, src=0)
        self._folder = Path(folder[0])

    def save(self, step: int) -> None:
        writer = dcp.FileSystemWriter(self._folder, thread_count=THREADS, sync_files=False)
        dcp.save(self._state(), storage_writer=writer, planner=self._planner, process_group=self._group)
        for path in sorted(self._folder.iterdir())[self._gang.rank :: self._gang.world_size]:
            self._client.upload_file(str(path), BUCKET, f"{self._prefix}/{path.name}", Config=self._transfer)
        self._gang.gather(step)
        self._clear()

    def restore(self) -> None:
        found = self._client.list_objects_v2(Bucket=BUCKET, Prefix=f"{self._prefix}/")["Contents"]
        for key in [item["Key"] for item in found][self._gang.rank :: self._gang.world_size]:
            self._client.download_file(BUCKET, key, str(self._folder / Path(key).name), Config=self._transfer)
        self._gang.gather(0)
        self._load(dcp.FileSystemReader(self._folder))
        self._gang.gather(0)
        self._clear()

    def _clear(self) -> None:
        if self._gang.leads:
            for path in self._folder.iterdir():
                path.unlink()
        self._gang.gather(0)

    def close(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)
        self._client.close()


class Connector(_Planned):
    """s3torchconnector's writer and reader, blocking."""

    threads: int = 1

    def save(self, step: int) -> None:
        dcp.save(self._state(), storage_writer=self._writer(), planner=self._planner, process_group=self._group)

    def restore(self) -> None:
        self._load(S3StorageReader(os.environ["AWS_REGION"], self._uri, s3client_config=_SETTINGS))

    @property
    def _uri(self) -> str:
        return f"s3://{BUCKET}/{self._prefix}/"

    def _writer(self) -> S3StorageWriter:
        return S3StorageWriter(
            os.environ["AWS_REGION"], self._uri, s3client_config=_SETTINGS, thread_count=self.threads
        )


class Connector4(Connector):
    threads = THREADS


class Async(Connector):
    """DCP's `async_save` with threads, to s3torchconnector's writer with four."""

    threads = THREADS

    def __init__(self, gang: Gang, prefix: str) -> None:
        super().__init__(gang, prefix)
        cuda = torch.cuda.is_available()
        self._stager = DefaultStager(StagingOptions(cuda, False, cuda, cuda))  # kept: its memory is used again
        self._saving: Future[Any] | None = None
        self._staging: Future[None] | None = None

    def save(self, step: int) -> None:
        self._settle()
        answer = dcp.async_save(
            self._state(),
            storage_writer=self._writer(),
            planner=self._planner,
            process_group=self._group,
            async_checkpointer_type=AsyncCheckpointerType.THREAD,
            async_stager=self._stager,
        )
        if isinstance(answer, AsyncSaveResponse):
            self._staging, self._saving = answer.staging_completion, answer.upload_completion
        else:
            self._saving = answer

    def staged(self) -> None:
        """What a training loop calls before its optimizer's step."""
        if self._staging is not None:
            self._staging.result()

    def durable(self) -> bool:
        done = self._saving is None or self._saving.done()
        return self._gang.sum([float(not done)])[0] == 0

    def save_now(self, step: int) -> None:
        self.save(step)
        self._settle()

    def _settle(self) -> None:
        if self._saving is not None:
            self._saving.result()
            self._gang.gather(0)

    def close(self) -> None:
        self._stager.close()
