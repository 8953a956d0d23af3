"""docs/states.md: a row for every transition and every timer, and a core that takes each step.

After a change of a table: ``PYTHONPATH=tests .venv/bin/python tests/unit/core/test_states_docs.py`` draws the figures
anew (the rows are written by hand).
"""

from __future__ import annotations

import importlib
import itertools
import pkgutil
import re
from collections.abc import Callable, Iterator
from dataclasses import fields
from pathlib import Path

import documents
import muster_core
import pytest
from builders import Cluster, nodes
from muster_core.config.properties import SECOND_NS, QueuePolicy, duration_text
from muster_core.config.queue_config import ReservationConfig
from muster_core.model.commands import (
    AppItem,
    AskItem,
    EndApplication,
    NodeAction,
    NodeItem,
    ReleaseItem,
    Termination,
    UpdateAllocations,
    UpdateApplications,
    UpdateConfiguration,
    UpdateNodes,
)
from muster_core.model.outcome import (
    AcceptedNode,
    NewAllocation,
    Outcome,
    RejectedNode,
    ReleasedAllocation,
    ReleasedAsk,
)
from muster_core.model.scopes import CallbackPolicy
from muster_core.model.states import APP_TRANSITIONS, QUEUE_TRANSITIONS, AppState, QueueState
from muster_gateway.rm_lifecycle import TRANSITIONS as RM_TRANSITIONS
from muster_gateway.settings import GatewaySettings
from muster_queue_config.queue_yaml import load_queue_config
from muster_scheduler import group_resolution
from muster_si.constants import REQUIRED_NODE_TAG

DOC = documents.DOCS / "states.md"
NOT_YET = "*Not yet*"
LEAF = "{name: root, submitacl: '*', queues: [{name: a}]}"

Rows = list[list[str]]
Steps = dict[tuple[str, str], str]


def sections() -> dict[str, tuple[str, Rows]]:
    """Heading → (its figure, the rows of its table)."""
    found: dict[str, tuple[str, Rows]] = {}
    for part in DOC.read_text(encoding="utf-8").split("\n## ")[1:]:
        heading, _, text = part.partition("\n")
        figure = re.search(r"```mermaid\n(.*?)```", text, re.DOTALL)
        rows = [row for table in documents.tables(text) for row in table]
        found[heading] = (figure[1] if figure is not None else "", rows)
    return found


SECTIONS = sections()
APPLICATIONS = {(row[0], row[1]): (row[2], row[3]) for row in SECTIONS["Applications"][1]}
QUEUES = {(row[0], row[1]): (row[2], row[3]) for row in SECTIONS["Queues and partitions"][1]}
NODES = {(row[0], row[1]): (row[2], row[3]) for row in SECTIONS["Nodes"][1]}
ALLOCATIONS = {(row[0], row[1]): (row[2], row[3]) for row in SECTIONS["Asks and allocations"][1]}
RM_LIFE = {(row[0], row[1]): row[2] for row in SECTIONS["A resource manager"][1]}


# ---- the tables of the code ----------------------------------------------------------------------------------------


def test_applications_have_the_rows_of_their_table() -> None:
    written = {pair: to for pair, (to, _) in APPLICATIONS.items()}
    assert written == {(before.value, event.value): after.value for (before, event), after in APP_TRANSITIONS.items()}


def test_queues_have_the_rows_of_their_table() -> None:
    written = {pair: to for pair, (to, _) in QUEUES.items()}
    assert written == {(before.value, event.value): after.value for (before, event), after in QUEUE_TRANSITIONS.items()}


def test_an_rm_has_the_rows_of_its_table() -> None:
    assert {(before.name, event.value): after.name for (before, event), after in RM_TRANSITIONS.items()} == RM_LIFE


def test_no_row_is_there_twice() -> None:
    for heading, (_, rows) in SECTIONS.items():
        keys = [tuple(row[:2]) for row in rows]
        assert len(keys) == len(set(keys)), heading


# ---- applications: each step in a core -----------------------------------------------------------------------------


def cluster(queues: str = LEAF, *, vcore: int = 10) -> Cluster:
    found = Cluster(queues)
    if vcore:
        found.node("n", vcore=vcore)
    return found


def accepted() -> Cluster:
    found = cluster(vcore=0)
    found.app("x", "root.a")
    found.ask("x", "k", vcore=1)
    return found


