"""The placement rules in REST."""

from __future__ import annotations

import json

from muster_core.partition import Partition
from muster_queue_config.queue_yaml import load_queue_config
from muster_runtime.go_json import go_json
from muster_view.rest import placement_rules

RECOVERY = {"name": "recovery", "parameters": {"queue": "root.@recovery@"}}


def shown(rules: str) -> object:
    config, problems = load_queue_config(
        f"partitions: [{{name: default, placementrules: [{rules}], queues: [{{name: root, submitacl: '*'}}]}}]"
    )
    assert config is not None, problems
    return json.loads(go_json(placement_rules.rules(Partition(config.partitions[0]))))


def test_every_rule_with_its_parameters() -> None:
    assert shown(
        "{name: Provided, create: true}, {name: user}, {name: fixed, value: Root.Jobs, create: true},"
        " {name: fixed, value: jobs.x, create: true}, {name: fixed, value: rooted, create: true},"
        " {name: tag, value: Namespace}"
    ) == [
        {"name": "provided", "parameters": {"create": "true"}},
        {"name": "user", "parameters": {"create": "false"}},
        {"name": "fixed", "parameters": {"create": "true", "qualified": "true", "queue": "root.jobs"}},
        {"name": "fixed", "parameters": {"create": "true", "qualified": "false", "queue": "jobs.x"}},
        {"name": "fixed", "parameters": {"create": "true", "qualified": "false", "queue": "rooted"}},
        {"name": "tag", "parameters": {"create": "false", "tagName": "namespace"}},
        RECOVERY,
    ]


def test_filters_and_parents() -> None:
    assert shown(
        "{name: user, filter: {type: deny, users: [ann, bob], groups: ['^dev.*']}, parent:"
        " {name: tag, value: namespace, create: true, filter: {users: ['a.*']}}}, {name: provided, filter: {}}"
    ) == [
        {
            "name": "user",
            "parameters": {"create": "false"},
            "filter": {"type": "deny", "userList": ["ann", "bob"], "groupExp": "^dev.*"},
            "parentRule": {
                "name": "tag",
                "parameters": {"create": "true", "tagName": "namespace"},
                "filter": {"type": "allow", "userExp": "a.*"},
            },
        },
        {"name": "provided", "parameters": {"create": "false"}},
        RECOVERY,
    ]


def test_without_rules_the_provided_one_is_asked() -> None:
    assert shown("") == [{"name": "provided", "parameters": {"create": "false"}}, RECOVERY]
