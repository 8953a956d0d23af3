"""Runs scenarios: files of YAML that say what is given, what happens, and what must be true then.

The words of a scenario are told in README.md. Everything here is strict: a word that the runner does not know is a
:class:`ScenarioError`, whatever the core does; an expectation that is not met, or names what does not exist, is an
AssertionError with the step in which it stood.
"""

from __future__ import annotations

import io
import random
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from builders import SECOND_NS, Cluster
from event_books import EventBooks
from event_books_shown import numbers_of, of_core
from muster_bus.log import Record
from muster_core import invariants
from muster_core.config.queue_config import ClusterConfig, parse_quantity, partition_name
from muster_core.model import commands as c
from muster_core.model import outcome as o
from muster_core.model.demand import DURATION_TAG
from muster_core.model.pending_reason import ask_reason
from muster_core.model.states import AppState, GangPhase, PlaceholderState
from muster_core.partition import Partition
from muster_core.scheduler import SchedulerCore
from muster_queue_config.queue_yaml import ConfigProblem, load_queue_config
from muster_si.constants import REQUIRED_NODE_TAG
from muster_state import state_codec
from muster_state.state_folder import RmEntry, RmInfo, StateFolder, encode_registration, encode_rm
from muster_view.explain import asks as explain
from ruamel.yaml import YAML

Plain = Mapping[str, Any]


class ScenarioError(Exception):
    """The scenario itself is wrong: an unknown key, or a missing part."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """One scenario, as read.

    :param file: the name of its file.
    :param proves: the rule of the reference that it shows.
    """

    file: str
    name: str
    proves: str
    body: Plain

    def __str__(self) -> str:
        return f"{self.file}: {self.name}"


# ---- reading -------------------------------------------------------------------------------------------------------

_FILE_KEYS = {"section", "about", "before", "given", "scenarios"}
_CONFIG_KEYS = {"config", "partitions", "partition", "root", "queues"}
_BODY_KEYS = {*_CONFIG_KEYS, "nodes", "refused", "warned", "before", "steps"}


def read_scenarios(path: Path) -> list[Scenario]:
    """The scenarios of a file. Raises ScenarioError."""
    try:
        document = YAML(typ="safe").load(path.read_text())  # refuses keys that stand twice
    except Exception as error:
        raise ScenarioError(f"{path.name}: {error}") from error
    return scenarios_of(document, path.name)


def scenarios_of(document: Any, file: str) -> list[Scenario]:
    """The scenarios of a file's content. Raises ScenarioError."""
    _known(document, _FILE_KEYS, file)
    for key in ("section", "scenarios"):
        if not document.get(key):
            raise ScenarioError(f"{file}: {key} is missing")
    given = document.get("given") or {}
    scenarios = []
    for number, item in enumerate(document["scenarios"], start=1):
        where = f"{file}, scenario {number}"
        _known(item, _BODY_KEYS | {"name", "proves", "given"}, where)
        name, proves = item.get("name"), item.get("proves")
        if not name or not proves:
            raise ScenarioError(f"{where}: every scenario has a name and says what it proves")
        shared = item.get("given")
        if shared is not None and shared not in given:
            raise ScenarioError(f"{where}: given {shared!r} is not among {', '.join(given)}")
        body = {"before": document.get("before"), **(given[shared] if shared is not None else {}), **item}
        _known(body, _BODY_KEYS | {"name", "proves", "given"}, where)
        scenarios.append(Scenario(file, name, proves, body))
    return scenarios


def _known(value: Any, keys: set[str] | frozenset[str], where: str) -> None:
    if not isinstance(value, Mapping):
        raise ScenarioError(f"{where}: expected a mapping, got {value!r}")
    for key in value:
        if key not in keys:
            raise ScenarioError(f"{where}: unknown word {key!r}, expected one of {', '.join(sorted(keys))}")


def config_text(body: Plain) -> str:
    """The queue configuration of a scenario (or of a reload) as the text that an RM would send."""
    said = [key for key in ("config", "partitions", "partition", "root", "queues") if key in body]
    if "config" in body:
        if said != ["config"]:
            raise ScenarioError(f"config is the whole configuration: {said}")
        return str(body["config"])
    if "partitions" in body:
        if said != ["partitions"]:
            raise ScenarioError(f"partitions are the whole configuration: {said}")
        return _dump({"partitions": body["partitions"]})
    if "root" in body and "queues" in body:
        raise ScenarioError("root (the children of an open root) or queues (of the partition), not both")
    partition: dict[str, Any] = {"name": "default", **(body.get("partition") or {})}
    if "root" in body:
        partition["queues"] = [{"name": "root", "submitacl": "*", "queues": body["root"]}]
    elif "queues" in body:
        partition["queues"] = body["queues"]
    elif "queues" not in partition:
        partition["queues"] = [{"name": "root", "submitacl": "*", "queues": [{"name": "a"}]}]
    return _dump({"partitions": [partition]})


def _dump(value: object) -> str:
    stream = io.StringIO()
    YAML(typ="safe", pure=True).dump(value, stream)
    return stream.getvalue()


# ---- running -------------------------------------------------------------------------------------------------------


_RM = "rm"


