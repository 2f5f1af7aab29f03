"""What one rank holds in memory and others want gets to these, and to nobody else."""

from __future__ import annotations

from pathlib import Path

from gangs import run_gang


def test_files_go_from_the_rank_that_holds_them_to_those_that_want_them(tmp_path: Path) -> None:
    run_gang("exchange.py", tmp_path, ranks=4).check()
