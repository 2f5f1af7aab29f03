"""What an S3 server does to a run: an outage is nobody's failure, a wrong bucket or key is for somebody to mend."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from email.message import Message
from pathlib import Path
from typing import Any

import pytest
from made_store import MadeStore, served

from muster_protocol import env, exits
from muster_protocol.exits import Cause
from muster_protocol.messages import Stop, StopReason
from muster_protocol.storage_errors import LASTING, PASSING, Kind, kind_of
from muster_protocol.uris import parse_uri
from muster_runtime import report
from muster_runtime.launch import verdict
from muster_runtime.launch.preflight import check_patiently
from muster_runtime.launch.progress import Progress

pytestmark = pytest.mark.runtime

_TRACEBACK = """Traceback (most recent call last):
  File "torch/distributed/checkpoint/state_dict_saver.py", line 3, in save
muster_protocol.errors.{error}"""


def ended_by(error: str) -> exits.ExitFacts:
    lines = [f"[rank2]: {line}" for line in _TRACEBACK.format(error=error).split("\n")]
    return verdict.failed(verdict.failure(2, 1, lines, killed_for_memory=False), None, index=1)


@pytest.mark.parametrize(
    ("error", "cause", "code"),
    [
        ("StorageError: the S3 server can't be reached", Cause.INFRASTRUCTURE, exits.EXIT_INFRASTRUCTURE),
        ("StorageError: x (Connection reset by peer; gloo)", Cause.INFRASTRUCTURE, exits.EXIT_INFRASTRUCTURE),
        ("StaleEpochError: another gang has taken over", Cause.INFRASTRUCTURE, exits.EXIT_INFRASTRUCTURE),
        ("PathConflictError: s3://b/run is job ns/b's now", Cause.CONFIG, exits.EXIT_CONFIG),
        ("StorageRefusedError: the bucket 'x' does not exist", Cause.STORAGE, exits.EXIT_CONFIG),
        ("StartError: checkpoint.from can't be taken: gloo", Cause.CONFIG, exits.EXIT_CONFIG),
        ("StateError: a state that can't be stored", Cause.USER, exits.EXIT_USER),
        ("UsageError: StorageError: no", Cause.USER, exits.EXIT_USER),
    ],
)
def test_what_the_store_did_to_a_rank_is_not_the_users_failure(error: str, cause: Cause, code: int) -> None:
    facts = ended_by(error)
    assert (facts.cause, facts.exit_code) == (cause, code)
    assert not facts.message.startswith("followed")


def test_a_stop_whose_last_save_met_another_jobs_run_says_so() -> None:
    line = _TRACEBACK.format(error="PathConflictError: s3://b/run is job ns/b's now").split("\n")
    failed = verdict.failure(0, 1, line, killed_for_memory=False)
    facts = verdict.stopped(Stop(StopReason.PREEMPT, 30.0), failed, killed=(), committed_step=4)
    assert (facts.cause, facts.message.endswith("; while stopping, s3://b/run is job ns/b's now")) == (
        Cause.PREEMPTED,
        True,
    )


def test_a_rank_that_lost_its_store_ends_the_gang_as_infrastructure(make_gang: Callable[..., Any]) -> None:
    gang = make_gang(2)
    command = gang.script(
        "from muster_runtime.errors import storage_error\n"
        "if RANK == 1: raise storage_error('Network', 'the S3 server is away')\n"
        "time.sleep(600)\n"
    )
    leader, culprit = gang.all(command)
    facts = culprit.end()
    assert (facts.cause, facts.exit_code, facts.rank) == (Cause.INFRASTRUCTURE, exits.EXIT_INFRASTRUCTURE, 1)
    assert "the S3 server is away" in facts.message
    assert leader.end().cause is Cause.PEER, "the operator takes the pod whose rank it was"


def test_a_rank_that_is_denied_its_store_ends_the_run(make_gang: Callable[..., Any]) -> None:
    gang = make_gang(1)
    command = gang.script(
        "from muster_runtime.errors import storage_error\nraise storage_error('AccessDenied', 'check the keys')\n"
    )
    facts = gang.pod(0, command).end()
    assert (facts.cause, facts.exit_code) == (Cause.STORAGE, exits.EXIT_CONFIG)


def test_keys_that_were_taken_in_these_pods_before_may_be_others_in_new_ones(
    make_gang: Callable[..., Any], tmp_path: Path
) -> None:
    """A pod has its keys in its environment. Where they are rotated the job must not fail for good: its Secret has the
    right ones."""
    script = (
        "import muster_runtime as muster\nfrom torch import nn\n"
        "from muster_runtime.errors import storage_error\n"
        "session = muster.start()\nsession.track(model=session.wrap(nn.Linear(1, 1)))\n"
        "for step in session.steps(9):\n"
        "    if step == 5: raise storage_error('AccessDenied', 'check the keys')\n"
    )
    more = {env.CHECKPOINT_EVERY_STEPS: "2", env.CHECKPOINT_BLOCKING: "1", "MUSTER_RESTARTS_IN_PLACE": "3"}
    gang = make_gang(2, **{env.CHECKPOINT_URI: f"file://{tmp_path}/own", **more})
    ends = [pod.end() for pod in gang.all(gang.script(script))]
    facts = min(ends, key=lambda end: end.cause is Cause.PEER)
    assert (facts.cause, facts.exit_code, facts.committed_step) == (
        Cause.INFRASTRUCTURE,
        exits.EXIT_INFRASTRUCTURE,
        4,
    )
    assert "check the keys; the store took checkpoints of these pods before, so new pods try it" in facts.message
    assert all(end.exit_code == exits.EXIT_INFRASTRUCTURE for end in ends)


def test_a_checkpoint_that_is_not_there_ends_the_run_with_a_sentence_about_from(
    make_gang: Callable[..., Any], tmp_path: Path
) -> None:
    script = (
        "import muster_runtime as muster\nfrom torch import nn\n"
        "session = muster.start()\nsession.track(model=nn.Linear(1, 1))\nfor step in session.steps(3): pass\n"
    )
    here = f"file://{tmp_path}"
    gang = make_gang(2, **{env.CHECKPOINT_URI: f"{here}/own", env.CHECKPOINT_FROM: f"{here}/no"})
    leader, other = gang.all(gang.script(script))
    facts = min((leader.end(), other.end()), key=lambda end: end.cause is Cause.PEER)
    assert (facts.cause, facts.exit_code, facts.traceback) == (Cause.CONFIG, exits.EXIT_CONFIG, "")
    assert facts.message == (
        f"checkpoint.from can't be taken: {here}/no has no committed checkpoint; is it some job's spec.checkpoint.uri?"
    )


@pytest.mark.parametrize("code", ["SlowDown", "Throttling", "429", "503", "OperationAborted", "RequestTimeTooSkewed"])
def test_a_server_in_trouble_is_no_final_answer(code: str) -> None:
    assert kind_of(code) in PASSING


def test_every_kind_of_trouble_is_either_lasting_or_passing_or_an_answer() -> None:
    assert set(Kind) == LASTING | PASSING | {Kind.NOT_FOUND, Kind.PRECONDITION_FAILED}
    assert not LASTING & PASSING


class _Busy(MadeStore):
    """An S3 server that throttles its first `refusals` writes."""

    refusals = 10**6

    def put(self, key: str, content: bytes, headers: Message) -> int:
        if self.refusals > 0:
            self.refusals -= 1
            return 429
        return super().put(key, content, headers)


@pytest.fixture
def busy(s3_server: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[_Busy]:
    """The environment points at a throttling server; its `refusals` may be set."""
    for name, value in s3_server.environment().items():
        monkeypatch.setenv(name, value)
    server = _Busy()
    with served(server, monkeypatch):
        yield server


def test_a_throttling_server_is_tried_again_until_it_answers(busy: _Busy) -> None:
    busy.refusals = 4
    told: list[str] = []
    assert check_patiently(parse_uri("s3://models/x"), told.append, retry_seconds=30) is None
    assert "too busy" in told[0]


def test_a_preflight_that_never_gets_through_is_the_infrastructures(busy: _Busy) -> None:
    found = check_patiently(parse_uri("s3://models/x"), lambda _: None, retry_seconds=2)
    assert found is not None
    facts = found.facts()
    assert (facts.cause, facts.exit_code) == (Cause.INFRASTRUCTURE, exits.EXIT_INFRASTRUCTURE)


def test_an_endpoint_that_is_no_url_is_final(busy: _Busy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "storage.example:9000")
    found = check_patiently(parse_uri("s3://models/x"), lambda _: None, retry_seconds=2)
    assert found is not None
    assert found.facts().cause is Cause.STORAGE
    assert "AWS_ENDPOINT_URL_S3" in found.sentence


def test_a_missed_save_is_shown_with_its_reason_until_one_succeeds() -> None:
    progress = Progress()
    progress.take(report.StorageFailed(0, "the checkpoint of step 5 was not saved: access is denied; check the keys"))
    assert "check the keys" in progress.storage_error
    progress.take(report.CheckpointCommitted(0, 6, "s3://models/x", 1.0, 1, 0.0))
    assert progress.storage_error == ""


def test_a_loss_is_that_of_the_last_step_or_not_known() -> None:
    progress = Progress()
    assert progress.loss == ""
    progress.take(report.Progress(0, 5, loss="2.5"))
    assert progress.loss == "2.5"
    progress.take(report.Progress(1, 6, loss="9.0"))
    assert progress.loss == "", "of step 6 only rank 1 has told"
    progress.take(report.Progress(0, 6, loss="2.4"))
    assert progress.loss == "2.4"


@pytest.mark.parametrize("seconds", [0.5, 20.0, 300.0])
def test_steps_of_any_length_have_a_rate(seconds: float) -> None:
    now = 0.0
    progress = Progress(clock=lambda: now)
    for step in range(1, 200):
        now = step * seconds
        progress.take(report.Progress(0, step))
        assert len(progress._steps) <= max(2, 60 / seconds + 1)
    assert progress.steps_per_second() == pytest.approx(1 / seconds)
