"""Another configuration while the RM runs, from the operator's call to the RM's streams and the view."""

from __future__ import annotations

from typing import Any

import pytest
from muster_client import application, ask
from muster_client.admin import ConfigurationAnswer
from muster_client.errors import AdminRefused
from scenario.operated import QUEUES as OPERATED
from scenario.operated import RM, World, on_every_log
from waiting import PATIENCE_S, eventually

# Nothing to warn of.
QUEUES = "".join(line for line in OPERATED.splitlines(keepends=True) if "properties" not in line)
LARGER = QUEUES.replace("vcore: 3", "vcore: 5")


@pytest.fixture(autouse=True)
async def _one_more_runs(world: World) -> None:
    assert (await update(world, QUEUES)).accepted
    await world.rm.send_asks([ask("k3", "y", {"vcore": 1000})])
    await world.until(lambda: sorted(world.told.allocated) == ["k1", "k3"], "what fits is allocated")


async def update(world: World, config: str) -> ConfigurationAnswer:
    return await world.admin.update_configuration(RM, config, timeout_s=PATIENCE_S)


async def queue(world: World, name: str) -> dict[str, Any]:
    answer = await world.http.get(f"/ws/v1/partition/default/queue/root.{name}")
    found: dict[str, Any] = answer.json()
    return found


async def shown(world: World, name: str, field: str, wanted: object) -> None:
    """Returns when the view, which follows, shows it."""

    async def shows() -> bool:
        return (await queue(world, name)).get(field) == wanted

    await eventually(shows, f"the view shows {field} {wanted} of {name}")


async def test_a_larger_max_is_used_at_once_and_no_stream_notices(world: World) -> None:
    answer = await update(world, LARGER)
    assert answer == ConfigurationAnswer(True, (), ("[default] root.a resources.max.vcore: 3 -> 5",))
    await world.until(lambda: "k/2" in world.told.allocated, "the ask that waited is allocated")
    await shown(world, "a", "maxResource", {"vcore": 5000})
    again = await update(world, LARGER)
    assert again == ConfigurationAnswer(True, (), ())
    await world.rm.send_asks([ask("k4", "y", {"vcore": 1000})])
    await world.until(lambda: "k4" in world.told.allocated, "the streams go on")
    assert [opened for _, opened in world.told.streams] == [True, True, True]
    assert world.rm.missing_sequences() == []


async def test_errors_are_answered_with_their_places_and_change_nothing(world: World) -> None:
    await shown(world, "a", "pendingResource", {"vcore": 2000})
    before = await queue(world, "a")
    answer = await update(world, QUEUES.replace("vcore: 3", "vcore: lots").replace("name: b", "nmae: b"))
    assert not answer.accepted
    assert not answer.changes
    errors = [problem for problem in answer.problems if problem.severity == "error"]
    assert {problem.line for problem in errors} == {9, 10}
    assert all(problem.column for problem in errors)
    assert any("lots" in problem.message for problem in errors)
    # What is right as a text, and not possible now, has no place in the text, but says why.
    elsewhere = await update(world, QUEUES.replace("name: default", "name: other"))
    assert not elsewhere.accepted
    assert any("nodes" in problem.message for problem in elsewhere.problems), elsewhere
    await world.rm.send_asks([ask("k4", "y", {"vcore": 1000})])
    await shown(world, "b", "allocatedResource", {"vcore": 2000})  # behind both updates
    assert await queue(world, "a") == before
    await world.until(lambda: "k4" in world.told.allocated, "the RM is told what the view shows")
    assert sorted(world.told.allocated) == ["k1", "k3", "k4"]


async def test_a_queue_that_vanishes_drains_and_a_new_one_takes_applications(world: World) -> None:
    answer = await update(world, QUEUES.replace("name: b", "name: c"))
    assert answer.accepted
    assert len(answer.changes) == 2
    await shown(world, "b", "status", "Draining")
    await world.rm.send_applications([application("z", "root.b"), application("w", "root.c")])
    await world.until(lambda: "z" in world.told.rejected and "w" in world.told.accepted, "each is answered")
    await world.rm.send_asks([ask("k5", "y", {"vcore": 1000}), ask("k6", "w", {"vcore": 1000})])
    await world.until(lambda: {"k5", "k6"} <= set(world.told.allocated), "what is there runs on")


@on_every_log
async def test_a_scheduler_that_takes_over_has_the_new_configuration(world: World) -> None:
    assert (await update(world, LARGER)).accepted
    await world.services.restart_scheduler()
    await world.rm.send_asks([ask("k7", "x", {"vcore": 1000})])
    await world.until(lambda: {"k/2", "k7"} <= set(world.told.allocated), "up to the new max")
    assert (await update(world, LARGER)) == ConfigurationAnswer(True, (), ())


async def test_an_unknown_rm_cannot_be_configured(world: World) -> None:
    with pytest.raises(AdminRefused, match="rmID 'nobody' is not registered"):
        await world.admin.update_configuration("nobody", QUEUES)
