"""What may be deleted: the rules alone, over inventories made up here."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from muster_protocol.checkpoints.chain import Damaged
from muster_protocol.checkpoints.inventory import Checkpoint, Folder, Inventory, record_key
from muster_protocol.checkpoints.retention import Best, Plan, Retention, parse_best, plan
from muster_protocol.checkpoints.store import Item, Unfinished
from muster_protocol.manifest import MANIFEST_NAME, Hold, Latest, step_prefix

DAY = 24 * 3600.0
NOW = 100 * DAY
SHARD, MANIFEST = 1000, 10


def checkpoint(step: int, epoch: int = 1, *, hours: float = 0.0, **metrics: float) -> Checkpoint:
    prefix = step_prefix(step, epoch, 0)
    created = NOW - 10 * DAY + 3600 * hours
    return Checkpoint(prefix + MANIFEST_NAME, f"{step:064x}", step, epoch, 0, created, 1, SHARD, metrics=metrics)


def folder(
    step: int, epoch: int = 1, *, attempt: int = 0, age: float = 10 * DAY, names: tuple[str, ...] = ()
) -> Folder:
    prefix = step_prefix(step, epoch, attempt)
    items = tuple(
        Item(prefix + name, MANIFEST if name == MANIFEST_NAME else SHARD, NOW - age)
        for name in (names or (MANIFEST_NAME, "rank-00000.bin"))
    )
    return Folder(prefix, step, epoch, attempt, items)


def inventory(
    *committed: Checkpoint,
    epoch: int = 1,
    strays: tuple[Folder, ...] = (),
    holds: tuple[Hold, ...] = (),
    damaged: tuple[Damaged, ...] = (),
    recorded: tuple[Checkpoint, ...] = (),
    complete: bool = True,
    unfinished: tuple[Unfinished, ...] = (),
) -> Inventory:
    """`committed` is the chain, newest first."""
    folders = {each.prefix: folder(each.step, each.epoch) for each in committed} | {
        each.prefix: each for each in strays
    }
    newest = committed[0].key if committed else ""
    parent = committed[1].key if len(committed) > 1 else ""
    return Inventory(
        "file:///run",
        Latest(epoch, "job", "nonce", manifest=newest, parent=parent),
        committed,
        damaged,
        folders,
        holds,
        {record_key(each): (each.key, each.sha256) for each in recorded},
        complete,
        unfinished,
    )


def chain(*steps: int) -> list[Checkpoint]:
    return [checkpoint(step) for step in sorted(steps, reverse=True)]


def gone(found: Plan) -> list[int]:
    return sorted(removal.folder.step for removal in found.removals)


def test_no_rule_keeps_everything() -> None:
    found = plan(inventory(*chain(1, 2, 3, 4, 5)), Retention(), NOW)
    assert gone(found) == []
    assert [why for _, why in found.kept][-1] == ("all stay without a rule",), "it stands beside the word keep"


@pytest.mark.parametrize(("last", "left"), [(5, [3, 4, 5, 6, 7]), (3, [5, 6, 7]), (1, [5, 6, 7])])
def test_the_newest_stay_and_never_fewer_than_latest_and_two_ancestors(last: int, left: list[int]) -> None:
    found = plan(inventory(*chain(1, 2, 3, 4, 5, 6, 7)), Retention(last=last), NOW)
    assert sorted(kept.step for kept, _ in found.kept) == left
    assert gone(found) == [step for step in range(1, 8) if step not in left]
    assert found.bytes == len(found.removals) * SHARD, "as a listing has it, without the manifest"


def test_the_newest_are_the_newest_of_all_whatever_leads_to_them() -> None:
    """The chain of those that are kept for ever is longer than the parents', and passes by what others keep."""
    led_to = [*chain(16, 17, 18), *chain(5, 10, 15), *chain(2, 12, 14)]
    found = plan(inventory(*led_to), Retention(last=5), NOW)
    assert [kept.step for kept, _ in found.kept] == [18, 17, 16, 15, 14]
    assert gone(found) == [2, 5, 10, 12]


def test_a_repeat_is_one_of_the_checkpoint_before_it_whatever_leads_to_them() -> None:
    accuracy = {10: 0.9, 12: 0.9, 14: 0.8, 16: 0.5, 17: 0.5, 18: 0.5}
    led_to = [checkpoint(step, accuracy=accuracy[step]) for step in (18, 17, 16, 10, 14, 12)]
    found = plan(inventory(*led_to), Retention(last=1, best=Best("accuracy", "max", 2)), NOW)
    assert [kept.step for kept, _ in found.kept] == [18, 17, 16, 14, 10], "12 has what was found at 10"


