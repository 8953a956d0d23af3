"""The queue configuration's text: every key, every rule's error with its place, and hostile YAML."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from muster_scheduler.core.config import DEFAULT_CONFIG, PlacementRuleConfig, QueueConfig
from muster_scheduler.queue_yaml import CHARACTERS_MAX, PROBLEMS_MAX, Problem, load_queue_config
from muster_scheduler.yaml_tree import NODES_MAX


def _errors(text: str) -> list[Problem]:
    config, problems = load_queue_config(text)
    errors = [problem for problem in problems if problem.severity == "error"]
    assert (config is None) == bool(errors)
    return errors


def _root(queues: str) -> str:
    """Line 1 to 4, then what is under root's ``queues:`` from line 5 on."""
    return "partitions:\n- queues:\n  - name: root\n    queues:\n" + queues


# ---- what is good --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["", " \n", "# nothing", "---\n", "{}", "partitions:", "partitions: []", "null", "~"])
def test_nothing_is_the_built_in_default(text: str) -> None:
    assert load_queue_config(text) == (DEFAULT_CONFIG, [])


def test_every_key() -> None:
    config, problems = load_queue_config("""
checksum: 0123
partitions:
  - name: DEFAULT
    nodesortpolicy: {type: binpacking, resourceweights: {vcore: 2, memory: 0.5, gpu: 0}}
    preemption: {enabled: false, quotapreemptionenabled: true}
    placementrules:
      - {name: Tag, value: namespace, create: true}
      - {name: user}
      - {name: fixed, value: root.a}
      - {name: provided, create: false}
    queues:
      - name: root
        submitacl: '*'
        queues:
          - name: A
            maxapplications: 7
            submitacl: "ann,bob ops"
            adminacl: ' admins'
            properties: {application.sort.policy: fair, application.sort.priority: disabled, flag: true, n: 010}
            resources:
              guaranteed: {vcore: 500m, memory: 1Gi}
              max: {vcore: 2, memory: 2Gi, gpu: 0}
          - {name: parent, parent: true}
  - name: gpu
    queues: []
""")
    assert config is not None, problems
    first, second = config.partitions
    assert (first.name, first.node_sort_policy) == ("default", "binpacking")
    assert first.node_sort_weights == {"vcore": 2.0, "memory": 0.5, "gpu": 0.0}
    assert (first.preemption.enabled, first.preemption.quota_enabled) == (False, True)
    assert first.placement_rules == (
        PlacementRuleConfig("tag", True, "namespace"),
        PlacementRuleConfig("user"),
        PlacementRuleConfig("fixed", False, "root.a"),
        PlacementRuleConfig("provided"),
    )
    assert first.root.submit_acl == "*"
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
        QueueConfig("parent", parent=True),
    )
    assert (second.name, second.root) == ("gpu", QueueConfig("root", parent=True))
    assert second.placement_rules == (PlacementRuleConfig("provided"),)
    assert [problem.path for problem in problems] == [
        "partitions[0].queues[0].queues[0].properties.flag",
        "partitions[0].queues[0].queues[0].properties.n",
        "partitions[0].preemption",
    ]


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