def running(timeout_ms: int = 0) -> Cluster:
    found = cluster()
    found.do(UpdateApplications((AppItem("x", "root.a", "default", "ann", execution_timeout_ms=timeout_ms),)))
    found.ask("x", "k", vcore=1)
    return found


def gang(style: str = "") -> Cluster:
    """A placeholder of two that were announced, until its time is over."""
    found = cluster(vcore=1)
    item = AppItem("x", "root.a", "default", "ann", placeholder_ask={"vcore": 2}, gang_style=style)
    found.do(UpdateApplications((item,)))
    found.do(UpdateAllocations([AskItem("p", "x", "default", {"vcore": 1}, task_group="t", placeholder=True)]))
    found.wait(15 * 60)
    return found


def too_large(style: str) -> Cluster:
    """A gang that has asked for nothing, until its time is over in a queue whose max was lowered below it."""
    found = cluster(vcore=0)
    item = AppItem("x", "root.a", "default", "ann", placeholder_ask={"vcore": 2}, gang_style=style)
    found.do(UpdateApplications((item,)))
    found.reload("{name: root, submitacl: '*', queues: [{name: a, resources: {max: {vcore: 1m}}}]}")
    found.wait(15 * 60)
    return found


def completing() -> Cluster:
    found = running()
    found.release("x", "k")
    return found


def failed() -> Cluster:
    found = running(timeout_ms=1_000)
    found.wait(1)
    found.release("x", "k", Termination.TIMEOUT)
    return found


def end(found: Cluster) -> None:
    found.do(EndApplication("default", "x", "ended by an operator"))


def then(found: Cluster, step: Callable[[Cluster], object]) -> Cluster:
    step(found)
    return found


# What brings an application from one state to the next; it is "x" in the end, or its story says so.
APP_STEPS: dict[tuple[str, str], Callable[[], Cluster]] = {
    ("New", "runApplication"): accepted,
    ("Accepted", "runApplication"): running,
    ("Completing", "runApplication"): lambda: then(completing(), lambda c: c.ask("x", "again", vcore=1)),
    ("Accepted", "completeApplication"): lambda: then(accepted(), lambda c: c.release("x", "k")),
    ("Running", "completeApplication"): completing,
    ("Completing", "completeApplication"): lambda: then(completing(), lambda c: c.wait(30)),
    ("Running", "failApplication"): lambda: then(running(timeout_ms=1_000), lambda c: c.wait(1)),
    ("Completing", "failApplication"): lambda: then(completing(), end),
    ("Resuming", "failApplication"): lambda: then(gang(), end),
    ("Failing", "failApplication"): failed,
    ("New", "failApplication"): lambda: too_large("Hard"),
    ("New", "resumeApplication"): lambda: too_large("Soft"),
    ("Accepted", "failApplication"): lambda: gang("Hard"),
    ("Accepted", "resumeApplication"): gang,
    ("Resuming", "runApplication"): lambda: then(gang(), lambda c: c.release("x", "p")),
}


@pytest.mark.parametrize("pair", sorted(APP_STEPS), ids=" ".join)
def test_an_application_takes_the_step(pair: tuple[str, str]) -> None:
    to, when = APPLICATIONS[pair]
    assert NOT_YET not in when
    story = [str(state) for _, state in APP_STEPS[pair]().application("x").state_log]
    assert (pair[0], to) in itertools.pairwise(story), story


def test_a_refused_application_is_rejected_and_forgotten_after_its_time() -> None:
    found = cluster()
    found.app("x", "root.nope")
    (rejected,) = found.partition.rejected.values()
    assert [str(state) for _, state in rejected.state_log] == ["New", "Rejected"]
    found.wait(72 * 3600)
    assert not found.partition.rejected


@pytest.mark.parametrize("finished", [lambda: then(completing(), lambda c: c.wait(30)), failed])
def test_a_finished_application_expires(finished: Callable[[], Cluster]) -> None:
    found = finished()
    app = found.application("x")
    found.wait(72 * 3600 - 1)
    assert app.state is not AppState.EXPIRED
    found.wait(1)
    assert app.state is AppState.EXPIRED
    assert "x" not in found.partition.apps