class World(Cluster):
    """A cluster with any configuration, and its records.

    :ivar text: the configuration that is in force; ``offered``: the one that came last.
    :ivar topic: what the compacted state topic would hold.
    :ivar books: what the events add up to: after each step compared with what there is.
    """

    def __init__(self, config: ClusterConfig, text: str) -> None:
        self.now_ns = self.start_ns = self._decided_ns = 1_000 * SECOND_NS
        self.text = self.offered = text
        self.topic: dict[bytes, bytes] = {}
        self.books = EventBooks()
        self._life = "RUNNING"
        self._generation = ""
        self._restarts = 0
        self.core = SchedulerCore(config)
        self.core.apply(c.SetEvents(requests=True), self.now_ns)
        self.outcomes = [self.core.start(self.now_ns)]
        self._record(self.outcomes[0])

    def do(self, *commands: c.Command, budget: int = 1 << 30) -> o.Outcome:
        """Applies commands as a cluster does, and records the result as the service does."""
        out = super().do(*commands, budget=budget)
        for command in commands:
            if isinstance(command, c.SetSchedulingEnabled):
                self._life = "RUNNING" if command.deciding else "STOPPED"
            if isinstance(command, c.SetGeneration):
                self._generation = "previous" if command.previous else "current"
        if any(isinstance(fact, o.ConfigurationResult) and not fact.obstacles for fact in out.facts):
            self.text = self.offered
        if out:
            self._decided_ns = self.now_ns
        self._record(out)
        return out

    def _record(self, out: o.Outcome) -> None:
        for event in out.events:
            if event.type is not o.EventType.REQUEST:
                self.books.take(*numbers_of(event))
        self.books.compare(of_core(self.core))
        for partition, what, alive in out.objects():
            key = state_codec.key_of(_RM, partition, what)
            if alive:
                self.topic[key] = state_codec.encode(partition, what)
            else:
                del self.topic[key]

    def restart(self) -> o.Outcome:
        """Replaces the core by another one, built from the records."""
        info = RmInfo(_RM, config=self.text, registrations=1, life=self._life, last_decided_ns=self._decided_ns)
        info.generation = self._generation
        info.extra_config = {"event.requestEventsEnabled": "true"}
        folder = StateFolder()
        for number, value in enumerate((encode_rm(info, self.core.next_submission), encode_registration(info))):
            folder.fold(Record("state", 0, number, 0, f"{_RM}/{'reg' if number else 'rm'}/-".encode(), value))
        records = list(self.topic.items())
        self._restarts += 1
        random.Random(self._restarts).shuffle(records)  # a compacted topic has them in no useful order
        for number, (key, value) in enumerate(records, start=2):
            folder.fold(Record("state", 0, number, 0, key, value))
        folder.build()
        self.core = folder.rms[_RM].core
        self._compare(self.topic)
        self.core.activate(self.now_ns, self._decided_ns)
        invariants.check(self.core)
        return self.do()

    def _compare(self, recorded: Mapping[bytes, bytes]) -> None:
        """Fails unless the rebuilt core would write the same records."""
        found = dict(self._published())
        keys = sorted(key for key in {**recorded, **found} if recorded.get(key) != found.get(key))
        assert not keys, f"after a restart these are not as they were recorded: {[key.decode() for key in keys]}"

    def _published(self) -> Iterator[tuple[bytes, bytes]]:
        for name, partition in self.core.partitions.items():
            objects: list[o.Primary] = [*partition.queues.values(), *partition.nodes.values()]
            objects += [*partition.foreign.values(), *partition.rejected.values()]
            for queue in partition.queues.values():
                objects += queue.waitlists.values()
                objects += queue.fair_uses.users.values() if queue.fair_uses is not None else ()
            for app in partition.apps.values():
                objects += [app, *app.asks.values(), *app.allocations.values()]
            for what in objects:
                yield state_codec.key_of(_RM, name, what), state_codec.encode(name, what)

    def in_partition(self, name: str) -> Partition:
        found = self.core.partitions.get(partition_name(name))
        assert found is not None, f"there is no partition {name!r}"
        return found


def run(scenario: Scenario, *, restarts: bool = False) -> None:
    """Runs a scenario. Raises ScenarioError or AssertionError.

    :param restarts: the scheduler dies and comes back after every step, which must make no difference.
    """
    body = scenario.body
    checks = _Counter()
    text = config_text(body)
    config, problems = load_queue_config(text)
    if "warned" in body:
        _match_problems("warned", body["warned"], [p for p in problems if p.severity == "warning"])
        checks.count += 1
    if "refused" in body:
        if any(body.get(key) for key in ("before", "steps", "nodes")):
            raise ScenarioError(f"{scenario}: a configuration that is refused has no steps")
        _match_problems("refused", body["refused"], [p for p in problems if p.severity == "error"])
        assert config is None
        return
    assert config is not None, f"the configuration is refused: {'; '.join(map(str, problems))}"
    world = World(config, text)
    for node_id, has in (body.get("nodes") or {}).items():
        world.do(_node({"node": node_id, "has": has}))
    before = list(body.get("before") or ())
    for number, step in enumerate([*before, *(body.get("steps") or ())], start=1 - len(before)):
        try:
            _step(world, step, checks)
            if restarts and "budget" not in step:  # else it would go on with what the budget was too small for
                world.restart()
        except AssertionError as error:
            raise AssertionError(f"step {number}, {step}: {error}") from error
        except ScenarioError as error:
            raise ScenarioError(f"{scenario}, step {number}: {error}") from error
    if not checks.count:
        raise ScenarioError(f"{scenario}: nothing is expected, so it cannot fail")


class _Counter:
    count = 0


def _step(world: World, step: Plain, checks: _Counter) -> None:
    if not isinstance(step, Mapping):
        raise ScenarioError(f"expected a mapping, got {step!r}")
    rest = {key: value for key, value in step.items() if key not in ("expect", "budget")}
    expect = step.get("expect")
    if "expect" in step and not expect:
        raise ScenarioError("expect expects nothing")
    out = o.Outcome()
    if rest:
        budget = step.get("budget", 1 << 30)
        if set(rest) == {"wait"}:
            world.now_ns += round(rest["wait"] * SECOND_NS)
            out = world.do(budget=budget)
        elif set(rest) == {"restart"}:
            out = world.restart()
        else:
            out = world.do(*_commands(world, rest), budget=budget)
    elif "budget" in step or expect is None:
        raise ScenarioError("a step does something, expects something, or both")
    if expect is not None:
        _check(world, out, expect, checks)