@pytest.mark.parametrize("key", ["limits", "childtemplate"])
def test_what_has_no_effect_is_said(key: str) -> None:
    config, problems = load_queue_config(_root(f"    - name: a\n      {key}: [x]\n"))
    assert config is not None
    assert [(p.severity, p.line, p.column) for p in problems] == [("warning", 6, 7)]
    assert "not enforced" in problems[0].message


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
    "not a mapping at all": ("- 1\n", 1, 1, "expected a mapping with keys among checksum, partitions, got a list"),
    "unknown key on top": ("partition: []\n", 1, 1, "unknown key 'partition'"),
    "camel case": ("Partitions: []\n", 1, 1, "unknown key 'Partitions'"),
    "partitions is no list": ("partitions: {name: x}\n", 1, 13, "expected a list, got a mapping"),
    "a partition is no mapping": ("partitions:\n- x\n", 2, 3, "got a text"),
    "no queues": ("partitions:\n- name: default\n", 2, 3, "queue config is not set"),
    "null queues": ("partitions:\n- queues:\n", 2, 3, "queue config is not set"),
    "queues is no list": ("partitions:\n- queues: 3\n", 2, 11, "expected a list, got a number"),
    "partition twice": (
        "partitions:\n- {queues: []}\n- {name: Default, queues: []}\n",
        3,
        3,
        "duplicate partition name 'default'",
    ),
    "partition name": (f"partitions:\n- queues: []\n  name: {'x' * 65}\n", 3, 9, "invalid partition name"),
    "control characters": ('partitions:\n- queues: []\n  name: "a\\nb"\n', 3, 9, "invalid partition name"),
    "name of a list": ("partitions:\n- queues: []\n  name: [a]\n", 3, 9, "expected a text, got a list"),
    "limits on root": (
        "partitions:\n- queues:\n  - name: root\n    resources: {max: {}}\n",
        3,
        11,
        "root queue must not have resource limits set",
    ),
    "queue without name": (_root("    - parent: true\n"), 5, 7, "invalid queue name ''"),
    "queue name": (_root("    - name: a.b\n"), 5, 13, "invalid queue name 'a.b'"),
    "queue name with an end of line": (_root('    - name: "a\\n"\n'), 5, 13, "invalid queue name"),
    "queue name too long": (_root(f"    - name: {'x' * 65}\n"), 5, 13, "invalid queue name"),
    "queue name true": (_root("    - name: true\n"), 5, 13, "expected a text, got true or false"),
    "siblings": (_root("    - name: a\n    - name: A\n"), 6, 13, "duplicate child name found with name 'A'"),
    "unknown queue key": (_root("    - name: a\n      maxApplications: 1\n"), 6, 7, "unknown key 'maxApplications'"),
    "parent": (_root("    - name: a\n      parent: yes\n"), 6, 15, "expected true or false, got a text"),
    "negative count": (
        _root("    - {name: a, maxapplications: -1}\n"),
        5,
        34,
        "whole number from 0 on, got a number '-1'",
    ),
    "fraction": (_root("    - {name: a, maxapplications: 1.5}\n"), 5, 34, "got a number with a fraction '1.5'"),
    "too large": (_root(f"    - {{name: a, maxapplications: {1 << 64}}}\n"), 5, 34, "expected a whole number"),
    "count of a list": (_root("    - {name: a, maxapplications: [1]}\n"), 5, 34, "got a list"),
    "acl": (_root("    - name: a\n      submitacl: a b c\n"), 6, 18, "multiple spaces found in ACL"),
    "adminacl": (_root("    - name: a\n      adminacl: a b c\n"), 6, 17, "multiple spaces found in ACL"),
    "resources": (
        _root("    - {name: a, resources: 5}\n"),
        5,
        28,
        "expected a mapping with keys among guaranteed, max",
    ),
    "resources' key": (_root("    - {name: a, resources: {min: {}}}\n"), 5, 29, "unknown key 'min'"),
    "max is no mapping": (_root("    - {name: a, resources: {max: [1]}}\n"), 5, 34, "got a list"),
    "quantity": (_root("    - {name: a, resources: {max: {vcore: 1.5}}}\n"), 5, 42, "invalid quantity '1.5'"),
    "quantity null": (_root("    - {name: a, resources: {max: {vcore: }}}\n"), 5, 41, "invalid quantity nothing"),
    "quantity a list": (_root("    - {name: a, resources: {max: {vcore: [1]}}}\n"), 5, 42, "invalid quantity a list"),
    "quantity huge": (
        _root(f"    - {{name: a, resources: {{max: {{m: '{'9' * 5000}'}}}}}}\n"),
        5,
        38,
        "is over 9223372036854775807",
    ),
    "suffix": (_root("    - {name: a, resources: {max: {memory: 1K}}}\n"), 5, 43, "invalid suffix 'K'"),
    "guaranteed over max": (
        _root("    - name: a\n      resources:\n        guaranteed: {x: 1, y: 5}\n        max: {y: 4}\n"),
        7,
        31,
        "guaranteed resource y 5 is larger than maximum 4",
    ),
    "max over the parent's": (
        _root(
            "    - name: p\n      resources: {max: {x: 3}}\n      queues:\n"
            "      - {name: q, parent: true, queues: [{name: a, resources: {max: {x: 4}}}]}\n"
        ),
        8,
        49,
        "queue root.p.q.a: max x 4: max resource of parent 3 is smaller",
    ),
    "guaranteed of children over guaranteed": (
        _root(
            "    - name: p\n      resources: {guaranteed: {x: 3}}\n      queues:\n"
            "      - {name: a, resources: {guaranteed: {x: 2}}}\n      - {name: b, resources: {guaranteed: {x: 2}}}\n"
        ),
        5,
        13,
        "guaranteed x 3 is smaller than sum of guaranteed resources 4",
    ),
    "guaranteed of grandchildren over max": (
        _root(
            "    - name: p\n      resources: {max: {x: 3}}\n      queues:\n"
            "      - name: q\n        queues:\n"
            "        - {name: a, resources: {guaranteed: {x: 2}}}\n"
            "        - {name: b, resources: {guaranteed: {x: 2}}}\n"
        ),
        8,
        15,
        "max x 3 is smaller than sum of guaranteed resources 4",
    ),
    "applications over the parent's": (
        _root("    - name: p\n      maxapplications: 2\n      queues:\n      - {name: a, maxapplications: 3}\n"),
        8,
        16,
        "queue root.p.a: maxapplications 3: its parent's is 2",
    ),
    "applications unset under a limit": (
        _root("    - name: p\n      maxapplications: 2\n      queues:\n      - name: a\n"),
        8,
        15,
        "maxapplications unset",
    ),
    "properties": (_root("    - {name: a, properties: [x]}\n"), 5, 29, "expected a mapping of texts, got a list"),
    "a property": (_root("    - {name: a, properties: {x: {y: z}}}\n"), 5, 33, "expected a text, got a mapping"),
    "rules are no list": ("partitions:\n- queues: []\n  placementrules: x\n", 3, 19, "expected a list"),
    "a rule is no mapping": ("partitions:\n- queues: []\n  placementrules: [x]\n", 3, 20, "got a text"),
    "unknown rule": (
        "partitions:\n- queues: []\n  placementrules: [{name: recovery}]\n",
        3,
        27,
        "unknown placement rule",
    ),
    "rule without name": (
        "partitions:\n- queues: []\n  placementrules: [{create: true}]\n",
        3,
        20,
        "unknown placement rule ''",
    ),
    "rule with filter": (
        "partitions:\n- queues: []\n  placementrules: [{name: user, filter: {type: allow}}]\n",
        3,
        33,
        "filter of a placement rule is not possible",
    ),
    "rule with parent": (
        "partitions:\n- queues: []\n  placementrules: [{name: user, parent: {name: user}}]\n",
        3,
        33,
        "parent of a placement rule is not possible",
    ),
    "fixed without value": ("partitions:\n- queues: []\n  placementrules: [{name: fixed}]\n", 3, 20, "needs a value"),
    "tag without value": ("partitions:\n- queues: []\n  placementrules: [{name: tag}]\n", 3, 20, "needs a value"),
    "create": (
        "partitions:\n- queues: []\n  placementrules: [{name: user, create: 1}]\n",
        3,
        41,
        "expected true or false",
    ),
    "node sort a scalar": ("partitions:\n- queues: []\n  nodesortpolicy: fair\n", 3, 19, "expected a mapping"),
    "node sort type": ("partitions:\n- queues: []\n  nodesortpolicy: {type: Fair}\n", 3, 26, "undefined policy: Fair"),
    "weights": (
        "partitions:\n- queues: []\n  nodesortpolicy: {resourceweights: [1]}\n",
        3,
        37,
        "expected a mapping to numbers",
    ),
    "negative weight": (
        "partitions:\n- queues: []\n  nodesortpolicy: {resourceweights: {gpu: -1}}\n",
        3,
        43,
        "negative resource weight for gpu is not allowed",
    ),
    "weight nan": (
        "partitions:\n- queues: []\n  nodesortpolicy: {resourceweights: {a: .nan}}\n",
        3,
        41,
        "expected a number",
    ),
    "weight inf": (
        "partitions:\n- queues: []\n  nodesortpolicy: {resourceweights: {a: .inf}}\n",
        3,
        41,
        "at most 1000000000",
    ),
    "weight 1e400": ("partitions:\n- queues: []\n  nodesortpolicy: {resourceweights: {a: 1e400}}\n", 3, 41, "at most"),
    "weight of many digits": (
        f"partitions:\n- queues: []\n  nodesortpolicy: {{resourceweights: {{a: 1{'0' * 90}}}}}\n",
        3,
        41,
        "at most",
    ),
    "weight a text": (
        "partitions:\n- queues: []\n  nodesortpolicy: {resourceweights: {a: b}}\n",
        3,
        41,
        "expected a number",
    ),
    "preemption": ("partitions:\n- queues: []\n  preemption: {enabled: 1}\n", 3, 25, "expected true or false"),
}


