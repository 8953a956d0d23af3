"""What users and groups use: queue by queue, with their limits, and the statuses of core-features §2.19."""

from __future__ import annotations

from typing import Any

import pytest
from builders import Cluster
from muster_scheduler.core.commands import AppItem, UpdateApplications
from muster_scheduler.view import usage
from muster_service.go_json import go_json
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
    assert sorted(apps) == ["ann", "bob"], "who holds and wants nothing uses nothing"
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


async def test_what_the_view_folded_is_what_the_scheduler_counts(bench: Bench) -> None:
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