def test_each_row_of_applications_is_driven_or_says_that_it_is_not() -> None:
    beside = {
        ("Running", "runApplication"),  # no step
        ("New", "rejectApplication"),
        ("Completed", "expireApplication"),
        ("Failed", "expireApplication"),
        ("Rejected", "expireApplication"),
    }
    later = {pair for pair, (_, when) in APPLICATIONS.items() if NOT_YET in when}
    assert set(APPLICATIONS) == set(APP_STEPS) | beside | later


# ---- queues --------------------------------------------------------------------------------------------------------


def reload(found: Cluster, queues: str) -> None:
    config, problems = load_queue_config(f"partitions: [{{name: default, queues: [{queues}]}}]")
    assert config is not None, problems
    found.do(UpdateConfiguration(config))


WITHOUT = "{name: root, submitacl: '*', queues: [{name: b}]}"


def draining() -> Cluster:
    found = running()
    reload(found, WITHOUT)
    return found


QUEUE_STEPS: dict[tuple[str, str], Callable[[], Cluster]] = {
    ("Active", "Start"): lambda: then(running(), lambda c: reload(c, LEAF)),
    ("Draining", "Start"): lambda: then(draining(), lambda c: reload(c, LEAF)),
    ("Active", "Remove"): draining,
    ("Draining", "Remove"): lambda: then(draining(), lambda c: reload(c, WITHOUT)),
    ("Stopped", "Start"): lambda: then(stopped(), lambda c: reload(c, LEAF)),
}


def stopped() -> Cluster:
    found = running()
    found.queue("root.a").state = QueueState.STOPPED
    return found


@pytest.mark.parametrize("pair", sorted(QUEUE_STEPS), ids=" ".join)
def test_a_queue_takes_the_step(pair: tuple[str, str]) -> None:
    assert QUEUE_STEPS[pair]().queue("root.a").state == QUEUES[pair][0]


def test_each_row_of_queues_is_driven_or_says_that_it_is_not() -> None:
    assert set(QUEUES) == set(QUEUE_STEPS) | {pair for pair, (_, when) in QUEUES.items() if NOT_YET in when}


def test_an_empty_draining_queue_goes_after_its_time() -> None:
    found = draining()
    found.release("x", "k")
    found.wait(30)  # the application is completed
    found.wait(9)
    assert "root.a" in found.partition.queues
    found.wait(1)
    assert "root.a" not in found.partition.queues


# ---- nodes ---------------------------------------------------------------------------------------------------------


def node_state(found: Cluster) -> str:
    node = found.partition.nodes.get("n")
    return "absent" if node is None else "schedulable" if node.schedulable else "draining"


def with_node(state: str) -> Cluster:
    found = Cluster(LEAF)
    if state != "absent":
        action = NodeAction.CREATE if state == "schedulable" else NodeAction.CREATE_DRAIN
        found.do(nodes(action, {"n": {"vcore": 1}}))
    return found


def test_nodes_have_a_row_for_each_state_and_action() -> None:
    actions = [action.name for action in NodeAction if action is not NodeAction.UNKNOWN]
    assert set(NODES) == {(state, action) for state in ("absent", "schedulable", "draining") for action in actions}


@pytest.mark.parametrize("pair", sorted(NODES), ids=" ".join)
def test_a_node_takes_the_step_and_is_answered(pair: tuple[str, str]) -> None:
    found = with_node(pair[0])
    assert node_state(found) == pair[0]
    out = found.do(UpdateNodes((NodeItem("n", NodeAction[pair[1]], capacity={"vcore": 2}),)))
    kinds = {AcceptedNode: "accepted", RejectedNode: "rejected"}
    answers = [kinds[type(fact)] for fact in out.facts if type(fact) in kinds]
    assert (node_state(found), " ".join(answers) or "-") == NODES[pair]


# ---- asks and allocations ------------------------------------------------------------------------------------------


def allocation_state(found: Cluster, key: str = "k") -> str:
    partition = found.partition
    if key in partition.foreign:
        return "foreign"
    app = partition.apps["x"]
    held = app.allocations.get(key)
    if held is not None:
        return "releasing" if held.preempted is not None or held.timed_out else "allocated"
    wanted = app.asks.get(key)
    if wanted is None:
        return "gone" if key in EVER else "-"
    return "reserved" if wanted.reserved_node else "pending"


