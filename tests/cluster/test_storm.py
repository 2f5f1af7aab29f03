"""A minute in which everything happens at once: no worker is there twice, no GPU is given twice, and all ends well."""

from __future__ import annotations

import asyncio
import os
from contextlib import suppress

import pytest

from .conftest import ControlPlane
from .gangs import PATIENCE, corner
from .launchers import Launchers
from .storm import GPUS, Storm
from .witness import Witness

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]

LASTS = 60.0
SEEDS = range(1, 9) if os.environ.get("MUSTER_THOROUGH") else (1,)


@pytest.mark.parametrize("seed", SEEDS)
async def test_whatever_happens_all_jobs_end_and_nothing_of_them_stays(control_plane: ControlPlane, seed: int) -> None:
    async with corner(str(control_plane.kubeconfig)) as place, Launchers(place).answering() as launchers:
        witness = Witness(place, GPUS, PATIENCE)
        async with Storm(place, launchers, seed).raging() as storm:
            watch = asyncio.create_task(witness.run())
            try:
                await _rage(storm)
                await place.until("nothing of the jobs stays", lambda: _nothing(storm))
            except AssertionError as error:
                raise AssertionError("\n".join([str(error), *await storm.leftovers(), *storm.story])) from error
            finally:
                watch.cancel()
                with suppress(asyncio.CancelledError):
                    await watch
        assert not witness.seen, "\n".join([*witness.seen, *storm.story])


async def _rage(storm: Storm) -> None:
    end = asyncio.get_running_loop().time() + LASTS
    while asyncio.get_running_loop().time() < end:
        await storm.step()
        await asyncio.sleep(0.2)
    await storm.calm()
    await storm.drain(PATIENCE)


async def _nothing(storm: Storm) -> bool:
    return not await storm.leftovers()
