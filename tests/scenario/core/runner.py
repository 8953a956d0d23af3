"""Runs scenarios: files of YAML that say what is given, what happens, and what must be true then.

The words of a scenario are told in README.md. Everything here is strict: a word that the runner does not know is a
:class:`ScenarioError`, whatever the core does; an expectation that is not met, or names what does not exist, is an
AssertionError with the step in which it stood.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from builders import SECOND_NS, Cluster
from muster_scheduler.core import commands as c
from muster_scheduler.core import outcome as o
from muster_scheduler.core.config import ClusterConfig, parse_quantity, partition_name
from muster_scheduler.core.partition import Partition
from muster_scheduler.core.scheduler import SchedulerCore
from muster_scheduler.core.states import AppState
from muster_scheduler.queue_yaml import Problem, load_queue_config
from ruamel.yaml import YAML

Plain = Mapping[str, Any]


class ScenarioError(Exception):
    """The scenario itself is wrong: a word that is not known, a part that is missing."""


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

_FILE_KEYS = {"section", "about", "given", "scenarios"}
_CONFIG_KEYS = {"config", "partitions", "partition", "root", "queues"}
_BODY_KEYS = {*_CONFIG_KEYS, "nodes", "refused", "warned", "steps"}


def read_scenarios(path: Path) -> list[Scenario]:
    """The scenarios of a file. Raises ScenarioError."""
    try:
        document = YAML(typ="safe", pure=True).load(path.read_text())  # refuses keys that stand twice
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
        body = {**(given[shared] if shared is not None else {}), **item}
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


class World(Cluster):
    """A cluster of any configuration, and the figures of a scenario's last step."""

    def __init__(self, config: ClusterConfig) -> None:
        self.now_ns = self.start_ns = 1_000 * SECOND_NS
        self.core = SchedulerCore(config)
        self.outcomes = [self.core.start(self.now_ns)]

    def in_partition(self, name: str) -> Partition:
        found = self.core.partitions.get(partition_name(name))
        assert found is not None, f"there is no partition {name!r}"
        return found


def run(scenario: Scenario) -> None:
    """Runs a scenario. Raises ScenarioError or AssertionError."""
    body = scenario.body
    checks = _Counter()
    config, problems = load_queue_config(config_text(body))
    if "warned" in body:
        _match_problems("warned", body["warned"], [p for p in problems if p.severity == "warning"])
        checks.count += 1
    if "refused" in body:
        if body.get("steps") or body.get("nodes"):
            raise ScenarioError(f"{scenario}: a configuration that is refused has no steps")
        _match_problems("refused", body["refused"], [p for p in problems if p.severity == "error"])
        assert config is None
        return
    assert config is not None, f"the configuration is refused: {'; '.join(map(str, problems))}"
    world = World(config)
    for node_id, has in (body.get("nodes") or {}).items():
        world.do(_node({"node": node_id, "has": has}))
    for number, step in enumerate(body.get("steps") or (), start=1):
        try:
            _step(world, step, checks)
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
        raise ScenarioError(f"unknown action {action!r}, expected one of {', '.join(_ACTIONS)}, together, wait")
    words, make = maker
    _known(step, {action, *words}, action)
    made = make(step) if action not in _TIMED else make({**step, "now_ns": world.now_ns})
    return made if isinstance(made, list) else [made]


# Actions that must know the time.
_TIMED = ("ask", "allocation")


def quantities(value: Any) -> dict[str, int]:
    """Quantities as the configuration writes them; a minus is possible, for what must be refused or is owed."""
    if not isinstance(value, Mapping):
        raise ScenarioError(f"expected quantities such as {{vcore: 2, memory: 4Gi}}, got {value!r}")
    return {name: quantity(name, given) for name, given in value.items()}


def quantity(name: str, given: Any) -> int:
    """One quantity."""
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
        _optional(step.get("has")),
        _optional(step.get("occupied")),
        partition=step.get("partition", ""),
    )


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
                _tags(step.get("tags")),
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


REQUIRED_NODE_TAG = "yunikorn.apache.org/requiredNode"


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
            step.get("wanted", 1),
            step.get("priority", 0),
            tags,
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
    _known(step["reload"], _CONFIG_KEYS, "reload")
    config, problems = load_queue_config(config_text(step["reload"]))
    if config is None:
        raise ScenarioError(f"reload: refused before the core sees it: {'; '.join(map(str, problems))}")
    return c.UpdateConfiguration(config)


_NODE_WORDS = ("has", "occupied", "attributes", "partition")
_RELEASE_WORDS = ("application", "partition", "as", "uuid", "message")