def told(out: Outcome, key: str = "k") -> str:
    found = [
        "new" if isinstance(fact, NewAllocation) else f"released, {fact.termination.name}"
        for fact in out.facts
        if (isinstance(fact, NewAllocation) and fact.allocation.key == key)
        or (isinstance(fact, ReleasedAllocation | ReleasedAsk) and fact.key == key)
    ]
    return "; ".join(found) or "-"


EVER = {"k"}  # the key of whatever is driven


def nothing(*, vcore: int = 10) -> Cluster:
    found = cluster(vcore=vcore)
    found.app("x", "root.a")
    return found


def pending() -> Cluster:
    found = nothing()
    found.ask("x", "other", vcore=6)
    found.ask("x", "k", vcore=5)
    return found


def reserved() -> Cluster:
    return then(pending(), lambda c: c.wait(2))


def allocated() -> Cluster:
    return then(nothing(), lambda c: c.ask("x", "k", vcore=1))


def preempting() -> Cluster:
    """root.poor takes from root.a what it is guaranteed, as soon as its ask is old enough."""
    poor = "{name: poor, resources: {guaranteed: {vcore: 5m}}, properties: {preemption.delay: 1s}}"
    found = cluster(f"{{name: root, submitacl: '*', queues: [{{name: a}}, {poor}]}}")
    found.app("x", "root.a")
    found.app("p", "root.poor")
    found.do(UpdateAllocations([AskItem("k", "x", "default", {"vcore": 10}, allow_preempt_self=True)]))
    found.do(UpdateAllocations([AskItem("poor", "p", "default", {"vcore": 5}, allow_preempt_other=True)]))
    return found


def timing_out() -> Cluster:
    found = nothing()
    found.do(UpdateAllocations([AskItem("k", "x", "default", {"vcore": 1}, execution_timeout_ms=1_000)]))
    return found


def foreign(found: Cluster, vcore: int = 1) -> Outcome:
    item = AskItem("k", "", "default", {"vcore": vcore}, tags={"foreign": "default"}, node_id="n")
    return found.do(UpdateAllocations([item]))


def reported(found: Cluster, vcore: int) -> Outcome:
    return found.do(UpdateAllocations([AskItem("k", "x", "default", {"vcore": vcore}, node_id="n")]))


def let_go(key: str, termination: Termination, app: str = "x") -> Callable[[Cluster], Outcome]:
    return lambda c: c.do(UpdateAllocations((), [ReleaseItem("default", app, key, termination)]))


def without_node(found: Cluster) -> Outcome:
    return found.do(nodes(NodeAction.DECOMISSION, {"n": None}))


def daemon(found: Cluster) -> Outcome:
    """A daemon that its node has no room for takes the node for itself."""
    item = AskItem("daemon", "x", "default", {"vcore": 9}, tags={REQUIRED_NODE_TAG: "n"})
    return found.do(UpdateAllocations([item]))


def higher(found: Cluster) -> Outcome:
    """An ask of a higher priority finds no node but the reserved one, which has no room for it either."""
    found.ask("x", "higher", vcore=9, priority=1)
    return found.wait(2)


def with_victim() -> Cluster:
    """An ask within a guarantee, for which the one allocation goes."""
    poor = "{name: a, resources: {guaranteed: {vcore: 5m}}, properties: {preemption.delay: 1s}}"
    found = cluster(f"{{name: root, submitacl: '*', queues: [{poor}, {{name: rich}}]}}")
    found.app("x", "root.a")
    found.app("r", "root.rich")
    found.do(UpdateAllocations([AskItem("victim", "r", "default", {"vcore": 10}, allow_preempt_self=True)]))
    found.do(UpdateAllocations([AskItem("k", "x", "default", {"vcore": 5}, allow_preempt_other=True)]))
    return then(found, lambda c: c.wait(1))


def others_use_it(found: Cluster) -> Outcome:
    """Another manager takes the room before the victim is gone."""
    item = AskItem("foreign", "", "default", {"vcore": 6}, tags={"foreign": "default"}, node_id="n")
    found.do(UpdateAllocations([item]))
    return let_go("victim", Termination.PREEMPTED_BY_SCHEDULER, "r")(found)


STOPPED, FAILED = Termination.STOPPED_BY_RM, Termination.SCHEDULING_FAILED_ON_RM
PREEMPTED, TIMEOUT = Termination.PREEMPTED_BY_SCHEDULER, Termination.TIMEOUT
Way = tuple[Callable[[], Cluster], Callable[[Cluster], Outcome]]

