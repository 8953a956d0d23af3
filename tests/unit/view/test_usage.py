"""The usage of users and groups by queue, with their limits and with YuniKorn's statuses."""

from __future__ import annotations

from typing import Any

import pytest
from builders import Cluster
from muster_core.model.commands import AppItem, UpdateApplications
from muster_runtime.go_json import go_json
from muster_view.rest import usage
from unit.view.recorded import Bench, client_of

QUEUES = """
{name: root, submitacl: '*',
 limits: [{limit: all, users: ['*'], maxresources: {vcore: 9}, maxapplications: 5}],
 queues: [
  {name: p, limits: [{limit: ann, users: [ann], groups: [dev], maxresources: {memory: 100}, maxapplications: 2},
                     {limit: rest, groups: ['*'], maxresources: {vcore: 8}}],
   queues: [{name: a}, {name: b}]},
  {name: free}]}
"""
P = "/ws/v1/partition/default"


def fill(cluster: Cluster) -> None:
    cluster.node("n1", vcore=10_000, memory=1000)
    for app_id, queue, user, groups in (
        ("x", "root.p.a", "ann", ("dev", "ops")),
        ("y", "root.p.b", "ann", ("ops",)),
        ("z", "root.free", "bob", ("dev",)),
        ("idle", "root.free", "cid", ()),
    ):
        cluster.do(UpdateApplications((AppItem(app_id, queue, "default", user, groups),)))
    cluster.ask("x", "x1", vcore=1000, memory=10)
    cluster.ask("y", "y1", vcore=2000)
    cluster.ask("y", "waits", memory=500)
    cluster.ask("z", "z1", vcore=500)


def decoded(value: object) -> Any:
    import json

    return json.loads(go_json(value))


def test_a_users_queues_are_summed_on_the_way_to_root_and_show_its_own_limits() -> None:
    cluster = Cluster(QUEUES)
    fill(cluster)
    apps = usage.by_user(cluster.partition)
    assert sorted(apps) == ["ann", "bob"], "a user without allocations and asks is not listed"
    assert go_json(usage.of_user(cluster.partition, "ann", apps["ann"])) == (
        b'{"userName":"ann","groups":{"x":"dev","y":"*"},"queues":{"queuePath":"root",'
        b'"resourceUsage":{"memory":10,"vcore":3000},"runningApplications":["x","y"],"maxResources":{"vcore":9000},'
        b'"maxApplications":5,"children":[{"queuePath":"root.p","resourceUsage":{"memory":10,"vcore":3000},'
        b'"runningApplications":["x","y"],"maxResources":{"memory":100},"maxApplications":2,"children":['
        b'{"queuePath":"root.p.a","resourceUsage":{"memory":10,"vcore":1000},"runningApplications":["x"]},'
        b'{"queuePath":"root.p.b","resourceUsage":{"vcore":2000},"runningApplications":["y"]}]}]}}'
    )
    assert decoded(usage.of_user(cluster.partition, "bob", apps["bob"])) == {
        "userName": "bob",
        "queues": {
            "queuePath": "root",
            "resourceUsage": {"vcore": 500},
            "runningApplications": ["z"],
            "maxResources": {"vcore": 9000},
            "maxApplications": 5,
            "children": [
                {"queuePath": "root.free", "resourceUsage": {"vcore": 500}, "runningApplications": ["z"]},
            ],
        },
    }


def test_a_group_has_the_applications_that_count_in_it() -> None:
    cluster = Cluster(QUEUES)
    fill(cluster)
    apps = usage.by_group(cluster.partition)
    assert sorted(apps) == ["*", "dev"]
    assert decoded(usage.of_group(cluster.partition, "dev", apps["dev"])) == {
        "groupName": "dev",
        "applications": ["x"],
        "queues": {
            "queuePath": "root",
            "resourceUsage": {"memory": 10, "vcore": 1000},
            "runningApplications": ["x"],
            "children": [
                {
                    "queuePath": "root.p",
                    "resourceUsage": {"memory": 10, "vcore": 1000},
                    "runningApplications": ["x"],
                    "maxResources": {"memory": 100},
                    "maxApplications": 2,
                    "children": [
                        {
                            "queuePath": "root.p.a",
                            "resourceUsage": {"memory": 10, "vcore": 1000},
                            "runningApplications": ["x"],
                        }
                    ],
                }
            ],
        },
    }


