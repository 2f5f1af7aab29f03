"""What makes small snapshots go the way of large ones."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from muster.scheduling import bystanders


@pytest.fixture(autouse=True, scope="package")
def _however_few_stand_by() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bystanders, "FEW", 0)
        yield