# ---- what happens --------------------------------------------------------------------------------------------------


def _commands(world: World, step: Plain) -> list[c.Command]:
    if "together" in step:
        _known(step, {"together"}, "together")
        return [command for part in step["together"] for command in _commands(world, part)]
    action = next(iter(step))
    maker = _ACTIONS.get(action)
    if maker is None:
        raise ScenarioError(
            f"unknown action {action!r}, expected one of {', '.join(_ACTIONS)}, together, wait, restart"
        )
    words, make = maker
    _known(step, {action, *words}, action)
    if "uuid_of" in step:
        step = {**step, "uuid": _uuid_of(world, step)}
    if action == "reload":
        _known(step["reload"], _CONFIG_KEYS, "reload")
        world.offered = config_text(step["reload"])
    made = make(step) if action not in _TIMED else make({**step, "now_ns": world.now_ns})
    return made if isinstance(made, list) else [made]


def _uuid_of(world: World, step: Plain) -> str:
    """The UUID of an allocation, by its application and its key, or ``key#n``."""
    app = world.in_partition(step.get("partition", "default")).apps.get(step.get("application", ""))
    held = app.allocations.get(str(step["uuid_of"])) if app is not None else None
    assert held is not None, f"there is no allocation {step['uuid_of']!r}"
    assert held.uuid, f"{held} has no UUID"
    return held.uuid


# Actions that must know the time.
_TIMED = ("ask", "allocation", "node")


def quantities(value: Any) -> dict[str, int]:
    """Quantities as in the configuration. They may be negative."""
    if not isinstance(value, Mapping):
        raise ScenarioError(f"expected quantities such as {{vcore: 2, memory: 4Gi}}, got {value!r}")
    return {name: quantity(name, given) for name, given in value.items()}


def quantity(name: str, given: Any) -> int:
    text = str(given)
    if isinstance(given, bool | float) or given is None:
        raise ScenarioError(f"{name}: {given!r} is no quantity")
    try:
        return -parse_quantity(name, text[1:]) if text.startswith("-") else parse_quantity(name, text)
    except ValueError as error:
        raise ScenarioError(f"{name}: {error}") from error


def _names(value: Any) -> list[str]:
    """One name, a list of names, or ``k1..k9``."""
    if isinstance(value, list):
        return [name for item in value for name in _names(item)]
    text = str(value)
    match = re.fullmatch(r"(.*?)([0-9]+)\.\.(.*?)([0-9]+)", text)
    if match is None or match[1] != match[3]:
        return [text]
    return [f"{match[1]}{number}" for number in range(int(match[2]), int(match[4]) + 1)]


def _optional(value: Any) -> dict[str, int] | None:
    return None if value is None else quantities(value)


def _tags(value: Any) -> dict[str, str]:
    return {str(name): str(text) for name, text in (value or {}).items()}


def _node_item(node_id: str, action: c.NodeAction, step: Plain) -> c.NodeItem:
    return c.NodeItem(
        node_id,
        action,
        _tags(step.get("attributes")),
        capacity=_optional(step.get("has")),
        occupied=_optional(step.get("occupied")),
        existing=_existing(node_id, step),
        partition=step.get("partition", ""),
    )


def _existing(node_id: str, step: Plain) -> tuple[c.AskItem, ...]:
    """The node's existing allocations, as the RM reports them."""
    items: list[c.AskItem] = []
    for part in step.get("existing", ()):
        _known(part, {"allocation", *_ASK_WORDS, "holds", "uuid", "node"}, "existing")
        items += _ask_items("allocation", {"node": node_id, **part, "now_ns": step["now_ns"]})
    return tuple(items)


def _node(step: Plain) -> c.Command:
    action = c.NodeAction.CREATE_DRAIN if step.get("draining") else c.NodeAction.CREATE
    return c.UpdateNodes(tuple(_node_item(node_id, action, step) for node_id in _names(step["node"])))


def _node_action(word: str, action: c.NodeAction) -> Callable[[Plain], c.Command]:
    return lambda step: c.UpdateNodes(tuple(_node_item(node_id, action, step) for node_id in _names(step[word])))


def _application(step: Plain) -> c.Command:
    return c.UpdateApplications(
        tuple(
            c.AppItem(
                app_id,
                step.get("queue", ""),
                step.get("partition", "default"),
                step.get("user", "alice"),
                tuple(step.get("groups", ())),
                tags=_tags(step.get("tags")),
                execution_timeout_ms=step.get("execution_timeout_ms", 0),
                placeholder_ask=_optional(step.get("placeholder_ask")),
                gang_style=step.get("gang_style", ""),
            )
            for app_id in _names(step["application"])
        )
    )


def _remove_application(step: Plain) -> c.Command:
    partition = step.get("partition", "default")
    return c.UpdateApplications((), tuple((partition, app_id) for app_id in _names(step["remove_application"])))