NAMED = """
{name: root, submitacl: '*', limits: [{limit: all, users: ['*'], maxapplications: 9}], queues: [
  {name: P, limits: [{limit: few, users: [dee, ann], groups: [dev, '*'], maxapplications: 3,
    maxresources: {vcore: 2, memory: 0}}],
   queues: [{name: a, limits: [{limit: own, users: [dee], maxapplications: 1}]}, {name: b}]},
  {name: free}]}
"""


def test_a_user_named_by_a_limit_is_listed_without_an_application() -> None:
    """As in YuniKorn, which makes trackers from the configuration. A limit of 0 for a type is shown."""
    cluster = Cluster(NAMED)
    cluster.node("n1", vcore=10_000)
    cluster.do(UpdateApplications((AppItem("x", "root.free", "default", "ann", ("ops",)),)))
    cluster.ask("x", "x1", vcore=500)
    users, groups = usage.by_user(cluster.partition), usage.by_group(cluster.partition)
    assert (sorted(users), sorted(groups)) == (["ann", "dee"], ["*", "dev"])
    assert go_json(usage.of_user(cluster.partition, "dee", users["dee"])) == (
        b'{"userName":"dee","queues":{"queuePath":"root","maxApplications":9,"children":[{"queuePath":"root.p",'
        b'"maxResources":{"memory":0,"vcore":2000},"maxApplications":3,'
        b'"children":[{"queuePath":"root.p.a","maxApplications":1}]}]}}'
    )
    assert go_json(usage.of_user(cluster.partition, "ann", users["ann"])) == (
        b'{"userName":"ann","queues":{"queuePath":"root","resourceUsage":{"vcore":500},"runningApplications":["x"],'
        b'"maxApplications":9,"children":[{"queuePath":"root.free","resourceUsage":{"vcore":500},'
        b'"runningApplications":["x"]},{"queuePath":"root.p","maxResources":{"memory":0,"vcore":2000},'
        b'"maxApplications":3}]}}'
    )
    for group in ("dev", "*"):
        assert go_json(usage.of_group(cluster.partition, group, groups[group])) == (
            b'{"groupName":"%b","queues":{"queuePath":"root","children":[{"queuePath":"root.p",'
            b'"maxResources":{"memory":0,"vcore":2000},"maxApplications":3}]}}' % group.encode()
        )


def test_a_user_with_asks_only_has_no_running_application() -> None:
    cluster = Cluster(QUEUES)
    cluster.do(UpdateApplications((AppItem("x", "root.p.a", "default", "bob", ("dev",)),)))
    cluster.ask("x", "waits", vcore=1000)
    users, groups = usage.by_user(cluster.partition), usage.by_group(cluster.partition)
    bob = decoded(usage.of_user(cluster.partition, "bob", users["bob"]))
    dev = decoded(usage.of_group(cluster.partition, "dev", groups["dev"]))
    assert (bob["groups"], dev["applications"]) == ({"x": "dev"}, ["x"])
    assert "runningApplications" not in bob["queues"]
    assert "runningApplications" not in dev["queues"]


async def test_a_view_knows_the_users_with_limits(bench: Bench) -> None:
    await bench.write(bench.rm(queues=NAMED))
    async with bench.view() as view, client_of(view) as client:
        assert [user["userName"] for user in (await client.get(f"{P}/usage/users")).json()] == ["ann", "dee"]
        assert [group["groupName"] for group in (await client.get(f"{P}/usage/groups")).json()] == ["*", "dev"]
        assert (await client.get(f"{P}/usage/user/dee")).json()["queues"]["maxApplications"] == 9
        assert (await client.get(f"{P}/usage/group/dev")).status_code == 200
        assert (await client.get(f"{P}/usage/user/*")).status_code == 400


