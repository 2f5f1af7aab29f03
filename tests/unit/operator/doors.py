"""The API server and the launchers behind its pod proxy, for commands that ask them by themselves."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

from muster.cluster.overrides import TRAINER
from muster.cluster.views import PodView
from muster_protocol import launcher_api


def pod(index: int, phase: str = "Running") -> PodView:
    labels = {"muster.dev/index": str(index), "muster.dev/generation": "1", "muster.dev/attempt": "0"}
    metadata = {"name": f"train-g1-{index}-0", "namespace": "research", "labels": labels}
    return PodView.from_raw({"metadata": metadata, "spec": {"containers": []}, "status": {"phase": phase}})


class Doors:
    """Whoever asks has to know port and token by the pod and the Secret. `answer` is the launchers' part."""

    async def get(self, path: str) -> dict[str, Any]:
        if "/secrets/" in path:
            assert path.endswith("/secrets/train-launcher")
            return {"data": {"MUSTER_TOKEN": base64.b64encode(b"t" * 64).decode()}}
        kept = {"secretKeyRef": {"name": "train-launcher", "key": "MUSTER_TOKEN"}}
        said = [{"name": "MUSTER_TOKEN", "valueFrom": kept}, {"name": "MUSTER_PORT", "value": "31000"}]
        return {"spec": {"containers": [{"name": "sidecar"}, {"name": TRAINER, "env": said}]}}

    async def proxy(
        self,
        namespace: str,
        pod: str,
        port: int,
        method: str,
        path: str,
        body: bytes | None,
        headers: Mapping[str, str],
    ) -> tuple[int, bytes]:
        assert (namespace, port) == ("research", 31000)
        assert headers[launcher_api.TOKEN_HEADER] == "t" * 64
        return self.answer(pod, method, path, body)

    def answer(self, pod: str, method: str, path: str, body: bytes | None) -> tuple[int, bytes]:
        raise NotImplementedError
