"""Work of each rank's own: what one fails with, all raise."""

from __future__ import annotations

import muster_runtime as muster
from muster_runtime.errors import CorruptCheckpointError

session = muster.start()
gang = session._gang


def raised(failures: dict[int, Exception]) -> Exception | None:
    def work() -> int:
        if gang.rank in failures:
            raise failures[gang.rank]
        return gang.rank

    try:
        assert gang.each(work) == gang.rank
    except (ValueError, KeyError, CorruptCheckpointError) as error:
        return error
    return None


assert raised({}) is None
assert repr(raised({2: KeyError("two"), 1: ValueError("one")})) == "ValueError('one')"
ours = raised({0: ValueError("zero"), 2: CorruptCheckpointError("it is damaged")})
assert isinstance(ours, CorruptCheckpointError)
assert str(ours) == "it is damaged"
own = {rank: ValueError(rank) for rank in range(gang.world_size)}
assert (raised(own) is own[0]) == gang.leads, "a rank's own error keeps its traceback"
session.closed = True
