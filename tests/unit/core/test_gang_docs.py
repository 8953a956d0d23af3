"""docs/gang-scheduling.md: a row for every step of a placeholder and of a gang, and a core that takes it.

After a change of the table of placeholders: ``scripts/gang-figures`` draws the figures again.
"""

from __future__ import annotations

import itertools
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import documents
import pytest
from builders import Cluster, nodes
from muster_core.config.properties import KEYS
from muster_core.gangs import placeholders
from muster_core.model.commands import (
    AppItem,
    AskItem,
    NodeAction,
    ReleaseItem,
    Termination,
    UpdateAllocations,
    UpdateApplications,
)
from muster_core.model.outcome import Outcome, ReleasedAllocation, ReleasedAsk
from muster_core.model.reasons import ReasonCode
from muster_core.model.states import (
    GANG_TRANSITIONS,
    PLACEHOLDER_TIMEOUT_NS,
    PLACEHOLDER_TRANSITIONS,
    REMINDER_NS,
)

ROOT = Path(__file__).parents[3]
TEXT = documents.page("gang-scheduling.md", "gang-placeholders.md")
A = "{name: root, submitacl: '*', queues: [{name: a%s}%s]}"
POOR = ", {name: poor, resources: {guaranteed: {vcore: 5m}}, properties: {preemption.delay: 1s}}"
TIMEOUT_S = PLACEHOLDER_TIMEOUT_NS // 10**9


PLACEHOLDERS = {(row[0], row[1]): row[2] for row in documents.table(TEXT, "\n## States of a placeholder\n")}
PHASES = {(row[0], row[1]): row[2] for row in documents.table(TEXT, "\n## Phases of a gang\n")}


def test_placeholders_have_the_rows_of_their_table() -> None:
    table = {(before.value, event.value): after.value for (before, event), after in PLACEHOLDER_TRANSITIONS.items()}
    assert table == PLACEHOLDERS
    assert len(documents.table(TEXT, "\n## States of a placeholder\n")) == len(table)


def test_gangs_have_the_rows_of_their_table() -> None:
    table = {(before.value, event.value): after.value for (before, event), after in GANG_TRANSITIONS.items()}
    assert table == PHASES
    assert len(documents.table(TEXT, "\n## Phases of a gang\n")) == len(table)


