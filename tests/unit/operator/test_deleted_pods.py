"""How long a pod may take that the operator deletes."""

from __future__ import annotations

from typing import Any

import pytest

from muster.cluster.executor import HURRIED_GRACE, Executor

pytestmark = pytest.mark.unit


class Deletions:
    """Keeps the grace of each deletion, by the pod's name."""

    def __init__(self) -> None:
        self.graces: dict[str, int | None] = {}

    async def delete(self, path: str, *, uid: str = "", grace: int | None = None) -> dict[str, Any]:
        self.graces[path.rsplit("/", 1)[1]] = grace
        return {}


async def test_one_that_another_has_replaced_gets_hardly_any_time_and_the_others_their_own() -> None:
    api = Deletions()
    executor = Executor(api, b"k" * 16)  # type: ignore[arg-type]  # it has all that is called
    await executor.delete_pods("research", (("old", "a"), ("other", "b")), {"old"})
    assert api.graces == {"old": HURRIED_GRACE, "other": None}
    assert HURRIED_GRACE > 0, "0 is by force: its processes may run on, and nobody would know"
