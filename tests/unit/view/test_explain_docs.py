"""docs/explain.md has every reason, refusal, rule and field, and its examples are the answers of a whole core.

After a change of the answers, ``PYTHONPATH=tests .venv/bin/python tests/unit/view/test_explain_docs.py`` writes the
examples again.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import Any

import documents
import msgspec
import pytest
from muster_core.model.reasons import NoPreemptionReason, ReasonCode
from muster_core.preemption import registry
from muster_rest.shapes import explain as shapes
from muster_view.explain.reason_phrases import WAITS
from unit.view import explained

DOC = documents.DOCS / "explain.md"

# Heading of a section of the document → the cluster of its example.
EXAMPLES: dict[str, Callable[[], dict[str, Any]]] = {
    **{code.value: lambda make=make: make().json() for code, make in explained.REASONS.items()},  # type: ignore[misc]
    **{no.value: lambda make=make: make().json() for no, make in explained.NOES.items()},  # type: ignore[misc]
    **explained.RULES,
    "Example: a changed reason": explained.one_after_another,
    "Example: after a pause": explained.after_a_pause,
    "Example: closed nodes": explained.closed_nodes,
    "Example: an ask with victims": explained.with_victims,
    "Example: replacements in progress": explained.of_a_gang,
    "Example: a queue": explained.a_queue,
    "Example: a node": explained.a_node,
}
# These examples show every field; the others omit empty ones.
WHOLE = {
    "Example: an ask with victims",
    "Example: replacements in progress",
    "Example: a queue",
    "Example: a node",
    "GUARANTEE",
}
_HEADING = re.compile(r"### `?([^`]+?)`?")


def shown(heading: str) -> Any:
    example = EXAMPLES[heading]()
    return example if heading in WHOLE else _short(example)


# Fields that short examples omit, because they are the same in each.
_NAMES = ("partition", "applicationID", "allocationKey", "count", "at", "asOf", "waitingSince")


def _short(value: Any) -> Any:
    if isinstance(value, dict):
        said = {name: each for name, each in value.items() if each or name == "preemption"}
        return {name: _short(each) for name, each in said.items() if name not in _NAMES}
    return [_short(each) for each in value] if isinstance(value, list) else value


def _parts() -> Iterator[tuple[str, str]]:
    """The document in parts, in order: (heading, text) of an example, or ("", text)."""
    heading, fenced = "", False
    for line in DOC.read_text(encoding="utf-8").splitlines(keepends=True):
        found = _HEADING.fullmatch(line.strip())
        if line.startswith("#"):
            heading = found[1] if found is not None else ""
        if line == "```\n":
            fenced = False
        yield heading if fenced else "", line
        if line == "```json\n":
            fenced = True


def blocks() -> dict[str, Any]:
    texts: dict[str, str] = {}
    for heading, line in _parts():
        if heading:
            texts[heading] = texts.get(heading, "") + line
    return {heading: json.loads(text) for heading, text in texts.items()}


def test_every_reason_and_no_has_a_cluster_and_each_rule_among_them_exists() -> None:
    assert set(explained.REASONS) == set(ReasonCode)
    assert set(explained.NOES) == set(NoPreemptionReason)
    assert set(explained.RULES) <= set(registry.names())


@pytest.mark.parametrize("code", ReasonCode)
def test_the_cluster_of_a_reason_has_it_and_a_sentence_for_people(code: ReasonCode) -> None:
    found = explained.REASONS[code]().json()
    assert found["reason"] == code
    assert found["message"].endswith(".")
    assert "  " not in found["message"]
    assert found["since"]


@pytest.mark.parametrize("no", NoPreemptionReason)
def test_the_cluster_of_a_no_has_it(no: NoPreemptionReason) -> None:
    found = explained.NOES[no]().json()
    assert (found["preemption"]["state"], found["preemption"]["no"]) == ("NO", no)
    silent = no in (NoPreemptionReason.DISABLED, NoPreemptionReason.NOT_ALLOWED)
    assert ("Preemption: " in found["message"]) is not silent


@pytest.mark.parametrize("rule", explained.RULES)
def test_the_cluster_of_a_rule_has_a_story(rule: str) -> None:
    found = explained.RULES[rule]()
    assert found["rule"] == rule
    assert found["message"].startswith("It was preempted ")
    assert found["since"]


def test_the_table_of_reasons_has_each() -> None:
    rows = re.findall(r"^\| \[`(\w+)`\]\(#(\w+)\) \|", documents.page("explain.md"), re.MULTILINE)
    assert dict(rows) == {code: code.lower() for code in ReasonCode}
    assert set(WAITS) == set(ReasonCode)


def test_the_document_has_an_example_of_each_and_of_nothing_else() -> None:
    assert set(blocks()) == set(EXAMPLES)


@pytest.mark.parametrize("heading", EXAMPLES)
def test_the_document_says_what_is_said(heading: str) -> None:
    assert blocks()[heading] == shown(heading), "write the examples again, as this file's docstring says"


# These have no table: the table of a shape with the same fields, or the text beside it, explains them.
WITHOUT_TABLE = {
    "AllPendingDao", "AllPreemptedDao", "ApplicationHeadDao", "FiguresDao", "KeptNodeDao", "NodeHeadDao",
    "RefusedNodeDao", "SummaryDao", "ToldToGoDao",
}  # fmt: skip
SHAPES = [each for each in vars(shapes).values() if getattr(each, "__module__", "") == shapes.__name__]


@pytest.mark.parametrize("shape", [each for each in SHAPES if each.__name__ not in WITHOUT_TABLE])
def test_every_field_has_a_row(shape: type[msgspec.Struct]) -> None:
    documents.has_the_fields_of(documents.page("explain.md"), shape)


def write() -> None:
    text, last = [], ""
    for heading, line in list(_parts()):
        if not heading:
            text.append(line)
        elif heading != last:
            text.append(_json(shown(heading)))
        last = heading
    DOC.write_text("".join(text), encoding="utf-8")


def _json(value: dict[str, Any]) -> str:
    lines = [f"  {json.dumps(name)}: {json.dumps(each, ensure_ascii=False)}" for name, each in value.items()]
    return "{\n" + ",\n".join(lines) + "\n}\n"


if __name__ == "__main__":
    write()