def test_the_figures_are_drawn_from_the_table() -> None:
    script = [sys.executable, ROOT / "scripts/gang-figures", "--check"]
    done = subprocess.run(script, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    for name in ("gang-placeholder.svg", "gang-replacement.svg"):
        assert f"({name})" in TEXT


# ---- each step in a core -------------------------------------------------------------------------------------------


def cluster(properties: str = "", *, more: str = "", vcore: int = 10) -> Cluster:
    found = Cluster(A % (f", properties: {{{properties}}}" if properties else "", more))
    found.node("n", vcore=vcore)
    return found


def submit(found: Cluster, vcore: int, *, style: str = "") -> Cluster:
    item = AppItem("x", "root.a", "default", "ann", placeholder_ask={"vcore": vcore}, gang_style=style)
    found.do(UpdateApplications((item,)))
    return found


def want(found: Cluster, *keys: str, vcore: int = 1, placeholder: bool = True) -> Outcome:
    items = [
        AskItem(key, "x", "default", {"vcore": vcore}, task_group="t", placeholder=placeholder, allow_preempt_self=True)
        for key in keys
    ]
    return found.do(UpdateAllocations(items))


def real(found: Cluster, key: str = "r", *, vcore: int = 1) -> Outcome:
    return want(found, key, vcore=vcore, placeholder=False)


def let_go(found: Cluster, key: str, termination: Termination) -> Outcome:
    return found.do(UpdateAllocations((), [ReleaseItem("default", "x", key, termination)]))


def poor(found: Cluster) -> Outcome:
    """Somebody with a guarantee takes all that there is."""
    found.app("p", "root.poor")
    found.do(UpdateAllocations([AskItem("poor", "p", "default", {"vcore": 5}, allow_preempt_other=True)]))
    return found.wait(1)


def then(found: Cluster, *steps: Callable[[Cluster], object]) -> Cluster:
    for step in steps:
        step(found)
    return found


def state(found: Cluster, key: str = "p") -> str:
    app = found.partition.apps.get("x")
    if app is None:
        return "Gone"
    held = app.allocations.get(key)
    return placeholders.state_of(held).value if held is not None else "Asked" if key in app.asks else "Gone"


def asked() -> Cluster:
    return then(submit(cluster(vcore=0), 1), lambda c: want(c, "p"))


def held(more: str = "", style: str = "") -> Cluster:
    return then(submit(cluster(more=more, vcore=5), 5, style=style), lambda c: want(c, "p", vcore=5))


def leaving() -> Cluster:
    return then(held(), lambda c: real(c, vcore=5))


def timing_out() -> Cluster:
    return then(held(), lambda c: c.wait(TIMEOUT_S))


def preempted() -> Cluster:
    return then(held(POOR), poor)


def without_node(found: Cluster) -> Outcome:
    return found.do(nodes(NodeAction.DECOMISSION, {"n": None}))


def without_application(found: Cluster) -> Outcome:
    return found.do(UpdateApplications((), (("default", "x"),)))


STOPPED, FAILED = Termination.STOPPED_BY_RM, Termination.SCHEDULING_FAILED_ON_RM
REPLACED, PREEMPTED, TIMEOUT = Termination.PLACEHOLDER_REPLACED, Termination.PREEMPTED_BY_SCHEDULER, Termination.TIMEOUT
Step = tuple[Callable[[], Cluster], Callable[[Cluster], object]]


def drain(found: Cluster) -> None:
    """So that what is open again stays so."""
    found.do(nodes(NodeAction.DRAIN_NODE, {"n": None}))


def going(termination: Termination) -> Callable[[Cluster], Outcome]:
    return lambda c: let_go(c, "p", termination)


# The RM reports a placeholder that runs already.
REPORTED = UpdateAllocations(
    [AskItem("p", "x", "default", {"vcore": 1}, task_group="t", placeholder=True, node_id="n")]
)

STEPS: dict[tuple[str, str], list[Step]] = {
    ("Asked", "allocate"): [
        (asked, lambda c: c.node("m", vcore=1)),
        (
            asked,
            lambda c: c.do(REPORTED),
        ),
    ],
    ("Asked", "time out"): [
        (lambda: then(held(), lambda c: want(c, "q")), lambda c: c.wait(TIMEOUT_S)),
    ],
    ("Asked", "remove"): [(asked, going(STOPPED)), (asked, without_application)],
    ("Held", "replace"): [(held, lambda c: real(c, vcore=5)), (held, lambda c: real(c, vcore=1))],
    ("Held", "time out"): [
        (held, lambda c: c.wait(TIMEOUT_S)),
        (held, lambda c: real(c, vcore=6)),
        (
            lambda: then(held(), lambda c: c.node("m", vcore=1), lambda c: c.ask("x", "k", vcore=1)),
            lambda c: (c.release("x", "k"), c.wait(30)),
        ),
    ],
    ("Held", "preempt"): [(lambda: held(POOR), poor)],
    ("Held", "remove"): [(held, going(STOPPED)), (held, without_node), (held, without_application)],
    ("Held", "fail on RM"): [(lambda: then(held(), drain), going(FAILED))],
    ("Leaving", "remove"): [
        (leaving, without_node),
        (leaving, without_application),
        *((leaving, going(each)) for each in (REPLACED, STOPPED, TIMEOUT, PREEMPTED, FAILED)),
    ],
    ("TimingOut", "remove"): [
        (timing_out, without_node),
        *((timing_out, going(each)) for each in (TIMEOUT, STOPPED, FAILED, REPLACED)),
    ],
    ("Preempted", "remove"): [(preempted, without_node), (preempted, going(PREEMPTED)), (preempted, going(STOPPED))],
    ("Preempted", "fail on RM"): [(preempted, going(FAILED))],
}


def test_each_row_of_placeholders_is_driven() -> None:
    assert set(STEPS) == set(PLACEHOLDERS)


@pytest.mark.parametrize("pair", sorted(STEPS), ids=" ".join)
def test_a_placeholder_takes_the_step(pair: tuple[str, str]) -> None:
    for start, step in STEPS[pair]:
        found = start()
        key = "q" if pair == ("Asked", "time out") else "p"
        assert state(found, key) == pair[0]
        step(found)
        assert state(found, key) == PLACEHOLDERS[pair]


def phase(found: Cluster) -> str:
    gang = found.application("x").gang
    assert gang is not None
    return gang.phase.value


def forming() -> Cluster:
    return then(submit(cluster(vcore=1), 2), lambda c: want(c, "p", "q"))


def formed() -> Cluster:
    return then(submit(cluster(), 2), lambda c: want(c, "p", "q"))


def reported(found: Cluster) -> Outcome:
    return found.do(UpdateAllocations([AskItem("r", "x", "default", {"vcore": 1}, node_id="n")]))


def whole(vcore: int) -> Cluster:
    """All of a gang will be preempted, or nothing of it."""
    found = submit(cluster("gang.preemption: whole", more=POOR, vcore=5), vcore)
    want(found, "p", vcore=5)
    return found


def waiting_with_a_clock() -> Cluster:
    return then(whole(6), poor, lambda c: want(c, "q"), lambda c: let_go(c, "p", PREEMPTED))


PHASE_STEPS: dict[tuple[str, str], list[Step]] = {
    ("WAITING", "first placeholder"): [
        (lambda: submit(cluster(), 2), lambda c: want(c, "p")),
        (
            lambda: submit(cluster(), 2),
            lambda c: c.do(REPORTED),
        ),
    ],
    ("FORMING", "all placeholders"): [(forming, lambda c: c.node("m", vcore=1))],
    ("WAITING", "real allocation"): [
        (lambda: submit(cluster(), 2), reported),
        (lambda: submit(cluster("gang.start: incremental"), 2), real),
    ],
    ("FORMING", "real allocation"): [
        (forming, reported),
        (
            lambda: then(submit(cluster("gang.start: incremental"), 2), lambda c: want(c, "p")),
            lambda c: c.ask("x", "k", vcore=1),
        ),
    ],
    ("FORMED", "real allocation"): [
        (formed, lambda c: c.ask("x", "k", vcore=1)),
        (formed, lambda c: (real(c), let_go(c, "p", REPLACED))),
    ],
    ("OVER", "real allocation"): [
        (lambda: then(formed(), lambda c: c.wait(TIMEOUT_S)), lambda c: (let_go(c, "", TIMEOUT), real(c)))
    ],
    ("FORMING", "preempted"): [(lambda: whole(6), poor)],
    ("FORMED", "preempted"): [(lambda: whole(5), poor)],
    ("WAITING", "time-out"): [(waiting_with_a_clock, lambda c: c.wait(TIMEOUT_S))],
    ("FORMING", "time-out"): [(forming, lambda c: c.wait(TIMEOUT_S))],
    ("FORMED", "time-out"): [(formed, lambda c: c.wait(TIMEOUT_S))],
}


def test_each_row_of_phases_is_driven() -> None:
    assert set(PHASE_STEPS) == set(PHASES)


@pytest.mark.parametrize("pair", sorted(PHASE_STEPS), ids=" ".join)
def test_a_gang_takes_the_step(pair: tuple[str, str]) -> None:
    for number, (start, step) in enumerate(PHASE_STEPS[pair]):
        found = start()
        assert phase(found) == pair[0], number
        step(found)
        assert phase(found) == PHASES[pair], number


# ---- time-outs -----------------------------------------------------------------------------------------------------

TIMEOUTS = {(row[0], row[1]): {"Hard": row[2], "Soft": row[3]} for row in documents.table(TEXT, "\n## Time-outs\n")}


def _gang(vcore: int, style: str, properties: str = "") -> Cluster:
    return then(submit(cluster(properties, vcore=vcore), 2, style=style), lambda c: want(c, "p", "q"))


def _used(style: str) -> Cluster:
    return then(_gang(10, style), lambda c: c.ask("x", "k", vcore=1))


def _again(style: str) -> Cluster:
    """Its first placeholder was lost, and it asked for others before it was Completed."""
    found = then(
        submit(cluster(vcore=1), 2, style=style), lambda c: want(c, "first"), lambda c: c.release("x", "first")
    )
    assert found.application("x").state == "Completing"
    return then(found, lambda c: want(c, "p", "q"))


def _preempted_whole(style: str) -> Cluster:
    """All that it had was told to go for others, before it was formed; not all of that is confirmed."""
    found = submit(cluster("gang.preemption: whole", more=POOR, vcore=5), 3, style=style)
    return then(
        found, lambda c: want(c, "p", "q"), poor, lambda c: want(c, "late"), lambda c: let_go(c, "p", PREEMPTED)
    )


def _completing(style: str) -> Cluster:
    return then(_used(style), lambda c: c.wait(TIMEOUT_S - 1), lambda c: c.release("x", "k"))


def _too_large(style: str) -> Cluster:
    return then(_gang(0, style), lambda c: c.reload(A % (", resources: {max: {vcore: 1m}}", "")))


# What the row starts from, and how long its time is then.
TIMEOUT_STEPS: dict[tuple[str, str], tuple[Callable[[str], Cluster], int]] = {
    ("WAITING, before its first placeholder", "New or Accepted"): (lambda style: _gang(0, style), TIMEOUT_S),
    ("WAITING, while a limit is below the whole gang", "New or Accepted"): (_too_large, TIMEOUT_S),
    ("WAITING, after it was preempted", "Accepted"): (_preempted_whole, TIMEOUT_S),
    ("FORMING", "Accepted"): (lambda style: _gang(1, style), TIMEOUT_S),
    ("FORMED", "Accepted"): (lambda style: _gang(2, style), TIMEOUT_S),
    ("FORMING", "Running, because it was Completing before"): (_again, TIMEOUT_S),
    ("FORMED (`incremental`)", "Running"): (lambda style: _gang(2, style, "gang.start: incremental"), TIMEOUT_S),
    ("USED", "Running"): (_used, TIMEOUT_S),
    ("USED", "Completing"): (_completing, 1),
}


def test_each_row_of_time_outs_is_driven() -> None:
    assert set(TIMEOUT_STEPS) == set(TIMEOUTS)


@pytest.mark.parametrize("style", ["Hard", "Soft"])
@pytest.mark.parametrize("row", sorted(TIMEOUT_STEPS), ids=" ".join)
def test_a_time_out_does_what_the_row_says(row: tuple[str, str], style: str) -> None:
    start, seconds = TIMEOUT_STEPS[row]
    found = start(style)
    app, said = found.application("x"), TIMEOUTS[row][style]
    assert phase(found) == re.split("[, ]", row[0])[0]
    assert str(app.state) in row[1].partition(",")[0].split(" or ")
    pending = set(app.asks)
    free = {key for key, each in app.allocations.items() if each.placeholder and not each.releasing}
    out = found.wait(seconds)
    if said == "the clock does not run":
        assert (str(app.state), set(app.asks), pending) == ("Accepted", {"p", "q"}, {"p", "q"})
        assert not any(isinstance(fact, ReleasedAsk | ReleasedAllocation) for fact in out.facts)
        return
    assert {fact.key for fact in out.facts if isinstance(fact, ReleasedAsk)} == pending
    assert {
        fact.key for fact in out.facts if isinstance(fact, ReleasedAllocation) and fact.termination is TIMEOUT
    } == free
    first, _, second = said.partition(", then ")
    if app.allocations:
        assert str(app.state) == first
    else:  # nobody has to confirm anything: it is further already
        assert first in [str(state) for _, state in app.state_log]
    let_go(found, "p", TIMEOUT)
    let_go(found, "q", TIMEOUT)
    if second:
        assert (first, second) in itertools.pairwise(str(each) for _, each in app.state_log)


# ---- words ---------------------------------------------------------------------------------------------------------


def test_the_properties_are_there_with_their_defaults() -> None:
    rows = documents.table(TEXT, "\n## Properties of a queue\n")
    assert {row[0].strip("`"): row[1].split("`")[1] for row in rows} == {
        name: key.default for name, key in KEYS.items() if name.startswith("gang.")
    }


def test_the_reasons_are_there() -> None:
    named = {code.value for code in ReasonCode if code.value.startswith(("GANG_", "PLACEHOLDER_"))}
    assert {row[0] for row in documents.table(TEXT, "\n## Reasons of a waiting gang\n")} == named


def test_the_times_are_those_of_the_code() -> None:
    assert (PLACEHOLDER_TIMEOUT_NS, REMINDER_NS) == (15 * 60 * 10**9, 5 * 60 * 10**9)
    assert {"15 minutes", "5 minutes"} <= {*re.findall(r"\d+ minutes", TEXT)}
