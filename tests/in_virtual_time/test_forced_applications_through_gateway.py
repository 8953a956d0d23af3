"""``application.create.force``: what runs already comes in, whatever the configuration has become in the meantime."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from e2e.gang_rig import Muster, muster_here
from muster_client.admin import AdminClient
from scenario.lifecycles.peer import Peer
from scenario.through_gateway import DEFAULT, SETTINGS, Played, rest_of
from waiting import eventually

RECOVERY = "root.@recovery@"
FORCED = {"application.create.force": "true"}
OPEN = """\
partitions:
- name: default
  queues: [{name: root, submitacl: '*', queues: [{name: a}]}]
"""


def _config(queues: str, rest: str = "") -> str:
    return f"partitions: [{{name: default, {rest} queues: [{{name: root, submitacl: '*', queues: [{queues}]}}]}}]"


class Cause(NamedTuple):
    """Why another application would be rejected.

    :param queue: which it asks for.
    :param why: in the event; "": it is not rejected, and comes in as it asks for.
    :param where: the queue that takes it in.
    """

    config: str
    queue: str
    why: str
    where: str = RECOVERY
    fields: dict[str, Any] = {}  # noqa: RUF012


GANG = {"placeholderAsk": {"vcore": 8}, "gangSchedulingStyle": "Hard"}
PROVIDED = "placementrules: [{name: provided, create: true}],"
CAUSES = {
    "its queue's parent is a leaf": Cause(_config("{name: a}", PROVIDED), "root.a.b", "parent is already a leaf"),
    "its queue is a parent": Cause(_config("{name: a, queues: [{name: b}]}"), "root.a", "no placement rule matched"),
    "its queue is gone": Cause(_config("{name: b}"), "root.a", "no placement rule matched"),
    "a parent rule names a leaf": Cause(
        _config("{name: a}", "placementrules: [{name: user, create: true, parent: {name: provided}}],"),
        "root.a",
        "parent rule returned a leaf queue",
    ),
    "a gang in a fair queue": Cause(
        _config("{name: a, properties: {application.sort.policy: fair}}"),
        "root.a",
        "unsupported sort type",
        fields=GANG,
    ),
    "a gang over its queue's max": Cause(
        _config("{name: a, resources: {max: {vcore: 5m}}}"), "root.a", "larger than max queue allocation", fields=GANG
    ),
    "a gang over its user's limit": Cause(
        _config("{name: a, limits: [{limit: x, users: [ann], maxresources: {vcore: 5m}}]}"),
        "root.a",
        "larger than the limit of user ann",
        fields=GANG,
    ),
    "a gang over its group's limit": Cause(
        _config("{name: a, limits: [{limit: x, groups: [dev], maxresources: {vcore: 5m}}]}"),
        "root.a",
        "larger than the limit of group dev",
        fields={**GANG, "ugi": {"user": "ann", "groups": ["dev"]}},
    ),
    "a gang over its namespace's quota": Cause(
        _config("", PROVIDED),
        "root.made",
        "larger than max queue allocation",
        fields={**GANG, "tags": {**FORCED, "namespace.resourcequota": '{"resources": {"vcore": {"value": "5"}}}'}},
    ),
    "no queue name": Cause(_config("{name: a}"), "root.a b?", "invalid queue name"),
    "a queue name of control characters": Cause(_config("{name: a}"), "root.\x00a\n", "is not a queue name"),
    "a queue name that is too long": Cause(_config("{name: a}"), "root." + "x" * 9000, "is not a queue name"),
    "too many levels": Cause(_config("{name: a}", PROVIDED), "root" + ".x" * 300, "levels"),
    "the recovery queue by name": Cause(_config("{name: a}"), RECOVERY, "no placement rule matched"),
    "an access list denies": Cause(
        "partitions: [{name: default, queues: [{name: root, queues: [{name: a, submitacl: bob}]}]}]",
        "root.a",
        "no placement rule matched",
    ),
    "maxapplications are reached": Cause(
        _config("{name: a, maxapplications: 1, resources: {max: {vcore: 9m}}}"), "root.a", "", "root.a"
    ),
    "no user": Cause(_config("{name: a}"), "root.a", "", "root.a", {"ugi": {}}),
    "a user whom nobody knows": Cause(
        _config("{name: a}", "usergroupresolver: {type: test},"),
        "root.a",
        "stranger",
        "root.a",
        {"ugi": {"user": "stranger"}},
    ),
    "a user with an invalid name": Cause(
        _config("{name: a}"), "root.a", "invalid username", "root.a", {"ugi": {"user": "a b!", "groups": ["dev"]}}
    ),
    "a user of control characters": Cause(
        _config("{name: a}"),
        "root.a",
        "is not a user's name",
        "root.a",
        {"ugi": {"user": "a\x00b", "groups": ["dev", ""]}},
    ),
    "a style that cannot be shown": Cause(
        _config("{name: a}"), "root.a", "", "root.a", {"gangSchedulingStyle": "\x1b"}
    ),
}


@pytest.fixture
async def muster(tmp_path: Path) -> AsyncIterator[Muster]:
    async with muster_here(tmp_path, SETTINGS) as it:
        yield it


async def _comes_in(rm: Played, cause: Cause) -> None:
    """Sends the application and waits until it is accepted."""
    await rm.begins(cause.config, {"vcore": 20})
    if "maxapplications: 1" in cause.config:
        await rm.application("first", "root.a")
        await rm.hears("UpdateApplication", "accepted", applicationID="first")
        await rm.reports("first", "k1", 1)
        await rm.hears("UpdateAllocation", "new", allocationKey="k1")
    await rm.application("app", cause.queue, **{"tags": FORCED, **cause.fields})
    await rm.hears("UpdateApplication", "accepted", applicationID="app")


async def _is_told(rm: Played, cause: Cause) -> None:
    async def added() -> list[dict[str, Any]]:
        events = await rm.events()
        return [
            each
            for each in events
            if (each["type"], each["eventChangeType"], each["objectID"]) == (2, 2, "app")
            and not each.get("eventChangeDetail")
        ]

    (event,) = await eventually(added, "the event of the application")
    assert cause.why in event.get("message", "")
    assert bool(event.get("message")) or not cause.why
    if cause.why:
        assert f"taken into {cause.where}, since it must be" in event["message"]


async def _runs(rm: Played, cause: Cause, *keys: str) -> None:
    for number, key in enumerate(keys):
        uuid = {"UUID": f"uuid-{key}"} if rm.generation == "previous" else {}
        member = {"taskGroupName": "workers", "placeholder": True} if "placeholderAsk" in cause.fields else {}
        await rm.reports("app", key, 3 + number, **uuid, **member)
        await rm.hears("UpdateAllocation", "new", allocationKey=key, applicationID="app", nodeID="n1")
    seen = await rm.sees(f"{DEFAULT}/application/app")
    assert seen["queueName"] == cause.where
    held = {each["allocationKey"] for each in seen["allocations"]}
    assert held >= set(keys)
    if "placeholderAsk" not in cause.fields:
        assert seen["applicationState"] == "Running"
    assert not [each for each in rm.peer.heard["UpdateAllocation"] if each.kind.startswith("rejected")]


@pytest.mark.parametrize("generation", ["current", "previous"])
@pytest.mark.parametrize("name", CAUSES)
async def test_a_forced_application_comes_in_with_what_it_runs(muster: Muster, name: str, generation: str) -> None:
    cause = CAUSES[name]
    async with rest_of(muster) as http:
        rm = Played(muster, http, generation)
        try:
            await _comes_in(rm, cause)
            await _runs(rm, cause, "k", "l")
            await _is_told(rm, cause)
        finally:
            await rm.peer.lose_connection()


@pytest.mark.parametrize("name", [name for name, cause in CAUSES.items() if cause.where == RECOVERY])
async def test_without_the_tag_it_is_rejected(muster: Muster, name: str) -> None:
    """Otherwise the causes above would prove nothing."""
    cause = CAUSES[name]
    async with rest_of(muster) as http:
        rm = Played(muster, http, "current")
        try:
            await rm.begins(cause.config, {"vcore": 20})
            tags = {key: value for key, value in cause.fields.get("tags", {}).items() if key not in FORCED}
            await rm.application("app", cause.queue, **{**cause.fields, "tags": tags})
            await rm.hears("UpdateApplication", "rejected", applicationID="app")
        finally:
            await rm.peer.lose_connection()


@pytest.mark.parametrize("generation", ["current", "previous"])
async def test_a_malformed_application_is_rejected_even_if_forced(muster: Muster, generation: str) -> None:
    async with rest_of(muster) as http:
        rm = Played(muster, http, generation)
        try:
            await rm.begins(OPEN, {"vcore": 20})
            await rm.application("app", "root.a", tags=FORCED)
            await rm.hears("UpdateApplication", "accepted", applicationID="app")
            for app_id, fields, why in (
                ("app", {}, "already existed"),
                ("", {}, "empty"),
                ("a\nb", {}, "control characters"),
                ("other", {"partitionName": "moon"}, "does not exist"),
                ("other", {"placeholderAsk": {"vcore": -1}}, "negative"),
            ):
                await rm.application(app_id, "root.a", tags=FORCED, **fields)
                assert why in (await rm.hears("UpdateApplication", "rejected"))["reason"]
        finally:
            await rm.peer.lose_connection()


@pytest.mark.asyncio
async def test_running_applications_are_adopted_after_restarts_and_a_reload_that_forbids_them(tmp_path: Path) -> None:
    """Each cause, in one life: the RM comes back, Muster is started again, and only then what runs is reported."""
    at = tmp_path / "muster"
    gateways: dict[str, Played] = {}
    async with muster_here(at, SETTINGS) as muster, rest_of(muster) as http:
        for name, cause in CAUSES.items():
            gateways[name] = Played(muster, http, "current", f"rm-{len(gateways)}")
            await _comes_in(gateways[name], cause)
            await gateways[name].peer.lose_connection()
        reloaded = Played(muster, http, "current", "reloaded")
        await reloaded.begins(OPEN, {"vcore": 20})
        await reloaded.application("app", "root.a", **GANG)
        await reloaded.hears("UpdateApplication", "accepted", applicationID="app")
        await reloaded.reports("app", "k", 3)
        await reloaded.hears("UpdateAllocation", "new", allocationKey="k")
        await reloaded.peer.lose_connection()
    async with muster_here(at, SETTINGS) as muster, rest_of(muster) as http:
        for name, cause in CAUSES.items():
            rm = Played(muster, http, "current", gateways[name].rm_id)
            await _runs(rm, cause, "k")
            async with AdminClient(muster.gateway) as admin:
                # In the middle of it, another configuration that has no word of where it was.
                answer = await admin.update_configuration(rm.rm_id, _config("{name: elsewhere}, {name: a}"))
            await _runs(rm, cause, *(("l",) if answer.accepted else ()))
            await rm.peer.lose_connection()
        # The RM of the reload comes back to what its queue has become while it ran.
        fair = _config("{name: a, properties: {application.sort.policy: fair}, resources: {max: {vcore: 5m}}}")
        async with AdminClient(muster.gateway) as admin:
            answer = await admin.update_configuration("reloaded", fair)
            assert answer.accepted, answer
        rm = Played(muster, http, "current", "reloaded")
        await rm.reports("app", "l", 4)
        await rm.hears("UpdateAllocation", "new", allocationKey="l")
        rm.peer = Peer(muster.gateway, "reloaded", "current")
        await rm.begins(fair, {"vcore": 20})
        await rm.application("app", "root.a", tags=FORCED, **GANG)
        await rm.hears("UpdateApplication", "accepted", applicationID="app")
        await rm.reports("app", "k", 3)
        await rm.reports("app", "l", 4)
        await rm.hears("UpdateAllocation", "new", allocationKey="k")
        await rm.hears("UpdateAllocation", "new", allocationKey="l")
        assert (await rm.sees(f"{DEFAULT}/application/app"))["queueName"] == RECOVERY
        await rm.peer.lose_connection()
