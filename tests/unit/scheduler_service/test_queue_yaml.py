"""The queue configuration in YAML: every key, the error of every rule with its place, and hostile YAML."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from muster_core.config.acl import ACL_CHARACTERS_MAX
from muster_core.config.queue_config import (
    DEFAULT_CONFIG,
    QUEUE_DEPTH_MAX,
    ChildTemplateConfig,
    FilterConfig,
    LimitConfig,
    PartitionConfig,
    PlacementRuleConfig,
    PreemptionConfig,
    QueueConfig,
    ReservationConfig,
)
from muster_queue_config.queue_yaml import ConfigProblem, checksum, load_queue_config
from muster_queue_config.queue_yaml_rules import EXPRESSIONS_MAX, RULES_MAX
from muster_queue_config.yaml_reader import CHARACTERS_MAX, PROBLEMS_MAX
from muster_queue_config.yaml_tree import NODES_MAX


def _errors(text: str) -> list[ConfigProblem]:
    config, problems = load_queue_config(text)
    errors = [problem for problem in problems if problem.severity == "error"]
    assert (config is None) == bool(errors)
    return errors


def _warnings(text: str) -> list[ConfigProblem]:
    config, problems = load_queue_config(text)
    assert config is not None, problems
    return problems


def _only(text: str) -> PartitionConfig:
    """Return the only partition of a text, which must have no problems."""
    config, problems = load_queue_config(text)
    assert config is not None, problems
    assert problems == []
    (partition,) = config.partitions
    return partition


def _root(queues: str) -> str:
    """Return a configuration with this text under root's ``queues:``."""
    return "partitions:\n- queues:\n  - name: root\n    queues:\n" + queues


def _queue(queue: str) -> str:
    return _root(f"    - {queue}\n")


def _partition(keys: str) -> str:
    return f"partitions:\n- queues: []\n  {keys}\n"


def _marked(text: str) -> tuple[str, int, int]:
    """Remove the mark » from a text; return the text, and the mark's line and column from 1 (the problem's place)."""
    before, mark, behind = text.partition("»")
    assert mark
    return before + behind, before.count("\n") + 1, len(before) - before.rfind("\n")


# ---- valid configurations ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["", " \n", "# nothing", "---\n", "{}", "partitions:", "partitions: []", "null", "~"])
def test_nothing_is_the_built_in_default(text: str) -> None:
    assert load_queue_config(text) == (DEFAULT_CONFIG, [])


def test_every_key() -> None:
    config, problems = load_queue_config("""
checksum: 0123
partitions:
  - name: DEFAULT
    nodesortpolicy: {type: binpacking, resourceweights: {vcore: 2, memory: 0.5, gpu: 0}}
    preemption: {enabled: false, quotapreemptionenabled: true, optout: last}
    reservation: {enabled: false, delay: 0s, timeout: 1h30m}
    usergroupresolver: {type: ldap}
    placementrules:
      - {name: Tag, value: namespace, create: true, filter: {type: Deny, users: [ann, bob$], groups: ["^x"]}}
      - name: user
        parent: {name: FIXED, value: Parent, filter: {groups: [ops]}, parent: {name: tag, value: team, create: true}}
      - {name: fixed, value: root.a}
      - {name: provided, create: false, filter: {}}
    queues:
      - name: root
        submitacl: '*'
        limits: [{limit: all, users: [zoe, "*"], groups: [ops, "*"], maxapplications: 9, maxresources: {vcore: 1}}]
        queues:
          - name: A
            maxapplications: 7
            submitacl: "ann,bob ops"
            adminacl: ' admins'
            properties: {application.sort.policy: fair, application.sort.priority: disabled, flag: true, n: 010}
            resources:
              guaranteed: {vcore: 500m, memory: 1Gi}
              max: {vcore: 2, memory: 2Gi, gpu: 0}
          - name: parent
            parent: true
            childtemplate:
              maxapplications: 3
              properties: {application.sort.policy: fair}
              resources: {guaranteed: {vcore: 1}, max: {vcore: 4}}
  - name: gpu
    queues: []
""")
    assert config is not None, problems
    first, second = config.partitions
    assert (first.name, first.node_sort_policy) == ("default", "binpacking")
    assert first.node_sort_weights == {"vcore": 2.0, "memory": 0.5, "gpu": 0.0}
    assert first.preemption == PreemptionConfig(False, True, True)
    assert first.reservation == ReservationConfig(False, 0, 5400 * 1_000_000_000)
    assert first.user_group_resolver == "ldap"
    by_team = PlacementRuleConfig("tag", True, "team")
    in_parent = PlacementRuleConfig("fixed", False, "Parent", FilterConfig(groups=("ops",)), by_team)
    assert first.placement_rules == (
        PlacementRuleConfig("tag", True, "namespace", FilterConfig(True, ("ann", "bob$"), ("^x",))),
        PlacementRuleConfig("user", parent=in_parent),
        PlacementRuleConfig("fixed", False, "root.a"),
        PlacementRuleConfig("provided", filter=FilterConfig()),
    )
    assert first.root.submit_acl == "*"
    assert first.root.limits == (LimitConfig(("zoe", "*"), ("ops", "*"), 9, {"vcore": 1000}, "all"),)
    assert first.root.queues == (
        QueueConfig(
            "A",
            guaranteed={"vcore": 500, "memory": 1 << 30},
            maximum={"vcore": 2000, "memory": 2 << 30, "gpu": 0},
            max_applications=7,
            properties={
                "application.sort.policy": "fair",
                "application.sort.priority": "disabled",
                "flag": "true",
                "n": "010",
            },
            submit_acl="ann,bob ops",
            admin_acl=" admins",
        ),
        QueueConfig(
            "parent",
            parent=True,
            child_template=ChildTemplateConfig(
                3, {"application.sort.policy": "fair"}, {"vcore": 1000}, {"vcore": 4000}
            ),
        ),
    )
    assert (second.name, second.root) == ("gpu", QueueConfig("root", parent=True))
    assert second.placement_rules == (PlacementRuleConfig("provided"),)
    assert second == PartitionConfig("gpu", QueueConfig("root", parent=True))
    assert [problem.path for problem in problems] == [
        "partitions[0].queues[0].queues[0].properties.flag",
        "partitions[0].queues[0].queues[0].properties.n",
    ]