def test_multiples_stay_and_of_two_at_one_step_the_one_on_the_chain() -> None:
    branch = checkpoint(20, 0)
    found = plan(inventory(*chain(*range(10, 100, 10)), branch, epoch=3), Retention(last=1, every=20), NOW)
    assert sorted(kept.step for kept, _ in found.kept) == [20, 40, 60, 70, 80, 90]
    assert branch.prefix in {removal.folder.prefix for removal in found.removals}


def test_the_first_of_each_span_of_time_stays() -> None:
    run = [checkpoint(step, hours=step) for step in range(1, 13)][::-1]
    found = plan(inventory(*run), Retention(last=1, every_seconds=4 * 3600), NOW)
    assert sorted(kept.step for kept, _ in found.kept) == [1, 4, 8, 10, 11, 12]
    assert {kept.step: why for kept, why in found.kept}[4] == ("every 4h",)
    # and stays the first when its neighbours are gone
    again = plan(inventory(*[kept for kept, _ in found.kept]), Retention(last=1, every_seconds=4 * 3600), NOW)
    assert again.removals == ()


@pytest.mark.parametrize(("mode", "left"), [("min", {2, 5}), ("max", {1, 3})])
def test_the_best_stay_and_what_has_no_number_is_not_among_them(mode: str, left: set[int]) -> None:
    values = {1: 0.9, 2: 0.1, 3: 0.8, 4: math.nan, 5: 0.2, 6: 0.5}
    run = [checkpoint(step, loss=value) for step, value in values.items()] + [checkpoint(step) for step in (7, 8, 9)]
    found = plan(inventory(*run[::-1]), Retention(last=1, best=Best("loss", mode, 2)), NOW)
    assert {kept.step for kept, _ in found.kept} == left | {7, 8, 9}


@pytest.mark.parametrize(("count", "best"), [(1, {40}), (2, {20, 40}), (3, {20, 40, 10}), (4, {10, 20, 40, 60})])
def test_of_what_has_the_same_value_since_an_evaluation_the_first_is_the_best(count: int, best: set[int]) -> None:
    accuracy = {
        10: 0.5,
        11: 0.5,
        20: 0.8,
        21: 0.8,
        22: 0.8,
        40: 0.9,
        41: 0.9,
        42: 0.9,
        60: 0.4,
        61: 0.4,
        62: 0.4,
        63: 0.4,
    }
    run: list[Checkpoint] = []
    for step, value in accuracy.items():  # as a running job does it: after each save
        run.insert(0, checkpoint(step, accuracy=value))
        found = plan(inventory(*run), Retention(last=1, best=Best("accuracy", "max", count)), NOW)
        run = [kept for kept, _ in found.kept]
    assert {kept.step for kept in run} == best | {61, 62, 63}


@pytest.mark.parametrize("count", [1, 2, 3])
def test_of_two_evaluations_with_one_value_both_are_the_best(count: int) -> None:
    """Also when all that was saved between them is gone."""
    run: list[Checkpoint] = []
    for step, accuracy in ((10, 0.75), (20, 0.5), (30, 0.9), (40, 0.5), (50, 0.9), (60, 0.25), (70, 0.0)):
        for later in range(3):  # saves until the next evaluation
            saved = replace(checkpoint(step + later, accuracy=accuracy), measured={"accuracy": step})
            run.insert(0, saved)
            found = plan(inventory(*run), Retention(last=1, best=Best("accuracy", "max", count)), NOW)
            run = [kept for kept, _ in found.kept]
    assert [kept.step for kept in run] == [72, 71, 70, *sorted((30, 50, 10)[:count], reverse=True)]


def test_a_tag_and_a_readers_hold_keep_and_an_expired_one_does_not() -> None:
    run = chain(1, 2, 3, 4, 5, 6, 7)
    at = {each.step: each for each in run}
    holds = (
        Hold("good", "me", None, at[1].key, at[1].sha256),
        Hold("a", "a reader", NOW + 60, at[2].key),
        Hold("b", "a reader with a slow clock", NOW - 60, at[3].key),
        Hold("c", "a reader that died", NOW - 2 * DAY, at[4].key),
    )
    under_way = folder(8, age=0)
    found = plan(inventory(*run, holds=holds, strays=(under_way,)), Retention(last=1), NOW)
    assert gone(found) == [4]
    assert found.leftovers == ("holds/c.json",)
    by_a_fast_clock = plan(inventory(*run, holds=holds, strays=(under_way,)), Retention(last=1), NOW + 30 * DAY)
    assert by_a_fast_clock.leftovers == ("holds/c.json",)
    everything = Hold("d", "a restore", NOW + 60)
    assert gone(plan(inventory(*run, holds=(everything,)), Retention(last=1), NOW)) == []


