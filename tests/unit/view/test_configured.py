"""The configuration in YuniKorn's shape, and the validation of one."""

from __future__ import annotations

import hashlib

from muster_core.config.queue_config import DEFAULT_CONFIG
from muster_queue_config.queue_yaml import load_queue_config
from muster_queue_config.sandboxed_parser import SandboxedParser
from muster_queue_config.settings import QueueConfigSettings
from muster_view.rest import queue_config_dao
from ruamel.yaml import YAML
from unit.view.recorded import Bench, client_of

TEXT = """
partitions:
  - name: ""
    preemption: {enabled: false, quotapreemptionenabled: true}
    nodesortpolicy: {type: binpacking, resourceweights: {vcore: 2.0, memory: 0.5}}
    limits:
      - {limit: everybody, users: ['*'], maxapplications: 5, maxresources: {vcore: '4'}}
    placementrules:
      - {name: user, create: true, parent: {name: fixed, value: root.a}, filter: {type: allow, groups: [ops]}}
    queues:
      - {name: a, parent: true, childtemplate: {maxapplications: 2, properties: {dbPassword: tiger}}}
      - {name: b, resources: {guaranteed: {vcore: 1}, max: {vcore: 1500m}}, maxapplications: 3}
"""
EXTRA = {"event.trackingEnabled": "true", "ldap.password": "tiger"}
LIMITS = [{"Limit": "everybody", "Users": ["*"], "MaxResources": {"vcore": "4"}, "MaxApplications": 5}]


def test_go_names_with_empty_structs_and_without_empty_lists() -> None:
    shown = queue_config_dao.to_dao(TEXT, EXTRA, go=True)
    (partition,) = shown["Partitions"]
    assert {key: value for key, value in partition.items() if key != "Queues"} == {
        "Name": "default",
        "PlacementRules": [
            {
                "Name": "user",
                "Create": True,
                "Filter": {"Type": "allow", "Groups": ["ops"]},
                "Parent": {"Name": "fixed", "Filter": {"Type": ""}, "Value": "root.a"},
            }
        ],
        "Limits": LIMITS,
        "Preemption": {"Enabled": False, "QuotaPreemptionEnabled": True},
        "NodeSortPolicy": {"Type": "binpacking", "ResourceWeights": {"vcore": 2, "memory": 0.5}},
        "UserGroupResolver": {},
    }
    # Queues without a root get one, which has the partition's limits.
    root = dict(partition["Queues"][0])
    first, second = root.pop("Queues")
    assert root == {"Name": "root", "Parent": True, "Resources": {}, "ChildTemplate": {}, "Limits": LIMITS} | {
        "ChildTemplate": {"Resources": {}}
    }
    assert first["ChildTemplate"] == {"MaxApplications": 2, "Properties": {"dbPassword": "***"}, "Resources": {}}
    assert second == {
        "Name": "b",
        "Resources": {"Guaranteed": {"vcore": "1"}, "Max": {"vcore": "1500m"}},
        "MaxApplications": 3,
        "ChildTemplate": {"Resources": {}},
    }
    assert shown["Checksum"] == hashlib.sha256(TEXT.encode()).hexdigest().upper()
    assert shown["Extra"] == {"event.trackingEnabled": "true", "ldap.password": "***"}


def test_yaml_leaves_out_what_is_empty_and_can_be_applied_again() -> None:
    text = queue_config_dao.as_yaml(TEXT, EXTRA).decode()
    assert "tiger" not in text
    tree = YAML(typ="safe").load(text)
    assert list(tree) == ["partitions", "checksum", "extra", "deadlockdetectionenabled", "deadlocktimeoutseconds"]
    (root,) = tree["partitions"][0]["queues"]
    assert root["queues"][1] == {
        "name": "b",
        "resources": {"guaranteed": {"vcore": "1"}, "max": {"vcore": "1500m"}},
        "maxapplications": 3,
    }
    plain = TEXT.replace("dbPassword", "color")
    again = queue_config_dao.as_yaml(plain, {}).decode().partition("deadlock")[0]
    assert load_queue_config(again)[0] == load_queue_config(plain)[0] is not None


def test_yaml_is_written_as_go_does() -> None:
    text = queue_config_dao.as_yaml(TEXT.replace("dbPassword: tiger", "z: '1', b: '2'"), {}).decode()
    # Root's limits are its partition's: YAML has them twice, without an anchor. Maps are sorted.
    assert text.count("limit: everybody") == 2
    assert "&id" not in text
    assert "*id" not in text
    assert text.index("b: '2'") < text.index("z: '1'")
    assert text.index("memory: 0.5") < text.index("vcore: 2")


def test_words_are_what_they_mean() -> None:
    """``yes`` is true in a boolean field and a text in a text field, as in Go."""
    text = """
partitions:
  - name: default
    preemption: {enabled: off, quotapreemptionenabled: "no"}
    placementrules: [{name: provided, create: on, filter: {users: [true, yes]}}]
    queues: [{name: true, parent: yes, maxapplications: 0x10, properties: {a: true, b: off}}, {name: b, parent: n}]
"""
    assert load_queue_config(text)[0] is not None
    (partition,) = queue_config_dao.to_dao(text, {}, go=True)["Partitions"]
    assert partition["Preemption"] == {"Enabled": False, "QuotaPreemptionEnabled": False}
    named = {"Type": "", "Users": ["true", "yes"]}
    assert partition["PlacementRules"] == [{"Name": "provided", "Create": True, "Filter": named}]
    first, second = partition["Queues"][0]["Queues"]
    assert (first["Name"], first["Parent"], first["MaxApplications"]) == ("true", True, 16)
    assert first["Properties"] == {"a": "true", "b": "off"}
    assert "Parent" not in second
    again = queue_config_dao.as_yaml(text, {}).decode().partition("deadlock")[0]
    assert load_queue_config(again)[0] == load_queue_config(text)[0]