@pytest.mark.parametrize("policy", ["fair", "binpacking", "fragmentation", "dotproduct"])
def test_node_sort_policies(policy: str) -> None:
    partition = _only(f"partitions: [{{queues: [], nodesortpolicy: {{type: {policy}}}}}]")
    assert (partition.node_sort_policy, partition.node_sort_weights) == (policy, {"vcore": 1.0, "memory": 1.0})


# Each optional part that holds others: the text around it, its key, and an empty one.
EMPTY_PARTS = [
    ("partitions: [{queues: [], %s}]", "limits", "[]"),
    (
        "partitions: [{queues: [{name: root, limits: [{limit: l, users: [u], maxapplications: 3}]}], %s}]",
        "limits",
        "[]",
    ),
    ("partitions: [{queues: [], %s}]", "placementrules", "[]"),
    ("partitions: [{queues: [], %s}]", "nodesortpolicy", "{}"),
    ("partitions: [{queues: [], nodesortpolicy: {type: binpacking, %s}}]", "resourceweights", "{}"),
    ("partitions: [{queues: [], %s}]", "preemption", "{}"),
    ("partitions: [{queues: [], %s}]", "reservation", "{}"),
    ("partitions: [{queues: [], %s}]", "usergroupresolver", "{}"),
    ("partitions: [{queues: [{name: q, %s}]}]", "queues", "[]"),
    ("partitions: [{queues: [{name: q, %s}]}]", "limits", "[]"),
    ("partitions: [{queues: [{name: q, %s}]}]", "properties", "{}"),
    ("partitions: [{queues: [{name: q, %s}]}]", "resources", "{}"),
    ("partitions: [{queues: [{name: q, parent: true, %s}]}]", "childtemplate", "{}"),
    ("partitions: [{queues: [{name: q, parent: true, childtemplate: {%s}}]}]", "properties", "{}"),
    ("partitions: [{queues: [{name: q, parent: true, childtemplate: {%s}}]}]", "resources", "{}"),
    ("partitions: [{queues: [{name: q, parent: true, childtemplate: {resources: {%s}}}]}]", "max", "{}"),
    ("partitions: [{queues: [{name: q, limits: [{limit: l, users: [u], maxapplications: 3, %s}]}]}]", "groups", "[]"),
    ("partitions: [{queues: [{name: q, limits: [{limit: l, groups: [g], maxapplications: 3, %s}]}]}]", "users", "[]"),
    (
        "partitions: [{queues: [{name: q, limits: [{limit: l, users: [u], maxapplications: 3, %s}]}]}]",
        "maxresources",
        "{}",
    ),
    ("partitions: [{queues: [], placementrules: [{name: user, filter: {users: [u, v], %s}}]}]", "groups", "[]"),
    ("partitions: [{queues: [], placementrules: [{name: user, filter: {groups: [g, h], %s}}]}]", "users", "[]"),
]


@pytest.mark.parametrize(("around", "key", "empty"), EMPTY_PARTS, ids=lambda value: value)
def test_an_empty_part_is_as_one_that_is_absent(around: str, key: str, empty: str) -> None:
    absent = _only(around.replace(", %s", "").replace("%s", ""))
    assert _only(around % f"{key}: {empty}") == absent
    assert _only(around % f"{key}: null") == absent


@pytest.mark.parametrize("empty", ["{}", "", "{guaranteed: {}, max: {}}", "{guaranteed: , max: }"])
def test_empty_resources_set_no_limit(empty: str) -> None:
    (queue,) = _only(f"partitions: [{{queues: [{{name: q, resources: {empty}}}]}}]").root.queues
    assert not queue.guaranteed
    assert not queue.maximum


def test_weights_of_zero_stay_zero() -> None:
    partition = _only("partitions: [{queues: [], nodesortpolicy: {resourceweights: {vcore: 0, memory: 0}}}]")
    assert partition.node_sort_weights == {"vcore": 0.0, "memory": 0.0}


@pytest.mark.parametrize(("kind", "kept"), [("''", ""), ("os", "os"), ("ldap", "ldap"), ("", "")])
def test_resolvers(kind: str, kept: str) -> None:
    assert _only(f"partitions: [{{queues: [], usergroupresolver: {{type: {kind}}}}}]").user_group_resolver == kept


def test_empty_values_count_as_absent() -> None:
    partition = _only(
        "partitions: [{queues: [{name: p, parent: true, childtemplate: {}, limits: [], properties: {}}, {name: b}],"
        " preemption: {}, reservation: {}, usergroupresolver: {}, nodesortpolicy: {}, limits: [], placementrules: []}]"
    )
    assert partition == PartitionConfig(
        "default", QueueConfig("root", True, (QueueConfig("p", True), QueueConfig("b")))
    )


LIMIT = "{users: [ann], maxapplications: 1}"


def test_a_partitions_limits_are_roots() -> None:
    for root in ("", ", limits: []", f", limits: [{LIMIT}]"):
        partition = _only(f"partitions: [{{queues: [{{name: root{root}}}], limits: [{LIMIT}]}}]")
        assert partition.root.limits == (LimitConfig(("ann",), (), 1),)
    assert _only(f"partitions: [{{queues: [{{name: a}}], limits: [{LIMIT}]}}]").root.limits == (
        LimitConfig(("ann",), (), 1),
    )


def test_a_root_is_put_on_top_of_other_queues() -> None:
    for queues in ("[{name: a}, {name: root}]", "[{name: a}]"):
        config, _ = load_queue_config(f"partitions: [{{queues: {queues}}}]")
        assert config is not None
        assert config.partitions[0].root.name == "root"
        assert config.partitions[0].root.queues[0].name == "a"


def test_root_in_any_case_is_root() -> None:
    config, _ = load_queue_config("partitions: [{queues: [{name: Root, submitacl: '*'}]}]")
    assert config is not None
    assert config.partitions[0].root.submit_acl == "*"


