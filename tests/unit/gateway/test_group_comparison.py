"""The gateway compares the members of a policy group by their sessions."""

from __future__ import annotations

import asyncio

import pytest
from muster_gateway.codec import GroupMember
from muster_gateway.errors import SessionStoreDown
from muster_gateway.policy_group_warnings import GroupComparison, other_configurations
from muster_gateway.rm_lifecycle import RmLifecycleState
from muster_gateway.session_manager import SessionManager
from muster_gateway.sessions.codec import from_json, to_json
from muster_gateway.sessions.contract import NOWHERE, UNKNOWN, Session

MINE = GroupMember("batch", "A")


def session(rm_id: str, group: str, checksum: str, state: RmLifecycleState = RmLifecycleState.RUNNING) -> Session:
    return Session(rm_id, 1, state, 0, "", state, NOWHERE, policy_group=group, config_checksum=checksum, config_at=7)


@pytest.mark.parametrize(
    ("other", "differs"),
    [
        (session("rm-2", "batch", "B"), True),
        (session("rm-2", "batch", "B", RmLifecycleState.DISCONNECTED), True),
        (session("rm-2", "batch", "B", RmLifecycleState.STOPPED), False),
        (session("rm-2", "batch", "B", RmLifecycleState.INIT), False),
        (session("rm-2", "batch", "A"), False),
        (session("rm-2", "batch", ""), False),  # unknown: it registered at an older version of the gateway
        (session("rm-2", "", "B"), False),
        (session("rm-2", "other", "B"), False),
        (session("rm-1", "batch", "B"), False),  # itself, before
    ],
)
def test_the_differing_rms_are_named(other: Session, differs: bool) -> None:
    found = other_configurations("rm-1", MINE, [other])
    assert bool(found) == differs
    for problem in found:
        assert (problem.severity, problem.path) == ("warning", "policyGroup")


@pytest.mark.parametrize(
    ("named", "others", "said"),
    [
        (False, 1, "1 other resource manager of this group"),
        (False, 7, "7 other resource managers of this group"),
        (True, 1, "cluster-0 of this group"),
        (True, 7, "cluster-0, cluster-1, cluster-2, cluster-3, cluster-4 and 2 more of this group"),
    ],
)
def test_the_warning_names_other_clusters_only_where_groups_are_shared(named: bool, others: int, said: str) -> None:
    sessions = [session(f"cluster-{number}", "batch", "B") for number in reversed(range(others))]
    (problem,) = other_configurations("rm", GroupMember("batch", "A", named), sessions)
    assert problem.message == f"'batch': {said} registered with another configuration, expected identical ones"


def test_the_checksum_is_in_the_session_and_may_be_missing_in_an_old_one() -> None:
    stored = session("rm", "batch", "A")
    assert from_json(to_json(stored), 1) == stored
    old = to_json(stored).replace('"policy_group"', '"something_else"')
    assert from_json(old, 1) == Session("rm", 1, RmLifecycleState.RUNNING, 0, "", RmLifecycleState.RUNNING, NOWHERE)
    assert from_json(old, 1).config_at == UNKNOWN


class Store(SessionManager):
    """A store with the test's sessions, whose reads may be slow."""

    def __init__(self) -> None:
        self.sessions: list[Session] = []
        self.looks = 0
        self.go_on = asyncio.Event()
        self.is_down = False

    async def all_sessions(self) -> list[Session]:
        self.looks += 1
        found = list(self.sessions)
        await self.go_on.wait()
        if self.is_down:
            raise SessionStoreDown("the store is away")
        return found


async def test_a_store_that_is_away_is_a_warning_and_no_group_is_no_look() -> None:
    store = Store()
    store.is_down = True
    store.go_on.set()
    groups = GroupComparison(store)
    assert await groups.warnings("rm", GroupMember()) == ()
    assert store.looks == 0
    (problem,) = await groups.warnings("rm", MINE)
    assert problem.message == "'batch': not compared with the others of this group: the store is away"


async def test_many_at_once_share_a_look_that_begins_after_each_of_them_was_stored() -> None:
    store = Store()
    groups = GroupComparison(store)
    first = asyncio.create_task(groups.warnings("rm-0", MINE))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert store.looks == 1  # it saw nobody
    store.sessions = [session("late", "batch", "B")]
    others = [asyncio.create_task(groups.warnings(f"rm-{number}", MINE)) for number in range(1, 50)]
    await asyncio.sleep(0)
    store.go_on.set()
    assert await first == ()
    assert [len(found) for found in await asyncio.gather(*others)] == [1] * len(others)
    assert store.looks == 2
