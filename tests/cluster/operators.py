"""Operator processes as a test starts, stops, freezes and asks them."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import sys
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from muster.cluster.client import Api
from muster.cluster.errors import ApiError

Object = dict[str, Any]

PATIENCE = 45.0
_PORT = re.compile(r"probes and metrics on [^ ]*:([0-9]+)$", re.MULTILINE)
_COMMAND = [sys.executable, "-c", "from muster.cli.app import main; main()", "operator"]


@dataclass
class Running:
    """One `muster operator`.

    Attributes:
        identity: its name in the Lease and in the audit log.
    """

    identity: str
    process: asyncio.subprocess.Process
    log: Path

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    @property
    def address(self) -> str:
        """Of its HTTP server, once it listens."""
        found = _PORT.search(self.told())
        assert found, self.told()
        return f"http://127.0.0.1:{found[1]}"

    def told(self) -> str:
        """Its log so far."""
        return self.log.read_text()

    async def ended(self, timeout: float) -> int:
        """Its exit code, once it has ended."""
        try:
            return await asyncio.wait_for(self.process.wait(), timeout)
        except TimeoutError:
            raise AssertionError(f"{self.identity} still runs after {timeout} s:\n{self.told()}") from None

    async def probe(self, path: str) -> tuple[int, str]:
        """Status code and body of /healthz, /readyz or /metrics; (0, "") before it listens."""
        found = _PORT.search(self.told())
        return await asyncio.to_thread(_get, f"http://127.0.0.1:{found[1]}{path}") if found else (0, "")

    async def until_probe(self, path: str, code: int, contains: str = "", timeout: float = PATIENCE) -> float:
        """Seconds until the probe answered `code` with `contains` in it. Fails when the process has ended."""
        started, answer = time.monotonic(), (0, "")
        while time.monotonic() - started < timeout:
            assert self.process.returncode is None, f"{self.identity} ended:\n{self.told()}"
            answer = await self.probe(path)
            if answer[0] == code and contains in answer[1]:
                return time.monotonic() - started
            await asyncio.sleep(0.1)
        raise AssertionError(f"{self.identity}{path}: {answer} instead of {code} {contains}:\n{self.told()}")

    async def until_told(self, text: str, timeout: float = PATIENCE) -> None:
        """Wait for `text` in the log."""
        started = time.monotonic()
        while text not in self.told():
            assert time.monotonic() - started < timeout, f"{self.identity} does not say {text!r}:\n{self.told()}"
            await asyncio.sleep(0.1)


def _get(url: str) -> tuple[int, str]:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url, timeout=20) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()
    except OSError:
        return 0, ""


@asynccontextmanager
async def operator(kubeconfig: Path, folder: Path, identity: str, **settings: object) -> AsyncIterator[Running]:
    """Run one until the block ends. Settings are those of MUSTER_OPERATOR_*, in lower case."""
    chosen = {
        "identity": identity,
        "namespace": "default",
        "runtime_image": "localhost/muster/runtime:test",
        "priority_class": "",
        "token_key": "only for tests, never elsewhere!",
        "http_host": "127.0.0.1",
        "http_port": 0,
        **settings,
    }
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("MUSTER_", "KUBECONFIG"))}
    environment |= {f"MUSTER_OPERATOR_{key.upper()}": str(value) for key, value in chosen.items()}
    log = folder / f"{identity}.log"
    with log.open("w") as out:
        process = await asyncio.create_subprocess_exec(
            *_COMMAND, "--kubeconfig", str(kubeconfig), env=environment, stdout=out, stderr=out
        )
    try:
        yield Running(identity, process, log)
    except BaseException:
        print(f"--- {identity}, exit code {process.returncode}:\n{log.read_text()[-6000:]}")
        raise
    finally:
        if process.returncode is None:
            process.kill()
            process.send_signal(signal.SIGCONT)
        await process.wait()


async def holder(api: Api, namespace: str = "default") -> str:
    """Who holds the operators' Lease, or ""."""
    try:
        lease = await api.get(f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases/muster-operator")
    except ApiError as error:
        if error.status != 404:
            raise
        return ""
    return str(lease["spec"].get("holderIdentity") or "")


async def until_holder(api: Api, identity: str, timeout: float = PATIENCE) -> float:
    """Seconds until `identity` held the Lease."""
    started = time.monotonic()
    while await holder(api) != identity:
        assert time.monotonic() - started < timeout, f"{await holder(api)} holds the Lease instead of {identity}"
        await asyncio.sleep(0.05)
    return time.monotonic() - started


@dataclass(frozen=True)
class Write:
    """One write in the audit log. `at` is when the API server had received it, in seconds since the epoch."""

    at: float
    verb: str
    resource: str
    name: str
    code: int


def writes_of(audit_log: Path, identity: str) -> list[Write]:
    """Everything that the operator of that name asked the API server to write, refused or not."""
    return [_write(item) for item in _audited(audit_log) if f"({identity})" in item.get("userAgent", "")]


def _audited(audit_log: Path) -> Iterable[Object]:
    with audit_log.open() as lines:
        for line in lines:
            yield json.loads(line)


def _write(item: Object) -> Write:
    about = item.get("objectRef") or {}
    resource = "/".join(filter(None, (about.get("resource"), about.get("subresource"))))
    at = datetime.fromisoformat(item["requestReceivedTimestamp"]).timestamp()
    code = (item.get("responseStatus") or {}).get("code", 0)
    return Write(at, item["verb"], resource, about.get("name", ""), code)