WARNINGS = {
    "unknown property": (
        _queue("{name: a, properties: {»preemption.dely: 5s}}"),
        "unknown property 'preemption.dely' is kept and shown, but has no effect: is preemption.delay meant?",
    ),
    "a property like no other": (_queue("{name: a, properties: {»x: y}}"), "but has no effect"),
    "a property's value": (
        _queue("{name: a, properties: {priority.offset: »high}}"),
        "'high' means the default, 0: expected a 32-bit integer",
    ),
    "a property's value in a template": (
        _queue("{name: p, parent: true, childtemplate: {properties: {preemption.delay: »never}}}"),
        "'never' means the default, 30s: expected a duration above 0",
    ),
    "a property without effect": (
        _queue("{name: a, properties: {»application.unschedasks.backoff: 3}}"),
        "has no effect: Muster does not retry asks that cannot fit",
    ),
    "another one": (
        _queue("{name: a, properties: {»application.unschedasks.backoff.delay: 9s}}"),
        "has no effect: Muster does not retry asks that cannot fit",
    ),
    "zero max": (_queue("{name: a, resources: {max: »{x: 0, y: 0}}}"), "max is zero in all types"),
    "zero guaranteed": (
        _queue("{name: a, resources: {guaranteed: »{x: 0}}}"),
        "guaranteed is zero in all types: it means not set",
    ),
    "a template on a leaf": (
        _queue("{name: a, »childtemplate: {maxapplications: 3}}"),
        "childtemplate has no effect on a leaf",
    ),
    "names in an access list": (
        _queue("{name: a, submitacl: »'1st,ann o@ps'}"),
        "1st, o@ps: not names of users or groups, so these entries admit no user",
    ),
    "a star among names": (_queue("{name: a, adminacl: »'*,ann'}"), "* means everybody only where it stands alone"),
    "resolver": (
        _partition("usergroupresolver: {type: »LDAP}"),
        "unknown resolver 'LDAP' means none: expected one of os, ldap, test, or nothing",
    ),
    "test resolver": (_partition("usergroupresolver: {type: »test}"), "for tests only"),
    "test rule": (_partition("placementrules: [{name: »Test}]"), "for tests only"),
    "a value that nobody reads": (
        _partition("placementrules: [{name: user, value: »x}]"),
        "a value has no effect in the rule user",
    ),
    "an empty deny": (
        _partition("placementrules: [{name: user, »filter: {type: deny}}]"),
        "a deny filter without names refuses everybody",
    ),
    "an expression among names": (
        _partition("placementrules: [{name: user, filter: {users: [ann, »'b.*']}}]"),
        "'b.*' is not a user's name and matches none",
    ),
    "a parent that may not create": (
        (
            "partitions:\n- queues: []\n"
            "  placementrules: [»{name: user, create: true, parent: {name: fixed, value: users}}]\n"
        ),
        "placement rule no. #0 (fixed->user) references non-existing queues (root.users) and create of a parent is",
    ),
}


@pytest.mark.parametrize("case", WARNINGS)
def test_parts_without_effect_have_a_warning(case: str) -> None:
    marked, what = WARNINGS[case]
    text, line, column = _marked(marked)
    (warning,) = _warnings(text)
    assert (warning.severity, warning.line, warning.column) == ("warning", line, column), warning
    assert what in warning.message


def test_only_the_first_document_is_read() -> None:
    config, problems = load_queue_config(_root("    - name: a\n") + "---\n[nothing: {like: it\n")
    assert (config is not None, problems) == (True, [])


def test_anchors_and_merge_keys() -> None:
    config, problems = load_queue_config(
        _root("""\
    - &base {name: a, maxapplications: 3, resources: {max: &most {vcore: 4}}}
    - {<<: *base, name: b}
    - name: c
      <<: [{maxapplications: 9}, *base]
      resources: {max: *most}
""")
    )
    assert config is not None, problems
    queues = config.partitions[0].root.queues
    assert [(q.name, q.max_applications, q.maximum) for q in queues] == [
        ("a", 3, {"vcore": 4000}),
        ("b", 3, {"vcore": 4000}),
        ("c", 9, {"vcore": 4000}),
    ]


# ---- each rule -----------------------------------------------------------------------------------------------------

