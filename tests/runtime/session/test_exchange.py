"""What ranks give each other: files that one holds in memory go to those that want them, and errors to all."""

from __future__ import annotations

from pathlib import Path

from gangs import run_gang


def test_files_go_from_the_rank_that_holds_them_to_those_that_want_them(tmp_path: Path) -> None:
    run_gang("exchange.py", tmp_path, ranks=4).check()


def test_what_one_rank_fails_with_is_raised_on_all(tmp_path: Path) -> None:
    run_gang("together.py", tmp_path, ranks=3).check()
