"""A run in a real MLflow, told by its launcher: what stands there, over restarts; and that its loss stops nobody."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from hack.mlflow import MLflowServer, serving, values

from muster_protocol import env
from muster_protocol import launcher_api as api
from muster_protocol.exits import Cause
from muster_protocol.launcher_status import Facts, Tracking
from muster_protocol.wire import encode

pytestmark = pytest.mark.runtime

MakeGang = Callable[..., Any]

SCRIPT = """
import torch
import muster_runtime as muster
folder = Path(__file__).parent
session = muster.start()
session.params(lr=float(os.environ.get("LR", "0.1")), data="wiki", **{"/eval//top 5": 1})
model = session.wrap(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
session.track(model=model, optimizer=optimizer)
for step in session.steps(int(os.environ["STEPS"])):
    loss = model(torch.ones(2, 4)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    session.report(loss=loss, tokens=64, accuracy=step / 100, broken=float("nan") if step == 1 else 1.0)
    if step == 3: mark("trains")
    time.sleep(0.02)
"""


@pytest.fixture(scope="module")
def mlflow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MLflowServer]:
    with serving(tmp_path_factory.mktemp("mlflow")) as server:
        yield server


def history(server: MLflowServer, run: Any, metric: str) -> dict[int, float]:
    path = f"metrics/get-history?run_id={run['info']['run_id']}&metric_key={metric}"
    return {each.get("step", 0): each["value"] for each in server.ask(path).get("metrics", ())}


def tracking(pod: Any) -> Tracking:
    told = pod.status().tracking
    assert told is not None
    return told  # type: ignore[no-any-return]


def test_one_job_is_one_run_over_all_its_starts(make_gang: MakeGang, mlflow: MLflowServer, tmp_path: Path) -> None:
    common = {
        env.TRACKING_URI: mlflow.uri,
        env.TRACKING_TAGS: '{"purpose": "test"}',
        env.JOB_UID: "3f0c-one",
        env.CHECKPOINT_URI: f"file://{tmp_path}/checkpoints",
        env.STRATEGY: "ddp",
        "GITHUB_SHA": "0123456789abcdef0123456789abcdef01234567",
    }
    gang = make_gang(1, 1, **common)
    command = [*gang.script(SCRIPT), "--lr", "0.1", "--bf16"]
    first = gang.pod(0, command, STEPS="100000")
    gang.eventually(lambda: gang.marks("trains"), "it trains", 200)
    facts = Facts({"muster.queue": "research"}, 8, 36_000, "120.50", 16.0, "EUR", time.time() - 900)
    assert first.ask("PUT", api.FACTS_PATH, encode(facts))[0] == 204
    assert first.ask("PUT", api.FACTS_PATH, b'{"cost": "much"}')[0] == 400
    gang.eventually(lambda: tracking(first).well, "MLflow has it", 60)
    assert "/#/experiments/" in tracking(first).url
    assert b"muster_worker_tracking_up{" in first.ask("GET", api.METRICS_PATH)[1]
    first.signal(signal.SIGTERM)
    assert first.end().cause is Cause.PREEMPTED
    (run,) = mlflow.runs("research")
    assert (run["info"]["status"], run["info"]["run_name"]) == ("KILLED", "probe")
    params, tags = values(run, "params"), values(run, "tags")
    assert (
        params.items()
        >= {"lr": "0.1", "data": "wiki", "args/lr": "0.1", "args/bf16": "true", "eval/top 5": "1"}.items()
    )
    assert tags["mlflow.source.git.commit"].startswith("0123456")
    assert tags.items() >= {"purpose": "test", "muster.queue": "research", "muster.currency": "EUR"}.items()
    assert {"muster.environment.torch", "muster.checkpoint.uri", "muster.checkpoint.step"} <= tags.keys()
    metrics = values(run, "metrics")
    assert metrics["muster/gpu_hours"] == pytest.approx(10 + 8 * 900 / 3600, rel=0.05)
    assert metrics["muster/cost"] == pytest.approx(120.5 + 16 * 900 / 3600, rel=0.05)
    assert {"muster/tokens_per_second", "muster/step_seconds", "muster/checkpoint_seconds"} <= metrics.keys()
    losses = history(mlflow, run, "loss")
    stopped = max(losses)
    assert set(losses) == set(range(1, stopped + 1)), "each step has its loss"
    assert history(mlflow, run, "accuracy")[stopped] == pytest.approx((stopped - 1) / 100)

    again = make_gang(1, 1, **common)
    second = again.pod(0, [*again.script(SCRIPT), "--lr", "0.1"], STEPS=str(stopped + 10), LR="0.2")
    assert second.end(200).cause is Cause.SUCCEEDED
    (run,) = mlflow.runs("research")
    assert run["info"]["status"] == "FINISHED"
    assert set(history(mlflow, run, "loss")) == set(range(1, stopped + 11))
    assert values(run, "params")["lr"] == "0.1", "MLflow's parameters never change"
    assert values(run, "tags")["param.lr"] == "0.2"


def test_a_server_that_goes_and_comes_gets_everything_and_holds_up_nobody(
    make_gang: MakeGang, mlflow: MLflowServer
) -> None:
    gang = make_gang(1, 1, **{env.TRACKING_URI: mlflow.uri, env.JOB_UID: "away", env.TRACKING_EXPERIMENT: "away"})
    mlflow.stop()
    pod = gang.pod(0, gang.script(SCRIPT), STEPS="100000")
    gang.eventually(lambda: gang.marks("trains"), "it trains without", 200)
    gang.eventually(lambda: tracking(pod).well is False, "it tells")
    assert "can't be reached: Connection refused" in tracking(pod).text
    gang.eventually(lambda: "the training goes on" in pod.log(), "and logs")
    mlflow.start()
    gang.eventually(lambda: tracking(pod).well, "it is well again", 90)
    mlflow.stop()
    gang.eventually(lambda: tracking(pod).well is False, "it is away again", 60)
    before = pod.status().step
    gang.eventually(lambda: pod.status().step > before, "the training goes on")
    mlflow.start()
    gang.eventually(lambda: tracking(pod).well, "it is well again", 120)
    assert tracking(pod).dropped == 0
    pod.signal(signal.SIGTERM)
    pod.end()
    (run,) = mlflow.runs("away")
    losses = history(mlflow, run, "loss")
    assert set(losses) == set(range(1, max(losses) + 1)), "nothing is missing"


class Faulty(BaseHTTPRequestHandler):
    """Answers everything by what `mode` says."""

    mode = "500"

    def do_GET(self) -> None:
        if self.mode == "slow":
            time.sleep(30)
        status, body = {"401": (401, b"who are you?"), "html": (200, b"<html>")}.get(self.mode, (500, b""))
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_POST = do_GET  # noqa: N815 - the base class wants it so

    def log_message(self, *_: object) -> None: ...


@pytest.mark.parametrize(
    ("mode", "told"),
    [
        ("401", "refuses access (401: who are you?)"),
        ("500", "answered 500"),
        ("html", "does not answer as an MLflow tracking server does"),
        ("slow", "no answer within"),
    ],
)
def test_a_server_in_trouble_is_named_and_the_run_ends_well(make_gang: MakeGang, mode: str, told: str) -> None:
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (Faulty,), {"mode": mode}))
    server.daemon_threads = True
    Thread(target=server.serve_forever, daemon=True).start()
    uri = f"http://127.0.0.1:{server.server_address[1]}"
    gang = make_gang(1, 1, **{env.TRACKING_URI: uri, env.JOB_UID: "trouble"})
    script = gang.script("mark('runs')\nwhile not Path(__file__).with_name('go').exists(): time.sleep(0.05)\n")
    pod = gang.pod(0, script)
    gang.eventually(lambda: gang.marks("runs"), "the training runs all the while", 60)
    gang.eventually(lambda: tracking(pod).well is False, "it is told", 60)
    assert told in tracking(pod).text
    (gang.folder / "go").touch()
    assert pod.end(30).cause is Cause.SUCCEEDED
    server.shutdown()
    server.server_close()


OWN = """
import json, os
class Mine:
    def __init__(self, uri): self.out = open(os.environ["OWN_LOG"], "a")
    def begin(self, run): self.say("begin", run.key); return "mine://" + run.name
    def params(self, values): self.say("params", dict(values))
    def tags(self, values): self.say("tags", dict(values))
    def metrics(self, points): self.say("metrics", [(p.name, p.step) for p in points])
    def end(self, status, at): self.say("end", status.value)
    def say(self, *words): print(json.dumps(words), file=self.out, flush=True)
"""


def test_a_tracker_of_ones_own(make_gang: MakeGang, tmp_path: Path) -> None:
    log = tmp_path / "own.log"
    gang = make_gang(
        1,
        1,
        **{
            env.TRACKING_URI: "python://mine:Mine",
            env.JOB_UID: "own",
            "OWN_LOG": str(log),
            "PYTHONPATH": str(tmp_path),
        },
    )
    (tmp_path / "mine.py").write_text(OWN)
    pod = gang.pod(0, gang.script(SCRIPT), STEPS="20")
    assert pod.end(200).cause is Cause.SUCCEEDED
    said = [json.loads(line) for line in log.read_text().splitlines()]
    assert said[0] == ["begin", "own"]
    assert said[-1] == ["end", "FINISHED"]
    points = {tuple(point) for kind, told in said if kind == "metrics" for point in told}
    assert points >= {("loss", step) for step in range(1, 21)}
    params = {name for kind, told in said if kind == "params" for name in told}
    assert {"lr", "data", "command"} <= params


def test_a_tracker_that_dies_or_is_not_there_ends_nothing(make_gang: MakeGang, tmp_path: Path) -> None:
    (tmp_path / "dies.py").write_text("import os\ndef now(uri): os._exit(3)\n")
    script = "mark('runs')\ntime.sleep(1)\n"
    for uri, told in (("python://dies:now", "its process has ended"), ("python://not_there:X", "has no not_there:X")):
        gang = make_gang(1, 1, **{env.TRACKING_URI: uri, "PYTHONPATH": str(tmp_path)})
        pod = gang.pod(0, gang.script(script))
        assert pod.end(60).cause is Cause.SUCCEEDED
        assert told in pod.log()