RULES = {
    "not a mapping at all": ("»- 1\n", "expected a mapping with keys among checksum, partitions, got a list"),
    "unknown key on top": ("»partition: []\n", "unknown key 'partition'"),
    "camel case": ("»Partitions: []\n", "unknown key 'Partitions'"),
    "partitions is no list": ("partitions: »{name: x}\n", "expected a list, got a mapping"),
    "a partition is no mapping": ("partitions:\n- »x\n", "got a text"),
    "no queues": ("partitions:\n- »name: default\n", "queue config is not set"),
    "null queues": ("partitions:\n- »queues:\n", "queue config is not set"),
    "queues is no list": ("partitions:\n- queues: »3\n", "expected a list, got a number"),
    "partition twice": (
        "partitions:\n- {queues: []}\n- »{name: Default, queues: []}\n",
        "duplicate partition name 'default'",
    ),
    "partition name": (_partition(f"name: »{'x' * 65}"), "invalid partition name"),
    "control characters": ('partitions:\n- queues: []\n  name: »"a\\nb"\n', "invalid partition name"),
    "name of a list": (_partition("name: »[a]"), "expected a text, got a list"),
    "limits on root": (
        "partitions:\n- queues:\n  - name: »root\n    resources: {max: {}}\n",
        "root queue must not have resource limits set",
    ),
    "queue without name": (_queue("»parent: true"), "invalid queue name ''"),
    "queue name": (_queue("name: »a.b"), "invalid queue name 'a.b'"),
    "queue name with an end of line": (_root('    - name: »"a\\n"\n'), "invalid queue name"),
    "queue name too long": (_queue(f"name: »{'x' * 65}"), "invalid queue name"),
    "siblings": (_root("    - name: a\n    - name: »A\n"), "duplicate child name found with name 'A', level 2"),
    "recovery queue": (_queue("name: »'@Recovery@'"), "Muster creates it when an application must be accepted"),
    "unknown queue key": (_root("    - name: a\n      »maxApplications: 1\n"), "unknown key 'maxApplications'"),
    "parent": (_root("    - name: a\n      parent: »perhaps\n"), "expected true or false, got a text"),
    "parent in mixed letters": (_root("    - name: a\n      parent: »yEs\n"), "expected true or false, got a text"),
    "negative count": (_queue("{name: a, maxapplications: »-1}"), "whole number from 0 on, got a number '-1'"),
    "fraction": (_queue("{name: a, maxapplications: »1.5}"), "got a number with a fraction '1.5'"),
    "too large": (_queue(f"{{name: a, maxapplications: »{1 << 64}}}"), "expected a whole number"),
    "count of a list": (_queue("{name: a, maxapplications: »[1]}"), "got a list"),
    "acl": (_root("    - name: a\n      submitacl: »a b c\n"), "multiple spaces found in ACL"),
    "adminacl": (_root("    - name: a\n      adminacl: »a b c\n"), "multiple spaces found in ACL"),
    "resources": (_queue("{name: a, resources: »5}"), "expected a mapping with keys among guaranteed, max"),
    "resources' key": (_queue("{name: a, resources: {»min: {}}}"), "unknown key 'min'"),
    "max is no mapping": (_queue("{name: a, resources: {max: »[1]}}"), "got a list"),
    "quantity": (_queue("{name: a, resources: {max: {vcore: »1.5}}}"), "invalid quantity '1.5'"),
    "quantity null": (_queue("{name: a, resources: {max: {vcore: »}}}"), "invalid quantity nothing"),
    "quantity a list": (_queue("{name: a, resources: {max: {vcore: »[1]}}}"), "invalid quantity a list"),
    "quantity huge": (
        _queue(f"{{name: a, resources: {{max: {{m: »'{'9' * 5000}'}}}}}}"),
        "is over 9223372036854775807",
    ),
    "suffix": (_queue("{name: a, resources: {max: {memory: »1K}}}"), "invalid suffix 'K'"),
    "guaranteed over max": (
        _root("    - name: a\n      resources:\n        guaranteed: {x: 1, y: »5}\n        max: {y: 4}\n"),
        "guaranteed resource y 5 is larger than maximum 4",
    ),
    "max over the parent's": (
        _root(
            "    - name: p\n      resources: {max: {x: 3}}\n      queues:\n"
            "      - {name: q, parent: true, queues: [{name: »a, resources: {max: {x: 4}}}]}\n"
        ),
        "queue root.p.q.a: max x 4: max resource of parent 3 is smaller",
    ),
    "guaranteed of children over guaranteed": (
        _root(
            "    - name: »p\n      resources: {guaranteed: {x: 3}}\n      queues:\n"
            "      - {name: a, resources: {guaranteed: {x: 2}}}\n      - {name: b, resources: {guaranteed: {x: 2}}}\n"
        ),
        "guaranteed x 3 is smaller than sum of guaranteed resources 4",
    ),
    "guaranteed of grandchildren over max": (
        _root(
            "    - name: p\n      resources: {max: {x: 3}}\n      queues:\n"
            "      - name: »q\n        queues:\n"
            "        - {name: a, resources: {guaranteed: {x: 2}}}\n"
            "        - {name: b, resources: {guaranteed: {x: 2}}}\n"
        ),
        "max x 3 is smaller than sum of guaranteed resources 4",
    ),
    "applications over the parent's": (
        _root("    - name: p\n      maxapplications: 2\n      queues:\n      - {name: »a, maxapplications: 3}\n"),
        "queue root.p.a: maxapplications 3: parent maxApplications must be larger than child maxApplications, and is 2",
    ),
    "applications unset under a limit": (
        _root("    - name: p\n      maxapplications: 2\n      queues:\n      - name: »a\n"),
        "maxapplications unset: either undefined or zero, not allowed when parent's maxApplications is defined, as 2",
    ),
    "properties": (_queue("{name: a, properties: »[x]}"), "expected a mapping of texts, got a list"),
    "a property": (_queue("{name: a, properties: {x: »{y: z}}}"), "expected a text, got a mapping"),
    "rules are no list": (_partition("placementrules: »x"), "expected a list"),
    "a rule is no mapping": (_partition("placementrules: [»x]"), "got a text"),
    "unknown rule": (_partition("placementrules: [{name: »recovery}]"), "unknown placement rule"),
    "rule without name": (_partition("placementrules: [»{create: true}]"), "unknown placement rule ''"),
    "fixed without value": (_partition("placementrules: [»{name: fixed}]"), "needs a value"),
    "tag without value": (_partition("placementrules: [»{name: tag}]"), "needs a value"),
    "create": (_partition("placementrules: [{name: user, create: »1}]"), "expected true or false"),
    "node sort a scalar": (_partition("nodesortpolicy: »fair"), "expected a mapping"),
    "node sort type": (_partition("nodesortpolicy: {type: »Fair}"), "undefined policy: Fair"),
    "weights": (_partition("nodesortpolicy: {resourceweights: »[1]}"), "expected a mapping to numbers"),
    "negative weight": (
        _partition("nodesortpolicy: {resourceweights: {gpu: »-1}}"),
        "negative resource weight for gpu is not allowed",
    ),
    "weight nan": (_partition("nodesortpolicy: {resourceweights: {a: ».nan}}"), "expected a number"),
    "weight inf": (_partition("nodesortpolicy: {resourceweights: {a: ».inf}}"), "at most 1000000000"),
    "weight 1e400": (_partition("nodesortpolicy: {resourceweights: {a: »1e400}}"), "at most"),
    "weight of many digits": (_partition(f"nodesortpolicy: {{resourceweights: {{a: »1{'0' * 90}}}}}"), "at most"),
    "weight a text": (_partition("nodesortpolicy: {resourceweights: {a: »b}}"), "expected a number"),
    "preemption": (_partition("preemption: {enabled: »1}"), "expected true or false"),
    "preemption a scalar": (_partition("preemption: »true"), "expected a mapping"),
    "opting out": (_partition("preemption: {optout: »first}"), "expected never or last"),
    "reservation": (_partition("reservation: {»after: 2s}"), "unknown key 'after'"),
    "reservation's delay": (
        _partition("reservation: {delay: »2}"),
        "expected a duration from 0 on, such as 30s, got a number '2'",
    ),
    "reservation's timeout": (
        _partition("reservation: {timeout: »0s}"),
        "expected a duration above 0 on, such as 30s, got a text '0s'",
    ),
    "resolver a scalar": (_partition("usergroupresolver: »ldap"), "expected a mapping"),
    # ---- access lists
    "acl too long": (
        _root(f"    - name: a\n      submitacl: »{'x' * (ACL_CHARACTERS_MAX + 1)}\n"),
        "groups are the means for more",
    ),
    # ---- templates: YuniKorn finds these errors when it activates the configuration
    "template's key": (_queue("{name: p, parent: true, childtemplate: {»submitacl: x}}"), "unknown key 'submitacl'"),
    "template's quantity": (
        _queue("{name: p, parent: true, childtemplate: {resources: {max: {memory: »1Mb}}}}"),
        "invalid suffix 'Mb'",
    ),
    "template's guaranteed over its max": (
        _queue("{name: p, parent: true, childtemplate: {resources: {max: {x: 1}, guaranteed: {x: »2}}}}"),
        "guaranteed resource x 2 is larger than maximum 1",
    ),
    "template's count": (
        _queue("{name: p, parent: true, childtemplate: {maxapplications: »x}}"),
        "expected a whole number",
    ),
    "template is a list": (_queue("{name: p, parent: true, childtemplate: »[]}"), "got a list"),
}