async def test_a_user_without_applications_uses_nothing(bench: Bench) -> None:
    rm = bench.rm(queues=QUEUES)
    fill(rm.cluster)
    await bench.write(rm)
    async with bench.view() as view, client_of(view) as client:
        assert [user["userName"] for user in (await client.get(f"{P}/usage/users")).json()] == ["ann", "bob"]
        rm.cluster.do(UpdateApplications(remove=tuple(("default", app) for app in ("x", "y", "z"))))
        await bench.write(rm)
        (ann,) = (await client.get(f"{P}/usage/users")).json()
        assert ann == {
            "userName": "ann",
            "queues": {
                "queuePath": "root",
                "maxResources": {"vcore": 9000},
                "maxApplications": 5,
                "children": [{"queuePath": "root.p", "maxResources": {"memory": 100}, "maxApplications": 2}],
            },
        }
        assert (await client.get(f"{P}/usage/user/bob")).status_code == 404
        groups = (await client.get(f"{P}/usage/groups")).json()
        assert [(group["groupName"], "applications" in group) for group in groups] == [("*", False), ("dev", False)]


def test_the_sums_are_those_that_limits_look_at() -> None:
    cluster = Cluster(QUEUES)
    fill(cluster)
    apps = usage.by_user(cluster.partition)
    for tracker in cluster.partition.limits:
        if tracker.group:
            found: Any = usage.of_group(cluster.partition, tracker.who, usage.by_group(cluster.partition)[tracker.who])
        elif tracker.who not in apps:
            assert not any(tracker.allocated)
            continue
        else:
            found = usage.of_user(cluster.partition, tracker.who, apps[tracker.who])
        level = found.queues
        while level.queue_path != tracker.path:
            (level,) = [each for each in level.children if f"{tracker.path}.".startswith(f"{each.queue_path}.")]
        assert level.resource_usage == cluster.partition.types.quantities(tracker.allocated)
        assert len(level.running_applications) == tracker.running_applications


@pytest.mark.parametrize(
    ("path", "status", "message"),
    [
        (f"{P}/usage/users", 200, None),
        (f"{P}/usage/groups", 200, None),
        (f"{P}/usage/user/ann", 200, None),
        (f"{P}/usage/group/dev", 200, None),
        (f"{P}/usage/user/nobody", 404, "User not found"),
        (f"{P}/usage/user/cid", 404, "User not found"),
        (f"{P}/usage/group/ops", 404, "Group not found"),
        (f"{P}/usage/user/a%20n", 400, "Invalid user name"),
        (f"{P}/usage/user/%25zz", 400, "Invalid user name"),
        (f"{P}/usage/group/*", 400, "Invalid group name"),
        ("/ws/v1/partition/nope/usage/users", 200, None),
        ("/ws/v1/partition/nope/usage/groups", 200, None),
        ("/ws/v1/partition/nope/usage/user/ann", 404, "User not found"),
        ("/ws/v1/partition/nope/usage/group/dev", 404, "Group not found"),
    ],
)
async def test_each_route(bench: Bench, path: str, status: int, message: str | None) -> None:
    rm = bench.rm(queues=QUEUES)
    fill(rm.cluster)
    await bench.write(rm)
    async with bench.view() as view, client_of(view) as client:
        answer = await client.get(path)
        assert answer.status_code == status
        if message is not None:
            assert answer.json() == {"status_code": status, "message": message, "description": message}
        elif "/nope/" in path:
            assert answer.content == b"[]\n"


async def test_the_views_usage_equals_the_schedulers(bench: Bench) -> None:
    rm = bench.rm(queues=QUEUES)
    fill(rm.cluster)
    await bench.write(rm)
    partition = rm.cluster.partition
    users = [usage.of_user(partition, user, apps) for user, apps in sorted(usage.by_user(partition).items())]
    groups = [usage.of_group(partition, group, apps) for group, apps in sorted(usage.by_group(partition).items())]
    async with bench.view() as view, client_of(view) as client:
        assert (await client.get(f"{P}/usage/users")).content == go_json(users) + b"\n"
        assert (await client.get(f"{P}/usage/groups")).content == go_json(groups) + b"\n"
        assert (await client.get(f"{P}/usage/user/a%6En")).content == go_json(users[0]) + b"\n"