def test_what_was_never_committed_goes_when_its_epoch_is_over_and_a_day_has_passed() -> None:
    strays = (
        folder(8, 1, attempt=1),
        folder(9, 2, attempt=1),  # the live epoch: a save that is under way
        folder(8, 1, attempt=2, age=DAY / 2),
    )
    found = plan(inventory(*chain(6, 7), epoch=2, strays=strays), Retention(), NOW)
    assert [removal.folder for removal in found.removals] == [strays[0]]
    assert found.removals[0].why == "never committed"


def test_with_a_link_of_the_chain_lost_no_manifest_is_held_for_uncommitted() -> None:
    strays = (folder(3, 1), folder(4, 1, names=("rank-00000.bin",)))
    found = plan(inventory(*chain(6, 7), epoch=2, strays=strays, complete=False), Retention(last=1), NOW)
    assert [removal.folder for removal in found.removals] == [strays[1]]


def test_what_is_half_deleted_goes_at_once_whatever_its_epoch() -> None:
    half = folder(5, 1, age=1.0, names=("rank-00000.bin", "TOMBSTONE-1"))
    assert [removal.folder for removal in plan(inventory(*chain(6, 7), strays=(half,)), Retention(), NOW).removals] == [
        half
    ]


def test_a_tombstone_on_what_stays_goes_after_a_day() -> None:
    for age, stale in ((DAY / 2, 0), (2 * DAY, 1)):
        marked = folder(7, 1, age=age, names=(MANIFEST_NAME, "rank-00000.bin", "TOMBSTONE-1"))
        assert len(plan(inventory(*chain(6, 7), strays=(marked,)), Retention(last=1), NOW).stale) == stale


def test_uploads_that_nobody_ends_go_unless_they_may_be_the_live_gangs() -> None:
    old, live = step_prefix(5, 1, 0) + "rank-00000.bin", step_prefix(9, 2, 0) + "rank-00000.bin"
    uploads = (
        Unfinished(old, "a", NOW - 2 * DAY, 5),
        Unfinished(old, "b", NOW - DAY / 2, 5),
        Unfinished(live, "c", NOW - 2 * DAY, 5),
        Unfinished("LATEST", "d", NOW - 2 * DAY, 5),
    )
    found = plan(inventory(*chain(6, 7), epoch=2, unfinished=uploads), Retention(), NOW)
    assert [each.upload for each in found.unfinished] == ["a", "d"]
    assert found.bytes == 10


@pytest.mark.parametrize(
    "key", ["child/" + step_prefix(5, 1, 0) + "rank-00000.bin", "data/set.tar", "model.safetensors"]
)
def test_an_upload_below_the_prefix_that_is_not_the_runs_stays(key: str) -> None:
    """Also where its job is said to be gone: another run may have its prefix there, and be at a save."""
    found = plan(inventory(*chain(6, 7), unfinished=(Unfinished(key, "a", NOW, 5),)), Retention(), NOW, -math.inf)
    assert not found.unfinished


def test_everything_that_stays_is_recorded_once_and_records_go_with_it() -> None:
    run = chain(1, 2, 3, 4, 5)
    found = plan(inventory(*run, recorded=(run[-1], run[0])), Retention(last=1), NOW)
    assert [each.step for each in found.records] == [4, 3]
    assert found.leftovers == (record_key(run[-1]),)


def test_without_latest_nothing_goes() -> None:
    found = inventory(strays=(folder(5),))
    empty = Inventory("file:///run", None, (), (), found.folders, (), {}, True)
    assert plan(empty, Retention(last=1), NOW) == Plan(0)


@pytest.mark.parametrize(
    ("text", "rule"),
    [("loss", Best("loss")), ("acc:max", Best("acc", "max")), ("loss:min:3", Best("loss", "min", 3))],
)
def test_best_is_written_as_it_is_read(text: str, rule: Best) -> None:
    assert parse_best(text) == rule
    assert parse_best(str(rule)) == rule


@pytest.mark.parametrize("text", ["", ":min", "loss:most", "loss:min:0", "loss:min:x"])
def test_what_best_does_not_take_is_told(text: str) -> None:
    with pytest.raises(ValueError, match="write it like loss, accuracy:max or loss:min:3"):
        parse_best(text)