def _limits(*limits: str, queue: str = "") -> str:
    return _root(f"    - name: a\n      limits: [{', '.join(limits)}]\n{queue}")


def _tree(above: str, below: str) -> str:
    return _root(
        f"    - name: p\n      limits: [{above}]\n      queues:\n      - name: q\n"
        f"        queues: [{{name: a, limits: [{below}]}}]\n"
    )


RULES |= {
    "limits are no list": (_queue("{name: a, limits: »{users: [x]}}"), "expected a list"),
    "limit's key": (_limits("{»user: [ann], maxapplications: 1}"), "unknown key 'user'"),
    "users are no list": (_limits("{users: »ann, maxapplications: 1}"), "expected a list, got a text"),
    "a user is a list": (_limits("{users: [»[ann]], maxapplications: 1}"), "expected a text, got a list"),
    "nobody is limited": (
        _limits("»{limit: l, maxapplications: 1}"),
        "empty user and group lists defined in limit 'l'",
    ),
    "limit's user": (_limits("{users: [»1a], maxapplications: 1}"), "invalid limit user name '1a' in limit"),
    "limit's group": (_limits("{groups: [»a@b], maxapplications: 1}"), "invalid limit group name 'a@b' in limit"),
    "user twice": (_limits("{users: [ann, »ann], maxapplications: 1}"), "duplicated user name ann , already existed"),
    "user twice in two limits": (
        _limits(LIMIT, LIMIT.replace("ann", "»ann")),
        "duplicated user name ann , already existed",
    ),
    "group twice": (
        _limits("{groups: [ops, dev, »ops], maxapplications: 1}"),
        "duplicated group name ops , already existed",
    ),
    "wildcard twice": (
        _limits("{users: ['*'], maxapplications: 1}", "{users: [»'*'], maxapplications: 2}"),
        "duplicated user name * , already existed",
    ),
    "user after the wildcard": (
        _limits("{users: ['*', »ann], maxapplications: 1}"),
        "should not set no wildcard user ann after wildcard user limit",
    ),
    "group after the wildcard": (
        _limits("{groups: [ops, '*'], maxapplications: 1}", "{groups: [»dev], maxapplications: 1}"),
        "should not set no wildcard group dev after wildcard group limit",
    ),
    "wildcard group alone": (
        _limits("{groups: [»'*'], maxapplications: 1}"),
        (
            "should not specify only one group limit that is using the wildcard. "
            "There must be at least one limit with a group name defined"
        ),
    ),
    "limit of nothing": (
        _limits("»{limit: l, users: [ann]}"),
        "invalid resource combination for limit 'l' all resource limits are null",
    ),
    "limit of empty resources": (_limits("»{users: [ann], maxresources: {}}"), "all resource limits are null"),
    "limit of zero": (
        _limits("{users: [ann], maxapplications: 1, maxresources: »{x: 0, y: 0}}"),
        "MaxResources should be greater than zero in limit ''",
    ),
    "limit's quantity": (_limits("{users: [ann], maxresources: {x: »-1}}"), "invalid quantity '-1'"),
    "limit's count": (_limits("{users: [ann], maxapplications: »many}"), "expected a whole number"),
    "limit over the queue's applications": (
        _limits("»{limit: l, users: [ann], maxapplications: 3}", queue="      maxapplications: 2\n"),
        "invalid MaxApplications settings for limit 'l' exceed current the queue MaxApplications: 3",
    ),
    "limit over the queue's max": (
        _limits("»{limit: l, users: [ann], maxresources: {x: 3, y: 9}}", queue="      resources: {max: {x: 2}}\n"),
        (
            "invalid MaxResources settings for limit 'l' exeecd current the queue MaxResources: {x: 3}, "
            "expected at most {x: 2}"
        ),
    ),
    "limit over root's applications": (
        f"partitions:\n- queues: [{{name: root, maxapplications: 1}}]\n  limits: [»{LIMIT.replace('1', '2')}]\n",
        "exceed current the queue MaxApplications",
    ),
    "partition's limits are not root's": (
        f"partitions:\n- queues: [{{name: root, limits: [{LIMIT}]}}]\n  »limits: [{LIMIT.replace('ann', 'bob')}]\n",
        "partition limits and root queue limits are not equivalent",
    ),
    "user over what an ancestor allows": (
        _tree("{users: [ann], maxresources: {x: 5, y: 1}}", "{users: [»ann], maxresources: {x: 6, z: 9}}"),
        (
            "user ann max resource {x: 6} of queue root.p.q.a is greater than immediate or ancestor parent maximum "
            "resource {x: 5}"
        ),
    ),
    "group over what an ancestor allows": (
        _tree("{groups: [ops], maxresources: {x: 5}}", "{groups: [»ops], maxresources: {x: 6}}"),
        "group ops max resource {x: 6} of queue root.p.q.a is greater than immediate or ancestor parent maximum",
    ),
    "wildcard over the ancestor's": (
        _tree("{users: ['*'], maxresources: {x: 5}}", "{users: [»'*'], maxresources: {x: 6}}"),
        "user * max resource {x: 6} of queue root.p.q.a is greater than immediate or ancestor parent maximum",
    ),
    "user over the ancestor's wildcard": (
        _tree("{users: ['*'], maxresources: {x: 5}}", "{users: [»ann], maxresources: {x: 6}}"),
        (
            "user ann max resource {x: 6} of queue root.p.q.a is greater than wildcard maximum resource of "
            "immediate or ancestor parent queue: {x: 5}"
        ),
    ),
    "user's applications over the ancestor's": (
        _tree("{users: [ann], maxapplications: 5}", "{users: [»ann], maxapplications: 6}"),
        "user ann max applications 6 of queue root.p.q.a is greater than immediate or ancestor parent max",
    ),
    "user's applications unset under a limit": (
        _tree("{users: [ann], maxapplications: 5}", "{users: [»ann], maxresources: {x: 6}}"),
        "user ann max applications 0 (any number) of queue root.p.q.a is greater than",
    ),
    "group's applications over the ancestor's wildcard": (
        _tree("{groups: [ops, '*'], maxapplications: 5}", "{groups: [»dev], maxapplications: 6}"),
        "group dev max applications 6 of queue root.p.q.a is greater than wildcard max applications of immediate or",
    ),
    "the least of two ancestors": (
        (
            "partitions:\n- limits: [{users: [ann], maxresources: {x: 3, y: 7}}]\n  queues:\n"
            "  - name: p\n    limits: [{users: [ann], maxresources: {x: 2, z: 1}}]\n    queues:\n"
            "    - {name: a, limits: [{users: [»ann], maxresources: {x: 2, y: 8, z: 1}}]}\n"
            "    - {name: b}\n"
        ),
        (
            "user ann max resource {y: 8} of queue root.p.a is greater than immediate or ancestor parent maximum "
            "resource {y: 7}"
        ),
    ),
}


