"""What may be deleted after a commit."""

from __future__ import annotations

from muster_protocol.checkpoints.retention import Retention, expired


def run(*folders: str, half: tuple[str, ...] = ()) -> list[str]:
    keys = [f"{folder}{name}" for folder in folders for name in ("manifest.json", "rank-00000.bin")]
    return sorted(keys + [f"{folder}rank-00000.bin" for folder in half])


def folders(keys: list[str]) -> set[str]:
    return {key.rpartition("/")[0] + "/" for key in keys}


A, B, C, D = "step-00000010/1-0/", "step-00000020/1-0/", "step-00000030/1-0/", "step-00000040/2-0/"


def test_nothing_goes_without_a_limit() -> None:
    assert expired(run(A, B, C), [C, B, A], Retention(None, None), 1) == []


def test_the_newest_stay() -> None:
    assert folders(expired(run(A, B, C, D), [D, C, B, A], Retention(2, None), 2)) == {A, B}


def test_multiples_stay_for_ever() -> None:
    assert folders(expired(run(A, B, C, D), [D], Retention(1, 20), 2)) == {A, C}


def test_what_latest_names_stays_whatever_the_limit_says() -> None:
    assert D not in folders(expired(run(C, D), [D, C], Retention(0, None), 2))


def test_attempts_that_were_never_committed_go_also_at_a_multiple() -> None:
    half = "step-00000020/1-1/"
    assert folders(expired(run(B, D, half=(half,)), [D], Retention(1, 20), 2)) == {half}


def test_a_newer_gangs_work_is_left_alone() -> None:
    newer = "step-00000050/3-0/"
    assert folders(expired(run(A, D, newer), [D], Retention(1, None), 2)) == {A}


def test_manifests_go_first_and_strangers_stay() -> None:
    gone = expired([*run(A, D), "LATEST", "metrics/000001-00000010.jsonl", "notes.txt"], [D], Retention(1, None), 2)
    assert gone == [A + "manifest.json", A + "rank-00000.bin"]