_ACTIONS: dict[str, tuple[tuple[str, ...], Callable[[Plain], c.Command | list[c.Command]]]] = {
    "node": ((*_NODE_WORDS, "draining"), _node),
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
    "stop_deciding": ((), lambda _: c.SetDeciding(False)),
    "start_deciding": ((), lambda _: c.SetDeciding(True)),
}


# ---- what comes out ------------------------------------------------------------------------------------------------


def message(fact: o.Fact) -> str:
    """What the RM is told, in a line; reasons and messages stand after a colon."""
    match fact:
        case o.NewAllocation():
            held = fact.allocation
            return f"new {held.app_id}/{held.unique_key} on {held.node_id}"
        case o.ReleasedAllocation():
            return _told(f"released {fact.app_id}/{fact.key} {fact.termination.name}", fact.message)
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
        case o.ConfigurationAnswer():
            if fact.obstacles:
                return _told("rejected configuration", "; ".join(fact.obstacles))
            return "accepted configuration"
        case o.TooSmallCluster():
            return f"cluster too small for {fact.app_id}/{fact.key}"
    raise ScenarioError(f"the runner does not know {type(fact).__name__}")


def event_line(event: o.Event) -> str:
    """An event in a line: type, change, detail, object and reference; its message stands after a colon."""
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
    """What a step's expectations are held against."""

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


def _updated(seen: _Seen, wanted: Any) -> None:
    lines = [line.removeprefix("application ") for line in seen.starting("application ")]
    _same_lines("changes of state", lines, wanted)


def _accepted(seen: _Seen, wanted: Any) -> None:
    _same_lines("acceptances", [line.removeprefix("accepted ") for line in seen.starting("accepted ")], wanted)


def _rejected(seen: _Seen, wanted: Any) -> None:
    """Exactly these are rejected, each with the words in its reason."""
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
    actual = _Events(seen.out.events)
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
        if kind not in o.EventType.__members__ or (change and change not in o.Change.__members__):
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
            _reason(f"why {app_id}/{key} is pending", seen, asks[str(key)], reason)


_REASON_FIGURES = ("asked", "used", "limit", "free")
_REASON_TEXTS = ("code", "queue", "resource_type")


def _reason(what: str, seen: _Seen, ask: Any, wanted: Any) -> None:
    reason = ask.group.reason
    assert reason is not None, f"{what}: no reason is known"
    want = wanted if isinstance(wanted, Mapping) else {"code": wanted}
    _known(want, {*_REASON_FIGURES, *_REASON_TEXTS, "says", "since_s", "still_wanted", *_more_of(reason)}, what)
    for name, value in want.items():
        if name in _REASON_FIGURES:
            figure = quantity(reason.resource_type, value) if reason.resource_type else _number(value)
            _equal(f"{what}: {name}", getattr(reason, name), figure)
        elif name == "says":
            _has_words(what, reason.sentence(), value)
        elif name == "since_s":
            _equal(f"{what}: {name}", (reason.since_ns - seen.world.start_ns) / SECOND_NS, value)
        elif name == "still_wanted":
            _equal(f"{what}: {name}", ask.pending, value)
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
                _equal(what, [str(state) for _, state in app.story], value)
            elif name == "counts_as_running":
                _equal(what, app.counted, value)
            elif name in ("allocated", "pending"):
                _same_vector(what, seen, getattr(app, name), value)
            else:
                raise ScenarioError(f"{what}: expected one of state, queue, user, groups, story, counts_as_running, …")


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


def _match_problems(what: str, wanted: Any, problems: list[Problem]) -> None:
    """Each problem is expected, and each expected one is there; the order is that of the text and does not matter."""
    if not isinstance(wanted, list):
        raise ScenarioError(f"{what}: expected a list, got {wanted!r}")
    left = list(problems)
    shown = [str(problem) for problem in problems]
    for want in wanted:
        found = next((problem for problem in left if _problem_matches(what, problem, want)), None)
        assert found is not None, f"{what}: no {want!r} among {shown}"
        left.remove(found)
    assert not left, f"{what}: more than expected: {[str(problem) for problem in left]}"


def _problem_matches(what: str, problem: Problem, wanted: Any) -> bool:
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
    "updated": _updated,
    "accepted": _accepted,
    "rejected": _rejected,
    "events": _events,
    "events_exactly": _events_exactly,
    "no_events": _no_events,
    "placed": _placed,
    "pending": _pending,
    "applications": _applications,
    "queues": _queues,
    "nodes": _nodes,
    "partition": _partition,
}