def _rules(*rules: str, queues: str = "{name: Leaf}, {name: P, queues: [{name: In}]}, {name: E, parent: true}") -> str:
    return f"partitions:\n- queues: [{queues}]\n  placementrules: [{', '.join(rules)}]\n"


def _fixed(value: str, more: str = "") -> str:
    return f"{{name: fixed, value: {value}{', ' + more if more else ''}}}"


def _user_below(parent: str, *, create: bool = False) -> str:
    return f"{{name: user, create: {str(create).lower()}, parent: {parent}}}"


RULES |= {
    "filter is a list": (_rules("{name: user, filter: »[ann]}"), "expected a mapping"),
    "filter's key": (_rules("{name: user, filter: {»user: ann}}"), "unknown key 'user'"),
    "filter's type": (
        _rules("{name: user, filter: {type: »except}}"),
        "invalid rule filter type except, filter type must be either '', allow or deny",
    ),
    "filter's only name": (
        _rules("{name: user, filter: {users: [»1st]}}"),
        "invalid rule filter user list is not a proper list or regexp: '1st'",
    ),
    "filter's only group": (
        _rules("{name: user, filter: {groups: [»'a b']}}"),
        "invalid rule filter group list is not a proper list or regexp: 'a b'",
    ),
    "filter's expression": (
        _rules("{name: user, filter: {users: [»'(a']}}"),
        "invalid rule filter user list is not a proper list or regexp: missing )",
    ),
    "filter's expression is too large": (
        _rules(r"{name: user, filter: {groups: [»'(\pL{1,100}){10}']}}"),
        "invalid rule filter group list is not a proper list or regexp: pattern too large - compile failed",
    ),
    "too many expressions": (
        _rules(*["{name: user, filter: {users: ['^a']}}"] * EXPRESSIONS_MAX, "{name: user, filter: {users: [»'^a']}}"),
        f"more than {EXPRESSIONS_MAX} regular expressions",
    ),
    "parent is a list": (_rules("{name: user, parent: »[user]}"), "expected a mapping"),
    "parent's name": (_rules("{name: user, parent: {name: »group}}"), "unknown placement rule 'group'"),
    "parent's value": (_rules("{name: user, parent: »{name: fixed}}"), "placement rule fixed needs a value"),
    "parent's filter": (_rules("{name: user, parent: {name: user, filter: {type: »x}}}"), "invalid rule filter type x"),
    "fixed queue's name": (_rules(_fixed("»root..a")), "invalid queue name 'root..a'"),
    "fixed queue is too deep": (_rules(_fixed("»" + "a." * 40 + "a")), "expected at most 32 names"),
    "qualified below a parent": (
        _rules(_fixed("»root.p.in", "parent: {name: user}")),
        "illegal fully qualified 'fixed' rule with value root.p.in",
    ),
    "root below a parent": (_rules(_fixed("»ROOT", "parent: {name: user}")), "illegal fully qualified 'fixed'"),
    "fixed to a parent": (
        _rules("»" + _fixed("root.P", "create: true")),
        "placement rule no. #0 (fixed) references a queue (root.p) which is not a leaf",
    ),
    "fixed to an empty parent": (_rules("»" + _fixed("e")), "references a queue (root.e) which is not a leaf"),
    "fixed to root": (_rules("»" + _fixed("root")), "references a queue (root) which is not a leaf"),
    "FIXED is checked too": (
        _rules("{name: user}", "»{name: FIXED, value: ghost}"),
        "placement rule no. #1 (fixed) references non-existing queues (root.ghost) and create is 'false'",
    ),
    "fixed under a parent that is configured": (
        _rules("»" + _fixed("p.ghost")),
        "references non-existing queues (root.p.ghost) and create is 'false'",
    ),
    "fixed under a leaf": (
        _rules("»" + _fixed("leaf.below", "create: true")),
        (
            "references non-existing queues (root.leaf.below) which cannot be created because the last queue "
            "(Leaf) in the hierarchy is a leaf"
        ),
    ),
    "user below a leaf": (
        _rules("»" + _user_below(_fixed("p.in"), create=True)),
        "placement rule no. #0 (fixed->user) references non-existing queues (root.p.in.…) which cannot be created",
    ),
    "user below nothing": (
        _rules("»" + _user_below(_fixed("ghost", "create: true"))),
        "(fixed->user) references non-existing queues (root.ghost) and create is 'false'",
    ),
    "fixed below fixed": (
        _rules("»" + _fixed("Ghost", f"parent: {_fixed('root.P')}")),
        "(fixed->fixed) references non-existing queues (root.p.ghost) and create is 'false'",
    ),
    "fixed to recovery": (
        _rules("»" + _fixed("root.@recovery@", "create: true")),
        "references root.@recovery@, which is for applications that must be taken in",
    ),
    "fixed below fixed below root to recovery": (
        _rules("»" + _fixed("'@Recovery@.x'", f"create: true, parent: {_fixed('root')}")),
        "references root.@recovery@",
    ),
    "fixed below fixed is too deep": (
        _rules("»" + _fixed("a." * 20 + "a", f"create: true, parent: {_fixed('b.' * 20 + 'b', 'create: true')}")),
        f"deeper than {QUEUE_DEPTH_MAX}",
    ),
    "rules without number": (
        _rules(*["{name: user}"] * RULES_MAX, "»{name: user}", "{name: user}"),
        f"more than {RULES_MAX} rules",
    ),
    "parents without number": (
        _rules("{name: user, parent: " * 32 + "»" + "{name: user, parent: " * 8 + "{name: user}" + "}" * 40),
        f"parents deeper than {QUEUE_DEPTH_MAX}",
    ),
}


