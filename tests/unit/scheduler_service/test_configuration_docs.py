"""docs/configuration.md names every key, property, rule and bound that the code has, and no other."""

from __future__ import annotations

import re

import documents
import pytest
from muster_core.config import acl, patterns, properties, queue_config
from muster_core.model import resources
from muster_core.nodes.policies.registry import SHIPPED
from muster_core.queues import placement_rules
from muster_queue_config import queue_yaml, queue_yaml_rules, yaml_reader
from muster_scheduler import group_resolution

TEXT = documents.page("configuration.md")
# Heading → its tables.
HEADINGS = re.findall("^## (.*)$", TEXT, re.MULTILINE)
TABLES = {heading: documents.tables(documents.section(TEXT, heading)) for heading in HEADINGS}


def _first(rows: list[list[str]]) -> list[str]:
    return [re.fullmatch("`([^`]+)`", row[0])[1] for row in rows]  # type: ignore[index]  # another first cell is a failure


SECTIONS = {
    "configuration": "Keys of the configuration",
    "partition": "Keys of a partition",
    "queue": "Keys of a queue",
    "limit": "Keys of a limit",
    "placement rule": "Keys of a placement rule",
    "filter": "Keys of a filter",
}


@pytest.mark.parametrize("mapping", queue_yaml.KEYS)
def test_every_key_has_a_row_and_every_row_is_a_key(mapping: str) -> None:
    rows = _first(TABLES[SECTIONS.get(mapping, f"Keys of {mapping}")][0])
    assert sorted(rows) == sorted(queue_yaml.KEYS[mapping])


def test_every_section_of_keys_is_a_mapping() -> None:
    described = {heading for heading in TABLES if heading.startswith("Keys of")}
    assert described == {SECTIONS.get(mapping, f"Keys of {mapping}") for mapping in queue_yaml.KEYS}


def test_every_property_has_a_row_with_its_default() -> None:
    (rows,) = TABLES["Properties"]
    assert dict(zip(_first(rows), (row[1] for row in rows), strict=True)) == {
        name: f"`{key.default}`" for name, key in properties.KEYS.items()
    }
    noted = {row[0].strip("`") for row in rows if "without effect" in row[2]}
    assert noted == {name for name, key in properties.KEYS.items() if key.note}


def test_every_rule_and_policy_is_named() -> None:
    assert _first(TABLES["Keys of a placement rule"][1]) == list(queue_config.RULES)
    kinds = next(row for row in TABLES["Keys of nodesortpolicy"][0] if row[0] == "`type`")[2]
    assert [f"`{policy.name}`" in kinds for policy in SHIPPED] == [True] * len(SHIPPED)
    resolvers = TABLES["Keys of usergroupresolver"][0][0][2]
    assert all(f"`{name}`" in resolvers for name in queue_yaml.USER_GROUP_RESOLVERS if name)


def test_every_secret_has_a_row() -> None:
    (rows,) = TABLES["LDAP"]
    assert sorted(_first(rows)) == sorted([*group_resolution._NEEDED, *group_resolution._DEFAULTS])
    needed = {row[0].strip("`") for row in rows if row[1] == "required"}
    assert needed == set(group_resolution._NEEDED)


def test_the_bounds_are_the_codes() -> None:
    (rows,) = TABLES["Bounds"]
    assert [int(row[1].replace(",", "")) for row in rows] == [
        queue_yaml.TEXT_BYTES_MAX,
        yaml_reader.PROBLEMS_MAX,
        queue_yaml.QUEUES_MAX,
        queue_config.QUEUE_DEPTH_MAX,
        resources.TYPES_MAX,
        queue_yaml_rules.RULES_MAX,
        queue_yaml_rules.EXPRESSIONS_MAX,
        patterns.PATTERN_CHARACTERS_MAX,
        acl.ACL_CHARACTERS_MAX,
        placement_rules.NAME_CHARACTERS_MAX,
    ]


def test_the_example_is_a_configuration_without_problems() -> None:
    (example,) = re.findall("```yaml\n(.*?)```", TEXT, re.DOTALL)
    loaded, problems = queue_yaml.load_queue_config(example)
    assert loaded is not None, problems
    assert problems == []


def test_the_defaults_in_the_tables_are_the_codes() -> None:
    """A configuration with every default written out means the same as one without."""
    written = {
        heading: {row[0].strip("`"): row[1].strip("`") for row in TABLES[f"Keys of {heading}"][0]}
        for heading in ("nodesortpolicy", "preemption", "reservation")
    }
    mappings = ", ".join(
        f"{heading}: {{{', '.join(f'{key}: {text}' for key, text in keys.items())}}}"
        for heading, keys in written.items()
    )
    loaded, problems = queue_yaml.load_queue_config(f"partitions: [{{queues: [], {mappings}}}]")
    plain, _ = queue_yaml.load_queue_config("partitions: [{queues: []}]")
    assert problems == []
    assert loaded == plain
