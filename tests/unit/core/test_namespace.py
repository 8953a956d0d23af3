"""Quotas that come with an application's namespace."""

from __future__ import annotations

import json

import pytest
from builders import Cluster
from muster_core.config.namespace import NamespaceQuota, quota_of
from muster_core.model.outcome import EventDetail
from muster_core.queues import ordering

CREATE = "placementrules: [{name: provided, create: true}],"
FAIR = (
    "{name: root, submitacl: '*', queues: ["
    "{name: p, parent: true, childtemplate: {properties: {application.sort.policy: fair}}}, {name: static}]}"
)


def resource(**values: object) -> str:
    return json.dumps({"resources": {name: {"value": value} for name, value in values.items()}})


@pytest.mark.parametrize(
    ("tags", "found"),
    [
        ({}, NamespaceQuota(None, None, 0)),
        ({"namespace.resourcequota": resource(memory=5)}, NamespaceQuota(None, {"memory": 5}, 0)),
        ({"namespace.resourcequota": resource(memory="7")}, NamespaceQuota(None, {"memory": 7}, 0)),
        ({"Namespace.ResourceQuota": resource(memory=7)}, NamespaceQuota(None, {"memory": 7}, 0)),
        (
            {"namespace.resourcequota": '{"Resources":{"gpu":{"Value":3},"ssd":{},"nic":{"value":null}}}'},
            NamespaceQuota(None, {"gpu": 3, "ssd": 0, "nic": 0}, 0),
        ),
        # one value that is no whole number, and all of it is no quota
        *(
            ({"namespace.resourcequota": resource(memory=8, gpu=odd)}, NamespaceQuota(None, None, 0))
            for odd in (True, False, 2.5, 4.0, " 7", "1_0", "+7", [3], {"value": 6})
        ),
        *(
            ({"namespace.resourceguaranteed": resource(memory=8, gpu=odd)}, NamespaceQuota(None, None, 0))
            for odd in (True, 2.5, 1e3, "7.0")
        ),
        ({"namespace.resourcequota": '{"resources":{"memory":{"value":1e3}}}'}, NamespaceQuota(None, None, 0)),
        ({"namespace.resourceguaranteed": resource(memory=5, gpu=0)}, NamespaceQuota({"memory": 5, "gpu": 0}, None, 0)),
        ({"namespace.resourcemaxapps": "3"}, NamespaceQuota(None, None, 3)),
        ({"namespace.resourcemaxapps": "0" * 30 + "12"}, NamespaceQuota(None, None, 12)),
        *(
            ({"namespace.resourcemaxapps": odd}, NamespaceQuota(None, None, 0))
            for odd in (" 3", "3 ", "+3", "3.0", "1_0", "true", "\u0663")
        ),
        ({"namespace.resourcemaxapps": "-3"}, NamespaceQuota(None, None, 0)),
        ({"namespace.resourcemaxapps": "9" * 20}, NamespaceQuota(None, None, 0)),
        ({"namespace.resourcequota": resource(memory=0)}, NamespaceQuota(None, None, 0)),
        ({"namespace.resourcequota": resource(memory=-1)}, NamespaceQuota(None, None, 0)),
        ({"namespace.resourcequota": resource(memory=1 << 63)}, NamespaceQuota(None, None, 0)),
        ({"namespace.resourcequota": resource(memory=None)}, NamespaceQuota(None, None, 0)),
        ({"namespace.resourcequota": "{"}, NamespaceQuota(None, None, 0)),
        ({"namespace.resourcequota": "[" * 100_000}, NamespaceQuota(None, None, 0)),
        ({"namespace.resourcequota": '{"resources": 3}'}, NamespaceQuota(None, None, 0)),
        ({"namespace.resourcequota": resource(**{f"t{n}": 1 for n in range(65)})}, NamespaceQuota(None, None, 0)),
    ],
)
def test_only_readable_quotas_count(tags: dict[str, str], found: NamespaceQuota) -> None:
    assert quota_of(tags) == found


def test_types_that_the_partition_cannot_count_are_no_quota_and_no_harm() -> None:
    cluster = Cluster(FAIR, partition=CREATE)
    for number in range(8):
        many = resource(**{f"t{number}-{kind}": 1 for kind in range(60)})
        cluster.app(f"x{number}", f"root.p.q{number}", **{"namespace.resourcequota": many})
    kept = [cluster.queue(f"root.p.q{number}").maximum is not None for number in range(8)]
    assert kept == [True] * 4 + [False] * 4
    assert len(cluster.partition.apps) == 8


def test_a_configured_queue_keeps_what_is_configured() -> None:
    cluster = Cluster(FAIR, partition=CREATE)
    cluster.app("x", "root.static", **{"namespace.resourcequota": resource(memory=5)})
    assert cluster.queue("root.static").maximum is None


def test_a_new_guarantee_moves_all_applications_of_a_fair_leaf() -> None:
    cluster = Cluster(FAIR, partition=CREATE)
    cluster.node("n", memory=1000, vcore=4)
    for app_id, wanted in (("x", {"memory": 900}), ("y", {"vcore": 4})):
        cluster.app(app_id, "root.p.d")
        cluster.ask(app_id, "k", **wanted)
        cluster.ask(app_id, "waits", memory=500)
    guaranteed = resource(memory=1000, vcore=1)
    cluster.app("z", "root.p.d", **{"namespace.resourceguaranteed": guaranteed})
    (waitlist,) = cluster.queue("root.p.d").waitlists.values()
    apps = [group.app.app_id for *_, group in waitlist.groups]
    assert apps == ["x", "y"]  # 0.9 of its guarantee before 4 of 1
    for *key, group in waitlist.groups:
        assert tuple(key) == ordering.group_key(group, group.head())


def test_the_same_quota_again_changes_nothing() -> None:
    cluster = Cluster(FAIR, partition=CREATE)
    quota = {"namespace.resourcequota": resource(memory=5), "namespace.resourcemaxapps": "2"}
    cluster.app("x", "root.p.d", **quota)
    version = cluster.partition.version
    out = cluster.app("y", "root.p.d", **quota)
    assert cluster.partition.version == version
    assert not [event for event in out.events if event.detail is EventDetail.QUEUE_MAX]