# What the row starts from, and the step; several ways: each must do it.
ALLOCATION_STEPS: dict[tuple[str, str], list[Way]] = {
    ("-", "an ask"): [(lambda: nothing(vcore=0), lambda c: c.ask("x", "k", vcore=1))],
    ("-", "an ask that fits"): [(nothing, lambda c: c.ask("x", "k", vcore=1))],
    ("-", "an allocation on a node (recovery)"): [
        (nothing, lambda c: c.do(UpdateAllocations([AskItem("k", "x", "default", {"vcore": 1}, node_id="n")])))
    ],
    ("-", "a foreign allocation"): [(nothing, foreign)],
    ("pending", "room on a node"): [
        (pending, let_go("other", STOPPED)),
        (pending, lambda c: c.node("m", vcore=5)),
    ],
    ("pending", "the reservation delay passes"): [(pending, lambda c: c.wait(2))],
    ("pending", "the RM withdraws the ask"): [(pending, let_go("k", STOPPED))],
    ("reserved", "room on its node"): [(reserved, let_go("other", STOPPED))],
    ("reserved", "its node is removed, or a daemon needs it"): [(reserved, without_node), (reserved, daemon)],
    ("reserved", "an ask of higher rank takes its node"): [(reserved, higher)],
    ("reserved", "the room that victims left is lost"): [(with_victim, others_use_it)],
    ("reserved", "the RM withdraws the ask"): [(reserved, let_go("k", STOPPED))],
    ("allocated", "released by the RM (STOPPED_BY_RM)"): [(allocated, let_go("k", STOPPED))],
    ("allocated", "the RM could not start it (SCHEDULING_FAILED_ON_RM)"): [
        # (On a node that takes nothing more: else it is allocated again at once.)
        (lambda: then(allocated(), lambda c: c.do(nodes(NodeAction.DRAIN_NODE, {"n": None}))), let_go("k", FAILED))
    ],
    ("allocated", "the RM sends its ask again, changed"): [(allocated, lambda c: c.ask("x", "k", vcore=2, priority=3))],
    ("allocated", "the RM reports it again, changed or not"): [
        (allocated, lambda c: reported(c, 1)),
        (allocated, lambda c: reported(c, 2)),
    ],
    ("releasing", "the RM sends its ask again, changed"): [
        (lambda: then(timing_out(), lambda c: c.wait(1)), lambda c: c.ask("x", "k", vcore=2))
    ],
    ("foreign", "the RM reports it again, changed or not"): [
        (lambda: then(nothing(), foreign), foreign),
        (lambda: then(nothing(), foreign), lambda c: foreign(c, vcore=2)),
    ],
    ("gone", "released by the RM"): [(nothing, let_go("k", kind)) for kind in (STOPPED, TIMEOUT, FAILED)],
    ("allocated", "its node is removed"): [(allocated, without_node)],
    ("allocated", "preempted"): [(preempting, lambda c: c.wait(1))],
    ("allocated", "its execution time-out expires"): [(timing_out, lambda c: c.wait(1))],
    ("releasing", "confirmed by the RM (PREEMPTED_BY_SCHEDULER or TIMEOUT)"): [
        (lambda: then(preempting(), lambda c: c.wait(1)), let_go("k", PREEMPTED)),
        (lambda: then(timing_out(), lambda c: c.wait(1)), let_go("k", TIMEOUT)),
    ],
    ("releasing", "released by the RM (STOPPED_BY_RM)"): [
        (lambda: then(preempting(), lambda c: c.wait(1)), let_go("k", STOPPED)),
        (lambda: then(timing_out(), lambda c: c.wait(1)), let_go("k", STOPPED)),
    ],
    ("foreign", "released by the RM"): [(lambda: then(nothing(), foreign), let_go("k", STOPPED, ""))],
}


def test_each_row_of_allocations_is_driven() -> None:
    assert set(ALLOCATIONS) == set(ALLOCATION_STEPS)


