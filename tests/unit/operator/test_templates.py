"""A queue's template reaches the jobs that wait, and no others."""

from __future__ import annotations

import pytest

from muster.api.trainingqueue import TrainingQueue

from .loops import World, world

pytestmark = pytest.mark.unit


def queue(around: World, **template: object) -> None:
    spec = {"defaultTemplate": template} if template else {}
    around.cache.on_queue("q", TrainingQueue.from_raw({"metadata": {"name": "q"}, "spec": spec}))


async def test_a_placed_job_keeps_what_it_got_and_those_that_wait_follow() -> None:
    async with world(cpu="4") as around:
        queue(around, terminationGracePeriod="7s", env=[{"name": "A", "value": "1"}])
        around.submit("first", workers=2)
        await around.until(lambda: len(around.server.pods) == 2)
        around.submit("second", workers=4)
        await around.until(lambda: around.status("second").get("queue"))
        (pod, *_) = around.server.pods.values()
        assert pod["spec"]["terminationGracePeriodSeconds"] == 7
        assert {"name": "A", "value": "1"} in pod["spec"]["containers"][0]["env"]
        told = {"terminationGracePeriod": "7s", "env": [{"name": "A", "value": "1"}]}
        assert around.status("first")["defaults"] == told
        assert around.status("second")["defaults"] == told

        queue(around, terminationGracePeriod="9s", maxRuntime="1h")
        records = around.loop.records
        await around.until(lambda: records["uid-of-second"].spec.grace == 9)
        assert records["uid-of-second"].spec.max_runtime == 3600
        assert (records["uid-of-first"].spec.grace, records["uid-of-first"].spec.max_runtime) == (7, None)
        assert around.status("first")["defaults"] == told

        around.edit("first", suspend=True)
        await around.until(lambda: around.status("first").get("stop"))
        for name in list(around.server.pods):
            around.show(name)
        around.gone("first")
        await around.until(lambda: records["uid-of-first"].spec.grace == 9)


async def test_a_new_operator_reads_what_a_placed_job_got_from_its_status() -> None:
    async with world() as around:
        queue(around, terminationGracePeriod="7s")
        around.submit("first")
        await around.until(lambda: around.placed("first"))
        raw = around.server.jobs["first"]
    async with world() as later:
        queue(later, terminationGracePeriod="9s")
        later.feed(raw)
        await later.until(lambda: "uid-of-first" in later.loop.records)
        assert later.loop.records["uid-of-first"].spec.grace == 7


NONSENSE = {"spec": {"tolerations": [None]}}


async def test_a_job_whose_pod_template_is_nonsense_is_told_so() -> None:
    async with world() as around:
        around.submit("first", podTemplate=NONSENSE)
        await around.until(lambda: around.status("first").get("queue"))
        told = around.status("first")["queue"]
        assert told["reason"] == "InvalidPodTemplate"
        assert told["message"].startswith("podTemplate.spec.tolerations[0] is null: write a mapping")


async def test_a_running_job_whose_pod_template_becomes_nonsense_stops_nobody() -> None:
    async with world() as around:
        around.submit("first")
        await around.until(lambda: len(around.server.pods) == 2)
        raw, made = around.server.jobs["first"], dict(around.server.pods)
    raw["spec"]["podTemplate"] = NONSENSE
    async with world() as later:
        later.server.pods.update(made)
        later.feed(raw)
        for name in made:
            later.show(name)
        later.submit("second")
        await later.until(lambda: later.placed("second"), seconds=10)
