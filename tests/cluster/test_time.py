"""Windows and budgets on a real API server: what it refuses, and gangs that stop and go on by the clock."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from .conftest import ROOT, ControlPlane
from .gangs import Corner, condition, corner

pytestmark = pytest.mark.cluster

Object = dict[str, Any]

SOON: Object = {"start": "* * * * *", "duration": "25s"}
"""Open for the first 25 seconds of each minute."""


@pytest.fixture
async def place(control_plane: ControlPlane) -> AsyncIterator[Corner]:
    async with corner(str(control_plane.kubeconfig)) as found:
        yield found


@pytest.mark.parametrize("path", sorted((ROOT / "examples" / "time").glob("*.yaml")), ids=lambda path: path.stem)
def test_the_examples_can_be_applied(control_plane: ControlPlane, path: Path) -> None:
    control_plane.kubectl("apply", "--dry-run=server", "-f", str(path))


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"window": {"start": "20 * *", "duration": "8h"}}, "a cron expression of five fields"),
        ({"window": {"start": "0 20 * * *", "duration": "0s"}}, "give a duration above zero"),
        ({"window": {"start": "0 20 * * *"}}, "spec.window.duration: Required value"),
        ({"window": {"start": "0 20 * * *", "duration": "8h", "timeZone": "Berlin time"}}, "the name of a time zone"),
        ({"window": {**SOON, "atEnd": "panic"}}, '"stop", "finish"'),
        ({"deadline": "tomorrow"}, "write a moment as date, time and time zone"),
        ({"budget": {}}, "an empty budget limits nothing: give gpuHours or cost"),
        ({"budget": {"gpuHours": 0}}, "greater than or equal to 1"),
    ],
)
def test_what_cannot_be_meant_is_refused_with_words_that_help(
    control_plane: ControlPlane, spec: Object, words: str
) -> None:
    job = yaml.safe_load((ROOT / "examples" / "time" / "job-nightly.yaml").read_text())
    job["spec"] = {**{key: value for key, value in job["spec"].items() if key != "window"}, **spec}
    assert words in control_plane.refusal(job)


def test_a_queue_may_have_one_budget_for_each_gpu_type(control_plane: ControlPlane) -> None:
    queue = yaml.safe_load((ROOT / "examples" / "time" / "queue-budget.yaml").read_text())
    queue["spec"]["budgets"].append({"gpuType": "H100", "gpuHours": 5})
    assert "Duplicate value" in control_plane.refusal(queue)


async def test_a_gang_stops_when_its_window_closes_and_goes_on_in_the_next(place: Corner) -> None:
    await place.add_nodes(1)
    place.start()
    await place.submit("nightly", 2, window=SOON)
    first = await place.until_job("nightly", "is placed", lambda job: job.get("status", {}).get("placement"))
    message = await place.until_waits("nightly", "WindowClosed")
    assert "window" in message
    stopped = await place.job("nightly")
    assert stopped["status"]["usage"]["gpuSeconds"] <= 2 * 40
    assert not stopped["status"].get("preemptions")
    again = await place.until_job(
        "nightly",
        "is placed again",
        lambda job: (job.get("status", {}).get("placement") or {}).get("generation", 0) > 1,
    )
    assert again["status"]["submittedAt"] == first["status"]["submittedAt"]


async def test_a_job_waits_when_its_queues_month_is_used_up_until_the_budget_is_raised(place: Corner) -> None:
    await place.add_nodes(1)
    queue = f"/apis/muster.dev/v1alpha1/trainingqueues/{place.queue}"
    await place.api.merge_patch(queue, {"spec": {"budgets": [{"gpuHours": 1}]}})
    month = {"until": "2020-01-01T00:00:00Z", "uses": [{"gpuType": "none", "gpus": 1000000}]}
    await place.api.merge_patch(f"{queue}/status", {"status": {"month": month}})
    place.start()
    await place.submit("waits", 1)
    message = await place.until_waits("waits", "BudgetExhausted")
    assert f"queue {place.queue} has used its 1 GPU hours" in message

    async def ready(status: str) -> Object | None:
        told = condition(await place.api.get(queue), "Ready")
        return told if told is not None and told["status"] == status else None

    told = await place.until("the queue says that it takes no jobs", lambda: ready("False"))
    assert told["reason"] == "BudgetExhausted"
    assert told["message"] == f"{message}; what runs goes on"
    await place.api.merge_patch(queue, {"spec": {"budgets": [{"gpuHours": 2000000000}]}})
    await place.until_phase("waits", "Running")
    await place.until("the queue says that it takes jobs", lambda: ready("True"))
    admitted = condition(await place.job("waits"), "Admitted")
    assert admitted is not None
    assert admitted["status"] == "True"
