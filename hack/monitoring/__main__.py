"""`python -m hack.monitoring`: writes docs/reference/metrics.md and charts/muster/dashboards; `--check` compares."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from hack.monitoring import dashboards, reference

ROOT = Path(__file__).resolve().parents[2]


def documents(root: Path) -> dict[Path, str]:
    """Every generated file, with its text."""
    folder = root / "charts/muster/dashboards"
    return {
        root / "docs/reference/metrics.md": reference.page(),
        **{folder / dashboard.file: dashboards.text(dashboard) for dashboard in dashboards.DASHBOARDS},
    }


def main(arguments: list[str] | None = None) -> int:
    """0: everything is up to date or was written; 1: `--check` found differences."""
    parser = argparse.ArgumentParser(prog="python -m hack.monitoring", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing, exit 1 when a file differs")
    check = parser.parse_args(arguments).check
    texts = documents(ROOT)
    stale = [path for path, text in texts.items() if not path.exists() or path.read_text() != text]
    for path in stale:
        if check:
            print(f"{path.relative_to(ROOT)} is out of date: run `make generate`", file=sys.stderr)
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(texts[path])
        print(f"wrote {path.relative_to(ROOT)}")
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