@pytest.mark.parametrize(
    "rule",
    [
        # an accepted configuration can be activated, and a refused one cannot
        _fixed("root.leaf"),
        _fixed("LEAF"),
        _fixed("root.P.IN"),
        _fixed("p.new", "create: true"),
        _fixed("rootx", "create: true"),
        "{name: FIXED, value: leaf}",
        _user_below(_fixed("P")),
        _user_below(_fixed("root")),
        _user_below(_fixed("e")),
        _user_below(_fixed("ghost", "create: true"), create=True),
        _fixed("in", f"parent: {_fixed('p')}"),
        _fixed("x.y", "parent: {name: user}"),
        "{name: provided, filter: {type: DENY, users: [ann]}}",
        "{name: provided, filter: {type: '', users: ['^(a|b)$']}}",
        "{name: Tag, value: namespace, parent: {name: user, parent: {name: provided}}}",
    ],
)
def test_a_rule_that_can_work_is_accepted(rule: str) -> None:
    assert len(_only(_rules(rule)).placement_rules) == 1


def test_deny_in_capitals_denies() -> None:
    (rule,) = _only(_rules("{name: provided, filter: {type: DENY, users: [ann]}}")).placement_rules
    assert rule.filter is not None
    assert (rule.filter.matches("ann", ()), rule.filter.matches("bob", ())) == (False, True)


@pytest.mark.parametrize(
    "text",
    [
        _limits("{users: [ann, '*'], groups: [ops, '*'], maxapplications: 1}"),
        _limits("{users: [ann, 'a:b', team/x, me$], maxapplications: 1}", "{users: ['*'], maxapplications: 2}"),
        _limits("{users: [ann], maxresources: {x: 0, y: 1}}"),
        _limits("{users: [ann], maxresources: {x: 2, y: 9}}", queue="      resources: {max: {x: 2}}\n"),
        _limits("{users: [ann], maxresources: {x: 5}}", queue="      resources: {max: {X: 2}}\n"),
        _tree("{users: [ann], maxresources: {x: 5}}", "{users: [ann], maxresources: {x: 5, y: 7}}"),
        _tree("{users: [ann], maxresources: {x: 5}}", "{users: [bob], maxresources: {x: 9}}"),
        _tree("{users: [ann], maxresources: {x: 5}}", "{users: ['*'], maxresources: {x: 9}}"),
        _tree("{users: [ann], maxresources: {x: 5}}", "{groups: [ann], maxresources: {x: 9}}"),
        _tree("{users: [ann], maxresources: {x: 5}}", "{users: [ann], maxapplications: 9}"),
        _tree("{users: [ann, '*'], maxapplications: 5}", "{users: [ann, bob], maxapplications: 5}"),
    ],
)
def test_limits_that_can_hold_are_accepted(text: str) -> None:
    _only(text)


def test_a_guarantee_of_a_queue_hides_its_childrens() -> None:
    """As in YuniKorn, a child's guarantee of a type that its parent does not guarantee counts no further up."""
    _only(
        _root(
            "    - {name: g, resources: {guaranteed: {x: 1}}, queues: [{name: p, resources: {guaranteed: {y: 1}}, "
            "queues: [{name: a, resources: {guaranteed: {x: 5}}}]}]}\n"
        )
    )


CHECKSUMMED = "partitions: []\n"


def test_a_checksum_leaves_out_the_checksum() -> None:
    plain = checksum(CHECKSUMMED)
    assert plain == "8ADE4D4ABAF5E775C21062511F08DC8AA6A87B725DF2BC7F898AA44C77AE1AE9"  # as sha256sum says
    assert checksum(f"{CHECKSUMMED}checksum: {plain}") == checksum(f"{CHECKSUMMED}checksum: {'0' * 64}") == plain
    assert checksum(f"{CHECKSUMMED}checksum: 12") != plain
    assert checksum(CHECKSUMMED + " ") != plain


@pytest.mark.parametrize("rule", RULES)
def test_a_rule_says_what_and_where(rule: str) -> None:
    marked, what = RULES[rule]
    text, line, column = _marked(marked)
    errors = _errors(text)
    assert errors, "no error"
    assert (errors[0].line, errors[0].column) == (line, column), errors[0]
    assert what in errors[0].message
    assert len({str(error) for error in errors}) == len(errors), "said twice"


def test_all_problems_come_at_once_each_at_its_place() -> None:
    errors = _errors(
        _root("""\
    - name: a b
      maxapplications: -1
      resources: {max: {memory: 1X, vcore: 2m}, guaranteed: {memory: z}}
      zork: 1
""")
    )
    assert sorted((error.line, error.path.rpartition(".")[2]) for error in errors) == [
        (5, "name"),
        (6, "maxapplications"),
        (7, "memory"),
        (7, "memory"),
        (8, "zork"),
    ]
    assert str(errors[0]).startswith("line 8, column 7: partitions[0].queues[0].queues[0].zork: unknown key")


# ---- hostile -------------------------------------------------------------------------------------------------------


def _laughs(levels: int) -> str:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, levels)]
    return "\n".join(lines)