def test_fields_that_go_never_omits() -> None:
    """The types of filters and of sorting have no ``omitempty`` in Go. The resolver's type has another name in JSON."""
    text = """
partitions:
  - name: default
    preemption: {enabled: false}
    usergroupresolver: {type: os}
    placementrules: [{name: user, filter: {users: [ann, bob]}}, {name: provided, create: true}]
    queues: [{name: root}]
"""
    assert load_queue_config(text)[0] is not None
    (partition,) = queue_config_dao.to_dao(text, {}, go=True)["Partitions"]
    assert partition["UserGroupResolver"] == {"type": "os"}
    assert partition["NodeSortPolicy"] == {"Type": ""}
    assert [rule["Filter"] for rule in partition["PlacementRules"]] == [
        {"Type": "", "Users": ["ann", "bob"]},
        {"Type": ""},
    ]
    # YAML omits a struct if all of it is empty; otherwise it has the fields without ``omitempty``.
    (partition,) = YAML(typ="safe").load(queue_config_dao.as_yaml(text, {}).decode())["partitions"]
    assert "nodesortpolicy" not in partition
    assert partition["preemption"] == {"enabled": False}
    assert partition["usergroupresolver"] == {"type": "os"}
    assert partition["placementrules"] == [
        {"name": "user", "filter": {"type": "", "users": ["ann", "bob"]}},
        {"name": "provided", "create": True},
    ]


def test_no_text_is_the_built_in_configuration() -> None:
    assert load_queue_config(queue_config_dao.DEFAULT_TEXT) == (DEFAULT_CONFIG, [])
    (partition,) = queue_config_dao.to_dao("", {}, go=True)["Partitions"]
    assert [rule["Name"] for rule in partition["PlacementRules"]] == ["tag", "provided"]


def test_root_is_a_parent_and_the_time_out_of_locks_is_the_cores_default() -> None:
    queues = "{name: root, submitacl: '*', queues: [{name: a}, {name: b, parent: true}]}"
    text = f"partitions: [{{name: default, queues: [{queues}]}}]"
    for go, key in ((True, str), (False, str.lower)):
        shown = queue_config_dao.to_dao(text, {}, go=go)
        (root,) = shown[key("Partitions")][0][key("Queues")]
        assert list(root)[:2] == [key("Name"), key("Parent")]
        assert root[key("Parent")] is True
        assert [each.get(key("Parent")) for each in root[key("Queues")]] == [None, True]
        assert (shown[key("DeadlockDetectionEnabled")], shown[key("DeadlockTimeoutSeconds")]) == (False, 60)
    assert "deadlocktimeoutseconds: 60" in queue_config_dao.as_yaml(text, {}).decode()


async def test_validating() -> None:
    settings = QueueConfigSettings(max_bytes=1024)
    judge = SandboxedParser(settings)
    try:
        assert (await queue_config_dao.validate(b"", judge)).allowed
        assert (await queue_config_dao.validate(TEXT.encode(), judge)).allowed
        bad = b"partitions:\n- {queues: [{name: root, foo: 1, maxapplications: -1}]}"
        refused = await queue_config_dao.validate(bad, judge)
        assert not refused.allowed
        first, second = refused.reason.splitlines()
        assert "unknown key 'foo'" in first
        assert "maxapplications" in second
        assert "not UTF-8: byte 1" in (await queue_config_dao.validate(b"a\xff", judge)).reason
        too_large = await queue_config_dao.validate(b"#" * 1025, judge)
        assert f"expected at most {settings.max_bytes}" in too_large.reason
    finally:
        await judge.close()


async def test_json_for_exactly_one_accept_header(bench: Bench) -> None:
    rm = bench.rm()
    rm.info.extra_config = dict(EXTRA)
    await bench.write(rm)
    async with bench.view() as view, client_of(view) as client:
        for accept, is_json in [("application/json", True), ("application/json, */*", False), ("*/*", False)]:
            answer = await client.get("/ws/v1/config", headers={"Accept": accept})
            kind = "application/json" if is_json else "application/x-yaml"
            assert answer.headers["content-type"] == f"{kind}; charset=UTF-8"
            assert "tiger" not in answer.text
            tree = answer.json() if is_json else YAML(typ="safe").load(answer.text)
            assert ("Partitions" in tree, "partitions" in tree) == (is_json, not is_json)


async def test_a_post_with_its_own_methods(bench: Bench) -> None:
    async with bench.view() as view, client_of(view) as client:
        answer = await client.post("/ws/v1/validate-conf", content=b"partitions: 5")
        assert (answer.status_code, answer.json()["allowed"]) == (200, False)
        assert answer.headers["access-control-allow-methods"] == "OPTIONS, POST"
        for method in ("GET", "HEAD", "PUT"):
            wrong = await client.request(method, "/ws/v1/validate-conf")
            assert (wrong.status_code, wrong.headers["allow"]) == (405, "OPTIONS, POST")
        asked = await client.options("/ws/v1/validate-conf")
        assert (asked.status_code, asked.headers["allow"]) == (200, "OPTIONS, POST")
        large = await client.post("/ws/v1/validate-conf", content=b"#" * (4 << 20))
        assert large.json()["allowed"] is False
        assert large.json()["reason"].endswith(f"expected at most {QueueConfigSettings().max_bytes}")
