"""docs/explain.md says what explain says: every reason, every "no", every rule, every field, from a real core.

After a change of what is said: ``PYTHONPATH=tests .venv/bin/python tests/unit/view/test_explain_docs.py`` writes the
examples anew.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from muster_scheduler.core.objects import PreemptionRule
from muster_scheduler.core.reasons import PreemptionNo, ReasonCode
from muster_scheduler.view import explain_dao
from muster_scheduler.view.explain_words import WAITS
from unit.view import explained

DOC = Path(__file__).parents[3] / "docs/explain.md"

# Heading of a section of the document → what its example is.
EXAMPLES: dict[str, Callable[[], dict[str, Any]]] = {
    **{code.value: lambda make=make: make().json() for code, make in explained.REASONS.items()},  # type: ignore[misc]
    **{no.value: lambda make=make: make().json() for no, make in explained.NOES.items()},  # type: ignore[misc]
    **{rule.value: make for rule, make in explained.RULES.items()},
    "A reason after another": explained.one_after_another,
    "A pause that is over": explained.after_a_pause,
    "Nodes that are closed": explained.closed_nodes,
    "An ask with victims": explained.with_victims,
    "In the middle of replacements": explained.of_a_gang,
    "A queue": explained.a_queue,
    "A node": explained.a_node,
}
# Shown with every field; of the others only what says something.
WHOLE = {"An ask with victims", "In the middle of replacements", "A queue", "A node", "GUARANTEE"}
_HEADING = re.compile(r"### `?([^`]+?)`?")


def shown(heading: str) -> Any:
    example = EXAMPLES[heading]()
    return example if heading in WHOLE else _short(example)


# The same in each of them.
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


def test_every_reason_no_and_rule_has_a_cluster() -> None:
    assert set(explained.REASONS) == set(ReasonCode)
    assert set(explained.NOES) == set(PreemptionNo)
    assert set(explained.RULES) == set(PreemptionRule)


@pytest.mark.parametrize("code", ReasonCode)
def test_the_cluster_of_a_reason_has_it_and_a_sentence_for_people(code: ReasonCode) -> None:
    found = explained.REASONS[code]().json()
    assert found["reason"] == code
    assert found["message"].endswith(".")
    assert "  " not in found["message"]
    assert found["since"]


@pytest.mark.parametrize("no", PreemptionNo)
def test_the_cluster_of_a_no_has_it(no: PreemptionNo) -> None:
    found = explained.NOES[no]().json()
    assert (found["preemption"]["state"], found["preemption"]["no"]) == ("NO", no)
    silent = no in (PreemptionNo.DISABLED, PreemptionNo.NOT_ALLOWED)
    assert ("Preemption: " in found["message"]) is not silent


@pytest.mark.parametrize("rule", PreemptionRule)
def test_the_cluster_of_a_rule_has_a_story(rule: PreemptionRule) -> None:
    found = explained.RULES[rule]()
    assert found["rule"] == rule
    assert found["message"].startswith("It must go ")
    assert found["since"]


def test_the_table_of_reasons_has_each_and_says_what_it_waits_for() -> None:
    rows = re.findall(r"^\| \[`(\w+)`\]\(#(\w+)\) \| ([^|]+) \|", DOC.read_text(encoding="utf-8"), re.MULTILINE)
    assert [(code, anchor) for code, anchor, _ in rows] == [(code, code.lower()) for code, _, _ in rows]
    assert {code: words for code, _, words in rows} == WAITS
    assert set(WAITS) == set(ReasonCode)


def test_the_document_has_an_example_of_each_and_of_nothing_else() -> None:
    assert set(blocks()) == set(EXAMPLES)


@pytest.mark.parametrize("heading", EXAMPLES)
def test_the_document_says_what_is_said(heading: str) -> None:
    assert blocks()[heading] == shown(heading), "write the examples anew, see this file's first words"


@pytest.mark.parametrize(
    "shape",
    [
        explain_dao.PendingDao,
        explain_dao.AwaitedDao,
        explain_dao.WhyDao,
        explain_dao.ClosedDao,
        explain_dao.NowDao,
        explain_dao.PastDao,
        explain_dao.EpisodeDao,
        explain_dao.AskPreemptionDao,
        explain_dao.PreemptedDao,
        explain_dao.ApplicationDao,
        explain_dao.WaitingDao,
        explain_dao.GangDao,
        explain_dao.TaskGroupDao,
        explain_dao.ReplacementDao,
        explain_dao.QueueDao,
        explain_dao.GuaranteeDao,
        explain_dao.NodeDao,
        explain_dao.NodeSourceDao,
        explain_dao.KeptForDao,
        explain_dao.WouldFitDao,
        explain_dao.LacksDao,
        explain_dao.RefusedForDao,
        explain_dao.OnNodeDao,
    ],
)
def test_every_field_has_a_row(shape: type[msgspec.Struct]) -> None:
    table = DOC.read_text(encoding="utf-8").split(f"<!-- {shape.__name__} -->\n", 1)[1].split("\n\n", 1)[0]
    cells = [line.split("|")[1] for line in table.splitlines()[2:]]
    rows = {name for cell in cells for name in re.findall(r"`([A-Za-z]+)`", cell)}
    own = {field.encode_name for field in msgspec.structs.fields(shape)}
    beside = {
        explain_dao.ApplicationDao: {"asks", "preempted", "replacements"},
        explain_dao.NodeDao: {"allocations", "foreign"},
    }
    assert rows == own | beside.get(shape, set())


def write() -> None:
    """Writes the examples into the document."""
    text, last = [], ""
    for heading, line in list(_parts()):
        if not heading:
            text.append(line)
        elif heading != last:
            text.append(_json(shown(heading)))
        last = heading
    DOC.write_text("".join(text), encoding="utf-8")


def _json(value: dict[str, Any]) -> str:
    """A field a line."""
    lines = [f"  {json.dumps(name)}: {json.dumps(each, ensure_ascii=False)}" for name, each in value.items()]
    return "{\n" + ",\n".join(lines) + "\n}\n"


if __name__ == "__main__":
    write()