@pytest.mark.parametrize("rule", RULES)
def test_a_rule_says_what_and_where(rule: str) -> None:
    text, line, column, what = RULES[rule]
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
    "huge": ("# " + "x" * (1 << 20), "over 1048576 bytes"),
    "huge in bytes, not in characters": ("# " + "é" * (1 << 19), "over 1048576 bytes"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_text_is_an_error_with_words(case: str) -> None:
    text, what = HOSTILE[case]
    errors = _errors(text)
    assert any(re.search(what, error.message) for error in errors), errors
    assert all(len(error.message) <= CHARACTERS_MAX and len(error.path) <= CHARACTERS_MAX for error in errors)


def test_problems_without_number_are_told_without_number() -> None:
    for text in (
        "partitions: [" + "1, " * 50_000 + "]",
        _root("    - name: a\n      properties: {" + ", ".join(f"p{n}: 1" for n in range(20_000)) + "}\n"),
    ):
        _, problems = load_queue_config(text)
        assert len(problems) == PROBLEMS_MAX
        assert "there are more" in problems[-1].message


def test_a_long_key_is_not_told_in_full() -> None:
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


@settings(max_examples=300, deadline=None)
@given(st.text(alphabet="partions:queame[]{}-,*&<!'\"|>#%?~ \n\t01.\\x", max_size=60))
def test_any_text_is_a_configuration_or_problems(text: str) -> None:
    for each in (text, _root(f"    - {text}\n"), f"partitions: [{{queues: [{{name: a, resources: {text}}}]}}]"):
        config, problems = load_queue_config(each)
        assert config is not None or any(problem.severity == "error" for problem in problems)
        assert all(problem.line >= 0 and problem.column >= 0 for problem in problems)