@pytest.mark.parametrize("pair", sorted(ALLOCATION_STEPS), ids=" ".join)
def test_an_allocation_takes_the_step_and_the_rm_gets_the_message(pair: tuple[str, str]) -> None:
    for start, step in ALLOCATION_STEPS[pair]:
        found = start()
        assert allocation_state(found) == ("gone" if pair[0] == "-" else pair[0])
        out = step(found)
        assert (allocation_state(found), told(out)) == ALLOCATIONS[pair]


# ---- timers --------------------------------------------------------------------------------------------------------

TIMERS = {row[4].strip("`"): row[2] for row in SECTIONS["Timers"][1]}
# Names for amounts of time that are no timers.
_UNITS = {"SECOND_NS", "HOUR_NS"}


def constants() -> Iterator[tuple[str, str]]:
    """Every amount of time that the core or the look-up of groups waits for: (name, how long)."""
    modules = [
        importlib.import_module(each.name) for each in pkgutil.walk_packages(muster_core.__path__, "muster_core.")
    ]
    for module in [*modules, group_resolution]:
        for name, value in vars(module).items():
            text = (Path(str(module.__file__))).read_text(encoding="utf-8")
            own = re.search(rf"^{name}(: \w+)? = ", text, re.MULTILINE)
            if name.endswith("_NS") and not name.startswith("_") and name not in _UNITS and own:
                yield f"{module.__name__.rpartition('.')[2]}.{name}", duration_text(value)
    for made in (ReservationConfig(), QueuePolicy(), CallbackPolicy()):
        for field in fields(made):
            if field.name.endswith("_ns") and field.name != "since_ns":
                yield f"{type(made).__name__}.{field.name}", duration_text(getattr(made, field.name))
    settings = GatewaySettings()
    for name in ("pause_timeout_s", "lease_ttl_s"):
        yield f"GatewaySettings.{name}", duration_text(round(getattr(settings, name) * SECOND_NS))


@pytest.mark.source
def test_every_timer_has_a_row_with_its_time() -> None:
    as_the_rm_says = {
        "Application.execution_timeout_ms": "as the RM says (executionTimeoutMilliSeconds; ≤ 0: none)",
        "Demand.execution_timeout_ms": "as the RM says (executionTimeoutMilliSeconds; ≤ 0: none)",
    }
    assert {**dict(constants()), **as_the_rm_says} == TIMERS


# ---- figures -------------------------------------------------------------------------------------------------------


def figures() -> dict[str, str]:
    """Heading → its figure, made of the rows."""
    return {
        "Applications": _figure({pair: to for pair, (to, _) in APPLICATIONS.items()}, "New"),
        "Queues and partitions": _figure({pair: to for pair, (to, _) in QUEUES.items()}, "Active"),
        "Nodes": _figure({pair: to for pair, (to, _) in NODES.items()}, "absent"),
        "Asks and allocations": _figure({pair: to for pair, (to, _) in ALLOCATIONS.items()}, "-"),
        "A resource manager": _figure(RM_LIFE, "INIT"),
    }


def _figure(steps: Steps, first: str) -> str:
    """A state diagram: each pair of states once, with what leads from one to the other, without steps that stay."""
    arrows: dict[tuple[str, str], list[str]] = {}
    for (before, what), after in steps.items():
        if before != after:
            arrows.setdefault((before, after), []).append(re.sub(r" \(.*\)", "", what))
    lines = ["stateDiagram-v2"]
    if first != "-":
        lines.append(f"    [*] --> {_id(first)}")
    lines += [f"    {_id(before)} --> {_id(after)}: {' / '.join(what)}" for (before, after), what in arrows.items()]
    return "\n".join(lines) + "\n"


def _id(state: str) -> str:
    return "[*]" if state in ("-", "gone") else state.replace(" ", "_")


@pytest.mark.parametrize("heading", figures())
def test_the_figure_is_that_of_the_rows(heading: str) -> None:
    assert SECTIONS[heading][0] == figures()[heading], "draw the figures anew, see this file's first words"


def write() -> None:
    """Draws the figures into the document."""
    parts = DOC.read_text(encoding="utf-8").split("\n## ")
    for number, part in enumerate(parts):
        figure = figures().get(part.partition("\n")[0])
        if figure is not None:
            before, _, rest = part.partition("```mermaid\n")
            parts[number] = f"{before}```mermaid\n{figure}```{rest.partition('```')[2]}"
    DOC.write_text("\n## ".join(parts), encoding="utf-8")


if __name__ == "__main__":
    write()