HOSTILE = {
    "billion laughs": (_laughs(12), "stands for more than"),
    "laughs where a quantity is expected": (
        f"{_laughs(7)}\npartitions: [{{queues: [{{name: a, resources: {{max: {{v: *a5, w: [*a5]}}}}}}]}}]",
        "stands for more than|unknown key",
    ),
    "part of itself": ("partitions: &a [*a]", "alias \\*a is part of itself"),
    "queues of themselves": (_root("    - &q {name: a, queues: [*q]}\n"), "is part of itself"),
    "undefined alias": ("partitions: *nobody", "alias \\*nobody is not defined"),
    "merge of a text": ("{<<: x, partitions: []}", "needs a mapping or a list of mappings"),
    "deep flow": ("[" * 100_000, "nested deeper than 100"),
    "deep mappings": ("{a: " * 5_000, "nested deeper than 100"),
    "deep blocks": ("".join(f"{' ' * n}- \n" for n in range(150)), "nested deeper than 100"),
    "deep queues": ("partitions: [{queues: " + "[{name: a, queues: " * 40 + "[]" + "}]" * 40 + "}]", "deeper than 32"),
    "python tag": ("partitions: !!python/object/apply:os.system ['true']", "no tags are possible"),
    "python name": ("!!python/name:os.system x", "no tags are possible"),
    "own tag": ("partitions: [{name: !x y, queues: []}]", "tag !x: no tags are possible"),
    "set": ("partitions: !!set {a}", "no tags are possible"),
    "binary tag": ("partitions: !!binary aGk=", "no tags are possible"),
    "list as key": ("partitions: [{? [a, b] : 1}]", "a key must be a text"),
    "mapping as key": ("? {a: b}\n: 1", "a key must be a text"),
    "alias of a list as key": ("{a: &a [x], ? *a : 1}", "a key must be a text"),
    "number as key": ("1: 2", "unknown key '1'"),
    "null as key": ("~: 2", "unknown key '~'"),
    "key twice": ("partitions: []\npartitions: []", "found duplicate key 'partitions'"),
    "tab": ("partitions:\n\t- a", "cannot start any token"),
    "nul": ("partitions: \0", "unacceptable character"),
    "escape": ("partitions: \x1b[0m", "unacceptable character"),
    "binary": (bytes(range(256)).decode("latin-1"), "unacceptable character"),
    "open quote": ("partitions: 'x", "while scanning|unexpected end|found"),
    "open flow": ("partitions: [a, ", "expected|while parsing"),
    "yaml 3": ("%YAML 3.0\n---\n{}", "incompatible"),
    "too many types": (
        _root("    - {name: a, resources: {max: {" + ", ".join(f"t{n}: 1" for n in range(260)) + "}}}\n"),
        "262 resource types, expected at most 256",
    ),
    "huge": ("# " + "x" * (1 << 20), "expected at most 1048576"),
    "huge in bytes, not in characters": ("# " + "é" * (1 << 19), "expected at most 1048576"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_text_is_an_error_with_words(case: str) -> None:
    text, what = HOSTILE[case]
    errors = _errors(text)
    assert any(re.search(what, error.message) for error in errors), errors
    assert all(len(error.message) <= CHARACTERS_MAX and len(error.path) <= CHARACTERS_MAX for error in errors)


def test_very_many_problems_are_cut() -> None:
    for text in (
        "partitions: [" + "1, " * 50_000 + "]",
        _root("    - name: a\n      properties: {" + ", ".join(f"p{n}: 1" for n in range(20_000)) + "}\n"),
    ):
        _, problems = load_queue_config(text)
        assert len(problems) == PROBLEMS_MAX
        assert "there are more" in problems[-1].message


def test_a_long_key_is_cut_in_messages() -> None:
    _, problems = load_queue_config(f"? {'k' * 300_000}\n: 1\n")
    assert len(problems) == 1
    assert len(str(problems[0])) < 3 * CHARACTERS_MAX


def test_queues_have_a_number() -> None:
    errors = _errors("partitions: [{queues: [" + ", ".join(f"{{name: q{n}}}" for n in range(10_002)) + "]}]")
    assert ["more than 10000 queues" in error.message for error in errors] == [True]


def test_a_tree_counts_what_aliases_stand_for() -> None:
    row = "[" + ", ".join(["*a"] * 1_100) + "]"
    errors = _errors(f"a: &a [{', '.join(['x'] * 1_000)}]\nb: {row}\npartitions: []")
    assert [f"more than {NODES_MAX} values" in error.message for error in errors] == [True]


@settings(max_examples=300)
@given(st.text(alphabet="partions:queame[]{}-,*&<!'\"|>#%?~ \n\t01.\\x", max_size=60))
def test_any_text_is_a_configuration_or_problems(text: str) -> None:
    for each in (text, _root(f"    - {text}\n"), f"partitions: [{{queues: [{{name: a, resources: {text}}}]}}]"):
        config, problems = load_queue_config(each)
        assert config is not None or any(problem.severity == "error" for problem in problems)
        assert all(problem.line >= 0 and problem.column >= 0 for problem in problems)


@pytest.mark.parametrize("quote", ["", "'"])
@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (["y", "Y", "yes", "Yes", "YES", "on", "On", "ON", "true"], True),
        (["n", "N", "no", "No", "NO", "off", "Off", "OFF", "false"], False),
    ],
)
def test_words_of_yaml_1_1_are_true_or_false_where_that_is_wanted(words: list[str], quote: str, *, meant: bool) -> None:
    for word in words[: None if not quote else -1]:
        config, problems = load_queue_config(_root(f"    - name: x{word}\n      parent: {quote}{word}{quote}\n"))
        assert not problems
        assert config is not None
        (queue,) = config.partitions[0].root.queues
        assert (queue.parent, queue.name) == (meant, f"x{word}")
        named, _ = load_queue_config(_root(f"    - name: {word}\n"))
        assert named is not None
        assert [queue.name for queue in named.partitions[0].root.queues] == [word]


def test_where_a_text_is_wanted_all_that_is_no_list_is_one() -> None:
    """The text is kept as written, as in Go's reader: true, numbers, and words that may be numbers."""
    config, problems = load_queue_config(
        "partitions:\n- queues:\n  - name: root\n    queues:\n"
        "    - name: True\n      submitacl: false\n      properties: {a: true, b: 1e3, c: 0x10, d: yes}\n"
        "      limits: [{limit: true, users: [true, off], groups: [false, Null1], maxapplications: 1}]\n"
        "    - name: 017\n"
        "  placementrules:\n  - {name: provided, filter: {type: allow, users: [true, ann], groups: [FALSE, ops]}}\n"
        "  - {name: tag, value: true}\n"
    )
    assert [problem for problem in problems if problem.severity == "error"] == []
    assert config is not None
    first, second = config.partitions[0].root.queues
    assert (first.name, first.submit_acl, second.name) == ("True", "false", "017")
    assert first.properties == {"a": "true", "b": "1e3", "c": "0x10", "d": "yes"}
    (limit,) = first.limits
    assert (limit.text, limit.users, limit.groups) == ("true", ("true", "off"), ("false", "Null1"))
    provided, tag = config.partitions[0].placement_rules
    assert provided.filter is not None
    assert (provided.filter.users, provided.filter.groups, tag.value) == (("true", "ann"), ("FALSE", "ops"), "true")


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("0x1F", 31),
        ("0b101", 5),
        ("0o17", 15),
        ("017", 15),
        ("089", 89),
        ("1e3", 1000),
        ("7.0", 7),
        ("0", 0),
        ("00", 0),
    ],
)
def test_whole_numbers_as_go_reads_them(text: str, number: int) -> None:
    config, problems = load_queue_config(_root(f"    - name: a\n      maxapplications: {text}\n"))
    assert not problems
    assert config is not None
    assert config.partitions[0].root.queues[0].max_applications == number