def _ask_items(word: str, step: Plain) -> list[c.AskItem]:
    tags = _tags(step.get("tags"))
    if "asked_s_ago" in step:
        tags["creationTime"] = str(step["now_ns"] // SECOND_NS - step["asked_s_ago"])
    if "required_node" in step:
        tags[REQUIRED_NODE_TAG] = step["required_node"]
    policy = {"preempts_others": "allow_preempt_other", "may_be_preempted": "allow_preempt_self"}
    return [
        c.AskItem(
            key,
            step.get("application", ""),
            step.get("partition", "default"),
            quantities(step.get("wants", step.get("holds", {}))),
            wanted=step.get("wanted", 1),
            priority=step.get("priority", 0),
            tags=tags,
            task_group=step.get("task_group", ""),
            placeholder=step.get("placeholder", False),
            originator=step.get("originator", False),
            allow_preempt_self=step.get("may_be_preempted", False),
            allow_preempt_other=step.get("preempts_others", False),
            has_preemption_policy=any(name in step for name in policy),
            execution_timeout_ms=step.get("execution_timeout_ms", 0),
            previous_generation=step.get("previous_generation", False),
            node_id=step.get("node", ""),
            uuid=step.get("uuid", ""),
        )
        for key in _names(step[word])
    ]


_ASK_WORDS = (
    "application",
    "partition",
    "wants",
    "wanted",
    "priority",
    "tags",
    "asked_s_ago",
    "required_node",
    "task_group",
    "placeholder",
    "originator",
    "may_be_preempted",
    "preempts_others",
    "execution_timeout_ms",
    "previous_generation",
)


def _ask(step: Plain) -> c.Command:
    return c.UpdateAllocations(_ask_items("ask", step))


def _allocation(step: Plain) -> c.Command:
    return c.UpdateAllocations(_ask_items("allocation", step))


def _foreign(step: Plain) -> c.Command:
    tags = {"foreign": step.get("kind", "default"), **_tags(step.get("tags"))}
    items = [
        c.AskItem(
            key,
            "",
            step.get("partition", "default"),
            quantities(step["holds"]),
            tags=tags,
            priority=step.get("priority", 0),
            node_id=step.get("node", ""),
        )
        for key in _names(step["foreign"])
    ]
    return c.UpdateAllocations(items)


def _release_items(word: str, step: Plain, *, ask_only: bool = False) -> c.Command:
    try:
        termination = c.Termination[step.get("as", "STOPPED_BY_RM")]
    except KeyError:
        raise ScenarioError(f"unknown termination type {step['as']!r}") from None
    return c.UpdateAllocations(
        (),
        [
            c.ReleaseItem(
                step.get("partition", "default"),
                step.get("application", ""),
                key,
                termination,
                step.get("uuid", ""),
                step.get("message", ""),
                ask_only,
            )
            for key in _names(step[word] or "")
        ],
    )


def _reload(step: Plain) -> c.Command:
    config, problems = load_queue_config(config_text(step["reload"]))
    if config is None:
        raise ScenarioError(f"reload: refused before the core sees it: {'; '.join(map(str, problems))}")
    return c.UpdateConfiguration(config)


def _generation(step: Plain) -> c.Command:
    if step["generation"] not in ("current", "previous"):
        raise ScenarioError(f"unknown generation {step['generation']!r}, expected current or previous")
    return c.SetGeneration(step["generation"] == "previous")


_NODE_WORDS = ("has", "occupied", "attributes", "partition")
_RELEASE_WORDS = ("application", "partition", "as", "uuid", "uuid_of", "message")

_ACTIONS: dict[str, tuple[tuple[str, ...], Callable[[Plain], c.Command | list[c.Command]]]] = {
    "node": ((*_NODE_WORDS, "draining", "existing"), _node),
    "update_node": (_NODE_WORDS, _node_action("update_node", c.NodeAction.UPDATE)),
    "drain_node": (("partition",), _node_action("drain_node", c.NodeAction.DRAIN_NODE)),
    "undrain_node": (("partition",), _node_action("undrain_node", c.NodeAction.DRAIN_TO_SCHEDULABLE)),
    "remove_node": (("partition",), _node_action("remove_node", c.NodeAction.DECOMISSION)),
    "unknown_node_action": (("partition",), _node_action("unknown_node_action", c.NodeAction.UNKNOWN)),
    "application": (
        (
            "queue",
            "partition",
            "user",
            "groups",
            "tags",
            "execution_timeout_ms",
            "placeholder_ask",
            "gang_style",
        ),
        _application,
    ),
    "remove_application": (("partition",), _remove_application),
    "ask": (_ASK_WORDS, _ask),
    "allocation": ((*_ASK_WORDS, "node", "holds", "uuid"), _allocation),
    "foreign": (("node", "holds", "kind", "partition", "tags", "priority"), _foreign),
    "release": (_RELEASE_WORDS, lambda step: _release_items("release", step)),
    "release_ask": (_RELEASE_WORDS, lambda step: _release_items("release_ask", step, ask_only=True)),
    "reload": ((), _reload),
    "stop_deciding": ((), lambda _: c.SetSchedulingEnabled(False)),
    "start_deciding": ((), lambda _: c.SetSchedulingEnabled(True)),
    "generation": ((), _generation),
}


# ---- what comes out ------------------------------------------------------------------------------------------------


def message(fact: o.Fact) -> str:
    """A message to the RM as one line; reasons and texts follow a colon."""
    match fact:
        case o.NewAllocation():
            held, declared_ms = fact.allocation, fact.demand.tags.get(DURATION_TAG)
            line = f"new {held.app_id}/{held.unique_key} on {held.node_id}"
            return _told(line, f"for {declared_ms} ms" if declared_ms else "")
        case o.ReleasedAllocation():
            return _told(f"released {fact.app_id}/{fact.key} {fact.termination.name}", fact.message)
        case o.ReleasedAsk():
            return _told(f"dropped ask {fact.app_id}/{fact.key} {fact.termination.name}", fact.message)
        case o.RejectedAsk():
            return _told(f"rejected ask {fact.app_id}/{fact.key}", fact.reason)
        case o.AcceptedApplication():
            return f"accepted application {fact.app_id}"
        case o.RejectedApplication():
            return _told(f"rejected application {fact.app_id}", fact.reason)
        case o.UpdatedApplication():
            return _told(f"application {fact.app_id} is {fact.state}", fact.message)
        case o.AcceptedNode():
            return f"accepted node {fact.node_id}"
        case o.RejectedNode():
            return _told(f"rejected node {fact.node_id}", fact.reason)
        case o.ConfigurationResult():
            if fact.obstacles:
                return _told("rejected configuration", "; ".join(fact.obstacles))
            return "accepted configuration"
        case o.ScaleUpHint():
            return f"cluster too small for {fact.app_id}/{fact.key}"
    raise ScenarioError(f"the runner does not know {type(fact).__name__}")


def event_line(event: o.Event) -> str:
    """An event as one line: type, change, detail, object and reference; its message follows a colon."""
    line = f"{event.type.name} {event.change.name} {event.detail.name} {event.object_id}"
    return _told(f"{line} {event.reference_id}" if event.reference_id else line, event.message)


def _told(line: str, words: str) -> str:
    return f"{line}: {words}" if words else line


# ---- what must be true ---------------------------------------------------------------------------------------------


def _check(world: World, out: o.Outcome, expect: Plain, checks: _Counter) -> None:
    _known(expect, {*_EXPECTATIONS, "in_partition"}, "expect")
    name = expect.get("in_partition", "default")
    seen = _Seen(world, world.in_partition(name), out)
    for word, wanted in expect.items():
        if word != "in_partition":
            checks.count += 1
            _EXPECTATIONS[word](seen, wanted)


@dataclass(frozen=True, slots=True)
class _Seen:
    """What a step's expectations are compared with."""

    world: World
    partition: Partition
    out: o.Outcome

    def application(self, app_id: str) -> Any:
        found = self.partition.apps.get(app_id)
        assert found is not None, f"there is no application {app_id!r}, only {sorted(self.partition.apps)}"
        return found

    def messages(self) -> list[str]:
        return [message(fact) for fact in self.out.facts]

    def starting(self, *starts: str) -> list[str]:
        return [line for line in self.messages() if line.startswith(starts)]


def _equal(what: str, actual: object, wanted: object) -> None:
    assert actual == wanted, f"{what}: expected {wanted!r}, got {actual!r}"


def _line_matches(actual: str, wanted: str) -> bool:
    return actual == wanted or actual.startswith(f"{wanted}: ")


def _same_lines(what: str, actual: Sequence[str], wanted: Any) -> None:
    if isinstance(wanted, int) and not isinstance(wanted, bool):
        _equal(f"how many {what}", len(actual), wanted)
        return
    if not isinstance(wanted, list):
        raise ScenarioError(f"{what}: expected a list or a number, got {wanted!r}")
    same = len(actual) == len(wanted) and all(
        _line_matches(line, str(want)) for line, want in zip(actual, wanted, strict=True)
    )
    assert same, f"{what}: expected {wanted}, got {actual}"


def _tells(seen: _Seen, wanted: Any) -> None:
    _same_lines("messages", seen.messages(), wanted)


def _tells_among_others(seen: _Seen, wanted: Any) -> None:
    _in_order("messages", seen.messages(), wanted, _line_matches)


def _in_order(what: str, actual: Sequence[Any], wanted: Any, matches: Callable[[Any, Any], bool]) -> None:
    if not isinstance(wanted, list) or not wanted:
        raise ScenarioError(f"{what}: expected a list with something in it, got {wanted!r}")
    left: Iterator[Any] = iter(actual)
    for want in wanted:
        assert any(matches(line, want) for line in left), f"{what}: no {want!r} (in this order) in {actual}"


def _new(seen: _Seen, wanted: Any) -> None:
    _same_lines("new allocations", [line.removeprefix("new ") for line in seen.starting("new ")], wanted)


def _released(seen: _Seen, wanted: Any) -> None:
    _same_lines("releases", [line.removeprefix("released ") for line in seen.starting("released ")], wanted)


def _dropped(seen: _Seen, wanted: Any) -> None:
    _same_lines("asks dropped", [line.removeprefix("dropped ask ") for line in seen.starting("dropped ask ")], wanted)


def _updated(seen: _Seen, wanted: Any) -> None:
    lines = [line.removeprefix("application ") for line in seen.starting("application ")]
    _same_lines("changes of state", lines, wanted)


def _accepted(seen: _Seen, wanted: Any) -> None:
    _same_lines("acceptances", [line.removeprefix("accepted ") for line in seen.starting("accepted ")], wanted)


def _rejected(seen: _Seen, wanted: Any) -> None:
    """Fails unless exactly these are rejected, each with its text in the reason."""
    if not isinstance(wanted, Mapping):
        raise ScenarioError(f"rejected: expected a mapping to words, got {wanted!r}")
    actual = dict(line.removeprefix("rejected ").partition(": ")[::2] for line in seen.starting("rejected "))
    _equal("rejected", sorted(actual), sorted(wanted))
    for what, words in wanted.items():
        _has_words(f"the rejection of {what}", actual[what], words)


def _has_words(what: str, text: str, words: Any) -> None:
    for word in words if isinstance(words, list) else [words]:
        if not isinstance(word, str) or not word:
            raise ScenarioError(f"{what}: {word!r} are no words")
        assert word in text, f"{what}: expected {word!r} in {text!r}"


def _events(seen: _Seen, wanted: Any) -> None:
    _known_events(wanted)
    _in_order("events", _Events(seen.out.events), wanted, _event_matches)


def _known_events(wanted: Any) -> None:
    for want in wanted if isinstance(wanted, list) else []:
        if not isinstance(want, str):
            _known(want, {"event", "says", "resource"}, "event")


def _events_exactly(seen: _Seen, wanted: Any) -> None:
    # Of what changed: what people are told beside it is `events`'.
    actual = _Events(event for event in seen.out.events if event.type is not o.EventType.REQUEST)
    _known_events(wanted)
    if not isinstance(wanted, list):
        raise ScenarioError(f"events_exactly: expected a list, got {wanted!r}")
    same = len(actual) == len(wanted) and all(map(_event_matches, actual, wanted))
    assert same, f"events: expected {wanted}, got {actual}"


def _no_events(seen: _Seen, wanted: Any) -> None:
    if not isinstance(wanted, list) or not wanted:
        raise ScenarioError(f"no_events: expected a list with something in it, got {wanted!r}")
    for want in wanted:
        kind, _, rest = str(want).partition(" ")
        change = rest.partition(" ")[0]
        if kind not in o.EventType.__members__ or (change and change not in o.EventChange.__members__):
            raise ScenarioError(f"no_events: there can be no event {want!r}")
        found = [line for line in map(event_line, seen.out.events) if line.startswith(want)]
        assert not found, f"events: expected no {want!r}, got {found}"


class _Events(list[o.Event]):
    def __str__(self) -> str:
        return str([event_line(event) for event in self])

    __repr__ = __str__
    __format__ = object.__format__


def _event_matches(event: o.Event, wanted: Any) -> bool:
    want = wanted if isinstance(wanted, Mapping) else {"event": wanted}
    if not _line_matches(event_line(event), want["event"]):
        return False
    if "says" in want and want["says"] not in event.message:
        return False
    if "resource" not in want:
        return True
    resource = event.resource
    actual = {} if resource is None else resource if isinstance(resource, dict) else resource.quantities
    return _without_zeros(actual) == _without_zeros(quantities(want["resource"]))


def _placed(seen: _Seen, wanted: Any) -> None:
    for app_id, want in _mapping("placed", wanted):
        held = {key: each.node_id for key, each in seen.application(app_id).allocations.items()}
        if isinstance(want, Mapping):
            expected = {str(key): str(node) for key, node in want.items()}
            shown = {key: "anywhere" if expected.get(key) == "anywhere" else node for key, node in held.items()}
            _equal(f"placed of {app_id}", shown, expected)
        else:
            _equal(f"how many of {app_id} are placed", len(held), _number(want))


def _pending(seen: _Seen, wanted: Any) -> None:
    for app_id, want in _mapping("pending", wanted):
        asks = seen.application(app_id).asks
        if not isinstance(want, Mapping):
            _equal(f"how many asks of {app_id} are pending", len(asks), _number(want))
            continue
        _equal(f"pending asks of {app_id}", sorted(asks), sorted(map(str, want)))
        for key, reason in want.items():
            ask = asks[str(key)]
            want = dict(reason) if isinstance(reason, Mapping) else {"code": reason}
            if "still_wanted" in want:
                _equal(f"{app_id}/{key}: still_wanted", ask.pending, want.pop("still_wanted"))
            _reason(f"why {app_id}/{key} is pending", seen, ask_reason(ask), want)


def _explained(seen: _Seen, wanted: Any) -> None:
    """What the view says of it: words of its sentence, and what it waited for before, with seconds of the scenario."""
    state = RmEntry(RmInfo(_RM, life="RUNNING"), seen.world.core)
    for app_id, want in _mapping("explained", wanted):
        asks = seen.application(app_id).asks
        for key, facts in want.items():
            _known(facts, {"sentence", "says", "history"}, f"explained {app_id}/{key}")
            found = explain.ask(state, seen.partition, asks[str(key)], seen.world.now_ns)
            what = f"what is explained of {app_id}/{key}"
            if "sentence" in facts:
                _equal(what, found.sentence, facts["sentence"])
            if "says" in facts:
                _has_words(what, found.message, facts["says"])
            if "history" in facts:
                times = [[each.reason, _s(seen, each.since), _s(seen, each.until)] for each in found.history]
                _equal(f"{what}: history", times, facts["history"])


def _s(seen: _Seen, time_ns: int) -> float:
    return (time_ns - seen.world.start_ns) / SECOND_NS


_REASON_FIGURES = ("asked", "used", "limit", "free", "promised")
_REASON_TEXTS = ("code", "queue", "resource_type")


def _reason(what: str, seen: _Seen, reason: Any, wanted: Any) -> None:
    assert reason is not None, f"{what}: no reason is known"
    want = wanted if isinstance(wanted, Mapping) else {"code": wanted}
    _known(want, {*_REASON_FIGURES, *_REASON_TEXTS, "says", "since_s", *_more_of(reason)}, what)
    for name, value in want.items():
        if name in _REASON_FIGURES:
            figure = quantity(reason.resource_type, value) if reason.resource_type else _number(value)
            _equal(f"{what}: {name}", getattr(reason, name), figure)
        elif name == "says":
            _has_words(what, reason.sentence(), value)
        elif name == "since_s":
            _equal(f"{what}: {name}", (reason.since_ns - seen.world.start_ns) / SECOND_NS, value)
        elif name == "because":
            if value == "nothing":
                assert reason.because is None, f"{what}: expected no further reason, got {reason.because}"
            else:
                _reason(f"{what}: {name}", seen, reason.because, value)
        elif name == "code":
            _equal(f"{what}: {name}", reason.code.value, value)
        else:
            actual = getattr(reason, name)
            _equal(f"{what}: {name}", [list(item) for item in actual] if name == "lacking" else actual, value)


def _more_of(reason: object) -> set[str]:
    return set(getattr(type(reason), "__dataclass_fields__", ())) - {"since_ns"}


def _applications(seen: _Seen, wanted: Any) -> None:
    for app_id, want in _mapping("applications", wanted):
        if want == "gone":
            assert app_id not in seen.partition.apps, f"application {app_id} is still there"
            continue
        app = seen.application(app_id)
        facts = want if isinstance(want, Mapping) else {"state": want}
        for name, value in facts.items():
            what = f"application {app_id}: {name}"
            if name == "state":
                if value not in list(AppState):
                    raise ScenarioError(f"{what}: there is no state {value!r}")
                _equal(what, app.state.value, value)
            elif name == "queue":
                _equal(what, app.queue.path, value)
            elif name == "user":
                _equal(what, app.user, value)
            elif name == "groups":
                _equal(what, list(app.groups_of_user), value)
            elif name == "story":
                _equal(what, [str(state) for _, state in app.state_log], value)
            elif name == "counts_as_running":
                _equal(what, app.counted, value)
            elif name in ("allocated", "pending"):
                _same_vector(what, seen, getattr(app, name), value)
            else:
                raise ScenarioError(f"{what}: expected one of state, queue, user, groups, story, counts_as_running, …")


def _allocations(seen: _Seen, wanted: Any) -> None:
    """Compares each named allocation; ignores others."""
    for app_id, items in _mapping("allocations", wanted):
        held = seen.application(app_id).allocations
        for key, facts in _mapping(f"allocations of {app_id}", items):
            if facts == "gone":
                assert key not in held, f"{app_id}/{key} is still there"
                continue
            assert key in held, f"there is no allocation {app_id}/{key}, only {sorted(held)}"
            for name, value in _mapping(f"{app_id}/{key}", facts):
                what = f"allocation {app_id}/{key}: {name}"
                if name == "holds":
                    _equal(what, held[key].shape.quantities, _without_zeros(quantities(value)))
                elif name == "replaces":
                    replaces = held[key].replaces
                    _equal(what, "nothing" if replaces is None else replaces.key, value)
                elif name in ("asked_s", "allocated_s", "ends_s", "place_asked_s"):
                    _equal(what, (_ALLOCATION_TIMES[name](held[key]) - seen.world.start_ns) / SECOND_NS, value)
                elif name in _ALLOCATION_PLAIN:
                    _equal(what, getattr(held[key], _ALLOCATION_PLAIN[name]), value)
                else:
                    raise ScenarioError(f"{what}: unknown word")


_ALLOCATION_PLAIN = {
    "node": "node_id",
    "task_group": "task_group",
    "placeholder": "placeholder",
    "priority": "priority",
    "told": "releasing",
}
_ALLOCATION_TIMES: dict[str, Callable[[Any], int]] = {
    "asked_s": lambda held: held.created_ns,
    "allocated_s": lambda held: held.allocated_ns,
    "ends_s": lambda held: held.end_ns,
    "place_asked_s": lambda held: held.replaces.created_ns if held.replaces is not None else -1,
}


def _placeholders(seen: _Seen, wanted: Any) -> None:
    """Compares the state of all placeholders of an application; ``none``: there must be none."""
    for app_id, want in _mapping("placeholders", wanted):
        expected = {} if want == "none" else {str(key): str(state) for key, state in _mapping("placeholders", want)}
        for state in expected.values():
            if state not in list(PlaceholderState):
                raise ScenarioError(f"placeholders of {app_id}: there is no state {state!r}")
        _equal(f"placeholders of {app_id}", placeholders_of(seen.application(app_id)), expected)


def placeholders_of(app: Any) -> dict[str, str]:
    """Key → state. Of an ask with repeats that has some already, those still asked for are under ``key+n``."""
    found: dict[str, str] = {}
    for key, ask in app.asks.items():
        if ask.placeholder:
            found[key if not ask.allocated and ask.pending == 1 else f"{key}+{ask.pending}"] = PlaceholderState.ASKED
    for key, held in app.allocations.items():
        if held.placeholder:
            marks = (held.replaced_by is not None, held.timed_out, held.preempted is not None)
            states = (PlaceholderState.LEAVING, PlaceholderState.TIMING_OUT, PlaceholderState.PREEMPTED)
            told = [state for mark, state in zip(marks, states, strict=True) if mark]
            assert len(told) <= 1, f"{held} was released for more than one reason: {told}"
            found[key] = told[0] if told else PlaceholderState.HELD
    return {key: str(state) for key, state in sorted(found.items())}


_GROUP_COUNTS = ("asked", "pending", "held", "replaced", "timed_out", "lost")


def _gangs(seen: _Seen, wanted: Any) -> None:
    for app_id, want in _mapping("gangs", wanted):
        gang = seen.application(app_id).gang
        if want == "none":
            assert gang is None, f"application {app_id} has a gang"
            continue
        assert gang is not None, f"application {app_id} has no gang"
        facts = want if isinstance(want, Mapping) else {"phase": want}
        for name, value in facts.items():
            what = f"gang of {app_id}: {name}"
            if name == "phase":
                if value not in list(GangPhase):
                    raise ScenarioError(f"{what}: there is no phase {value!r}")
                _equal(what, gang.phase.value, value)
            elif name == "deadline_s":
                actual = (gang.deadline_ns - seen.world.start_ns) / SECOND_NS if gang.deadline_ns else "none"
                _equal(what, actual, value)
            elif name == "groups":
                _equal(what, sorted(gang.groups), sorted(map(str, value)))
                for group_name, counts in value.items():
                    _known(counts, set(_GROUP_COUNTS), what)
                    group = gang.groups[str(group_name)]
                    actual = {count: getattr(group, count) for count in _GROUP_COUNTS if getattr(group, count)}
                    _equal(
                        f"{what} {group_name}", actual, {count: number for count, number in counts.items() if number}
                    )
            else:
                raise ScenarioError(f"{what}: expected one of phase, deadline_s, groups")


def _queues(seen: _Seen, wanted: Any) -> None:
    for path, want in _mapping("queues", wanted):
        queue = seen.partition.queues.get(path)
        if want == "absent":
            assert queue is None, f"queue {path} is there"
            continue
        assert queue is not None, f"there is no queue {path!r}, only {sorted(seen.partition.queues)}"
        for name, value in want.items():
            what = f"queue {path}: {name}"
            if name in ("allocated", "pending", "preempting"):
                _same_vector(what, seen, getattr(queue, name), value)
            elif name == "promised":
                names = seen.partition.types.names
                promised = {names[number]: amount for number, amount in queue.promised.items()}
                _equal(what, _without_zeros(promised), _without_zeros(quantities(value)))
            elif name in ("guaranteed", "max"):
                actual = queue.by_name(queue.guaranteed if name == "guaranteed" else queue.maximum)
                _equal(what, actual, None if value == "unset" else quantities(value))
            elif name == "state":
                _equal(what, queue.state.value, value)
            elif name == "properties":
                _equal(what, {key: queue.properties.get(key, "not there") for key in value}, _tags(value))
            elif name in _QUEUE_PLAIN:
                _equal(what, getattr(queue, _QUEUE_PLAIN[name]), value)
            else:
                raise ScenarioError(f"{what}: unknown word")


_QUEUE_PLAIN = {
    "running": "running_applications",
    "max_applications": "max_applications",
    "leaf": "leaf",
    "managed": "managed",
    "submit_acl": "submit_acl",
    "admin_acl": "admin_acl",
}


def _nodes(seen: _Seen, wanted: Any) -> None:
    for node_id, want in _mapping("nodes", wanted):
        node = seen.partition.nodes.get(node_id)
        if want == "absent":
            assert node is None, f"node {node_id} is there"
            continue
        assert node is not None, f"there is no node {node_id!r}, only {sorted(seen.partition.nodes)}"
        for name, value in want.items():
            what = f"node {node_id}: {name}"
            if name in ("capacity", "allocated", "occupied", "available"):
                _same_vector(what, seen, getattr(node, name), value)
            elif name == "schedulable":
                _equal(what, node.schedulable, value)
            elif name == "attributes":
                _equal(what, node.attributes, _tags(value))
            elif name == "foreign":
                _equal(what, sorted(node.foreign), sorted(value))
            elif name == "reserved_for":
                _equal(what, [f"{ask.app.app_id}/{ask.key}" for ask in node.reservations], value)
            else:
                raise ScenarioError(f"{what}: unknown word")


def _partition(seen: _Seen, wanted: Any) -> None:
    for name, value in _mapping("partition", wanted):
        what = f"partition {seen.partition.name}: {name}"
        if name == "capacity":
            _same_vector(what, seen, seen.partition.capacity, value)
        elif name == "foreign":
            _equal(what, sorted(seen.partition.foreign), sorted(value))
        elif name == "applications":
            _equal(what, sorted(seen.partition.apps), sorted(value))
        elif name == "queues":
            _equal(what, sorted(seen.partition.queues), sorted(value))
        else:
            raise ScenarioError(f"{what}: unknown word")


def _same_vector(what: str, seen: _Seen, vector: list[int], wanted: Any) -> None:
    _equal(what, seen.partition.types.quantities(vector), _without_zeros(quantities(wanted)))


def _without_zeros(items: Mapping[str, int]) -> dict[str, int]:
    return {name: value for name, value in items.items() if value}


def _mapping(what: str, wanted: Any) -> Any:
    if not isinstance(wanted, Mapping) or not wanted:
        raise ScenarioError(f"{what}: expected a mapping with something in it, got {wanted!r}")
    return wanted.items()


def _number(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ScenarioError(f"expected a number, got {value!r}")
    return value


def _match_problems(what: str, wanted: Any, problems: list[ConfigProblem]) -> None:
    """Fails unless the problems are the expected ones, in any order."""
    if not isinstance(wanted, list):
        raise ScenarioError(f"{what}: expected a list, got {wanted!r}")
    left = list(problems)
    shown = [str(problem) for problem in problems]
    for want in wanted:
        found = next((problem for problem in left if _problem_matches(what, problem, want)), None)
        assert found is not None, f"{what}: no {want!r} among {shown}"
        left.remove(found)
    assert not left, f"{what}: more than expected: {[str(problem) for problem in left]}"


def _problem_matches(what: str, problem: ConfigProblem, wanted: Any) -> bool:
    want = wanted if isinstance(wanted, Mapping) else {"says": wanted}
    _known(want, {"says", "line", "column", "path"}, what)
    words = want.get("says", [])
    return (
        all(word in problem.message for word in (words if isinstance(words, list) else [words]))
        and want.get("line", problem.line) == problem.line
        and want.get("column", problem.column) == problem.column
        and want.get("path", problem.path) == problem.path
    )


_EXPECTATIONS: dict[str, Callable[[_Seen, Any], None]] = {
    "tells": _tells,
    "tells_among_others": _tells_among_others,
    "new": _new,
    "released": _released,
    "dropped": _dropped,
    "updated": _updated,
    "accepted": _accepted,
    "rejected": _rejected,
    "events": _events,
    "events_exactly": _events_exactly,
    "no_events": _no_events,
    "placed": _placed,
    "pending": _pending,
    "explained": _explained,
    "applications": _applications,
    "allocations": _allocations,
    "placeholders": _placeholders,
    "gangs": _gangs,
    "queues": _queues,
    "nodes": _nodes,
    "partition": _partition,
}
