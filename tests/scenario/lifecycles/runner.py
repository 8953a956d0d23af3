"""Reads the arrows of the lifecycle drawings and their scenarios, and plays a scenario through a whole Muster.

README.md here has the words of a scenario. A word that is not known is a :class:`ScenarioError`, whatever Muster does;
what is not heard or seen as the scenario says is an AssertionError that names the step.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from e2e.gang_rig import Muster
from event_books_shown import adds_up
from google.protobuf.descriptor import EnumDescriptor
from google.protobuf.json_format import ParseError
from muster_proto.si.v1 import si_pb2 as si
from ruamel.yaml import YAML
from scenario.lifecycles.peer import GENERATIONS, STREAMS, Heard, Peer
from waiting import eventually

HERE = Path(__file__).parent
SCENARIO_FILES = [path for path in sorted(HERE.glob("*.yaml")) if path.stem not in ("arrows", "given", "queues")]
CONFIG = (HERE / "queues.yaml").read_text(encoding="utf-8")
REST = "/ws/v1/"

Plain = Mapping[str, Any]


class ScenarioError(Exception):
    """The scenario itself is wrong: an unknown key, or a missing part."""


# ---- reading -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Arrow:
    """One arrow of a drawing, or one transition of the text.

    :ivar drawing: the name of its drawing in arrows.yaml.
    :ivar name: "from -> to", with "(by whom)" if two arrows join the same states.
    :ivar says: the label of the arrow, or the sense of the text.
    """

    drawing: str
    name: str
    says: str
    generations: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Drawing:
    """A lifecycle that the scheduler interface draws or describes.

    :ivar lifecycle: its subject; the generations may draw one lifecycle in different ways.
    :ivar seed: its place in the interface.
    :ivar generations: the generations that have it.
    """

    name: str
    lifecycle: str
    title: str
    seed: str
    generations: tuple[str, ...]
    arrows: tuple[Arrow, ...]

    @property
    def drawn(self) -> bool:
        """Whether the interface has a picture of it, rather than text."""
        return not self.name.endswith("-words")


@dataclass(frozen=True, slots=True)
class Scenario:
    """One scenario of an arrow: the steps, and the expected messages and REST answers.

    :ivar generations: in which it is played, one at a time; empty: ``rms`` says who is there.
    :ivar rms: resource managers by name, each with its generation, that are there at the same time.
    """

    drawing: str
    arrow: str
    name: str
    seed: str
    generations: tuple[str, ...]
    rms: Plain
    steps: tuple[Plain, ...]

    @property
    def casts(self) -> Iterator[dict[str, str]]:
        """Each cast in which it is played: names of resource managers, and their generations."""
        if self.rms:
            yield dict(self.rms)
        for generation in self.generations:
            yield {"rm": generation}

    def played_in(self) -> set[str]:
        return {generation for cast in self.casts for generation in cast.values()}

    def __str__(self) -> str:
        return f"{self.drawing}: {self.arrow}: {self.name}"


def read_yaml(path: Path) -> Any:
    """A YAML file's content; keys that stand twice are refused."""
    try:
        return YAML(typ="safe").load(path.read_text(encoding="utf-8"))
    except Exception as error:
        raise ScenarioError(f"{path.name}: {error}") from error


def read_drawings(path: Path = HERE / "arrows.yaml") -> list[Drawing]:
    drawings = []
    for item in read_yaml(path):
        _known(item, {"drawing", "lifecycle", "title", "seed", "generations", "arrows"}, path.name)
        generations = tuple(item["generations"])
        arrows = []
        for name, row in item["arrows"].items():
            row = {"says": row} if isinstance(row, str) else row
            _known(row, {"says", "generations"}, f"{path.name}, {name}")
            own = tuple(row.get("generations", generations))
            arrows.append(Arrow(item["drawing"], name, row["says"], own))
        said = (item[word] for word in ("drawing", "lifecycle", "title", "seed"))
        drawings.append(Drawing(*said, generations, tuple(arrows)))
    return drawings


def read_scenarios(path: Path) -> list[Scenario]:
    document = read_yaml(path)
    _known(document, {"drawing", "about", "scenarios"}, path.name)
    given = read_yaml(HERE / "given.yaml")
    found = []
    for number, item in enumerate(document["scenarios"], start=1):
        where = f"{path.name}, scenario {number} ({item.get('name')})"
        _known(item, {"arrow", "name", "seed", "generations", "rms", "given", "steps"}, where)
        names = item.get("given") or []
        steps: list[Plain] = []
        for name in [names] if isinstance(names, str) else names:
            if name not in given:
                raise ScenarioError(f"{where}: given {name!r}, expected one of {', '.join(given)}")
            steps += given[name]
        steps += item["steps"]
        if bool(item.get("generations")) == bool(item.get("rms")):
            raise ScenarioError(f"{where}: either generations, one at a time, or rms, all at the same time")
        generations, rms = tuple(item.get("generations") or ()), item.get("rms") or {}
        for generation in (*generations, *rms.values()):
            if generation not in GENERATIONS:
                raise ScenarioError(f"{where}: generation {generation!r}, expected one of {', '.join(GENERATIONS)}")
        for step in steps:
            _known(step, _STEP_WORDS, where)
        found.append(
            Scenario(document["drawing"], item["arrow"], item["name"], item["seed"], generations, rms, tuple(steps))
        )
    return found


def _known(value: Any, words: set[str] | frozenset[str], where: str) -> None:
    if not isinstance(value, Mapping):
        raise ScenarioError(f"{where}: expected a mapping, got {value!r}")
    for word in value:
        if word not in words:
            raise ScenarioError(f"{where}: unknown word {word!r}, expected one of {', '.join(sorted(words))}")


_NOTHING = object()


def said_by(value: Any, generation: str) -> Any:
    """The part of one generation: chosen from ``{current: …, previous: …}`` at any depth."""
    if isinstance(value, Mapping):
        if value and set(value) <= set(GENERATIONS):
            return said_by(value[generation], generation) if generation in value else _NOTHING
        parts = {key: said_by(part, generation) for key, part in value.items()}
        return {key: part for key, part in parts.items() if part is not _NOTHING}
    if isinstance(value, list):
        return [said for part in value if (said := said_by(part, generation)) is not _NOTHING]
    return value


# ---- playing -------------------------------------------------------------------------------------------------------

_ACTIONS = ("register", "send", "lose", "shutdown", "forward")
_EXPECTATIONS = ("hear", "ended", "see", "events")  # in this order: what is heard is in REST, or will be
_STEP_WORDS = {"as", "only", "answer", *_ACTIONS, *_EXPECTATIONS}


async def play(muster: Muster, scenario: Scenario, cast: Mapping[str, str]) -> None:
    """Plays a scenario. Raises ScenarioError or AssertionError.

    :param cast: names of the resource managers that the scenario speaks of, and their generations.
    """
    plain = httpx.AsyncHTTPTransport(verify=False)  # no certificates are read, which takes longer than a scenario
    async with httpx.AsyncClient(base_url=muster.http, timeout=60, transport=plain) as http:
        part = uuid.uuid4().hex[:8]
        roles = {
            name: _Role(muster, http, Peer(muster.gateway, f"{name}-{generation}-{part}", generation))
            for name, generation in cast.items()
        }
        try:
            checks = 0
            for number, step in enumerate(scenario.steps, start=1):
                name = step.get("as", next(iter(roles)))
                if name not in roles:
                    raise ScenarioError(f"{scenario}, step {number}: as {name!r}, expected one of {', '.join(roles)}")
                checks += await _play_step(roles[name], step, f"{scenario}, step {number} as {name}")
            if not checks:
                raise ScenarioError(f"{scenario}: nothing is expected, so it cannot fail")
            for role in roles.values():
                await role.says_no_more()
                if role.registered:
                    await adds_up(http, role.peer.rm_id)
        finally:
            for role in roles.values():
                await role.peer.lose_connection()


async def _play_step(role: _Role, step: Plain, where: str) -> int:
    generation = role.peer.generation
    if step.get("only", generation) != generation:
        return 0
    said = {word: part for word, part in step.items() if word not in ("as", "only")}
    mine = said_by(said, generation)
    assert isinstance(mine, dict)
    try:
        actions = [word for word in _ACTIONS if word in mine]
        if len(actions) > 1:
            raise ScenarioError(f"one step does one thing, not {', '.join(actions)}")
        for word in actions:
            await role.does(word, mine[word], mine.get("answer", ""))
        looked_at = [word for word in _EXPECTATIONS if word in mine]
        for word in looked_at:
            await role.expects(word, mine[word])
    except (AssertionError, KeyError) as error:
        raise AssertionError(f"{where}: {step}: {error}") from error
    except (ParseError, ScenarioError) as error:
        raise ScenarioError(f"{where}: {step}: {error}") from error
    return len(looked_at) + ("answer" in mine)


class _Role:
    """A resource manager of a scenario, what was learned by name (``$uuid``), and how far its events were read."""

    def __init__(self, muster: Muster, http: httpx.AsyncClient, peer: Peer) -> None:
        self.muster, self.http, self.peer = muster, http, peer
        self.began_ns = muster.clock.now_ns()
        self.learned: dict[str, Any] = {}
        self.registered = False
        self._events_read = 0

    # ---- what is done ----------------------------------------------------------------------------------------------

    async def does(self, word: str, what: Any, answer: str) -> None:
        peer = self.peer
        if word == "register":
            refused = await peer.register(**{"config": CONFIG, **(what or {})})
            self.registered = self.registered or not refused
            assert _alike(answer, refused, self), f"registration: {refused or 'accepted'}"
        elif word == "send":
            for method, requests in what.items():
                if method not in STREAMS:
                    raise ScenarioError(f"stream {method!r}, expected one of {', '.join(STREAMS)}")
                for request in requests if isinstance(requests, list) else [requests]:
                    await peer.send(method, self._filled(request))
        elif word == "lose":
            if what != "connection":
                raise ScenarioError(f"lose {what!r}, expected connection")
            await peer.lose_connection()
        elif word == "shutdown":
            ended = await peer.shut_down()
            assert _alike(answer or "OK: /./", ended, self) or not answer, f"shutdown: {ended}"
        else:
            self.muster.clock.forward(float(what))

    def _filled(self, value: Any) -> Any:
        """Replaces each ``$name`` by its value."""
        if isinstance(value, Mapping):
            return {key: self._filled(part) for key, part in value.items()}
        if isinstance(value, list):
            return [self._filled(part) for part in value]
        if isinstance(value, str) and value.startswith("$"):
            if value not in self.learned:
                raise ScenarioError(f"{value} was not heard before")
            return self.learned[value]
        return value

    # ---- what is expected ------------------------------------------------------------------------------------------

    async def expects(self, word: str, what: Any) -> None:
        if word == "hear":
            for method, items in what.items():
                await self._hears(method, items)
        elif word == "see":
            for path, shape in what.items():
                await self._sees(path, shape)
        elif word == "events":
            await self._tells_events(what)
        else:
            for method, how in what.items():
                ended = self.peer.ended
                await self.peer.until(lambda: method in ended, lambda: f"{method} ends")  # noqa: B023
                assert _alike(how, ended[method], self), f"{method} ended {ended[method]!r}"

    async def _hears(self, method: str, items: Sequence[Plain]) -> None:
        """Fails unless the next items of a stream are these, in this order. Items of one response may change places."""
        heard = self.peer.heard[method]
        wanted = [(kind, shape) for item in items for kind, shape in item.items()]
        await self.peer.until(
            lambda: len(heard) >= len(wanted), lambda: f"{method} says {items}; it says {_told(heard)}"
        )
        for kind, shape in wanted:
            place = next((n for n, each in enumerate(heard) if each.kind == kind), None)
            said = f"expected {kind} {shape}; it says {_told(heard)}"
            assert place is not None, f"{method}: {said}"
            assert _alike(shape, heard[place].item, self), f"{method}: {said}"
            if place:
                between = {each.kind for each in heard[:place]}
                assert between <= {later for later, _ in wanted}, f"{method}: before that {between}; {said}"
            del heard[place]

    async def _sees(self, path: str, shape: Any) -> None:
        last: Any = None

        async def look() -> bool:
            nonlocal last
            answer = await self.http.get(REST + path, params={"rm": self.peer.rm_id})
            if answer.status_code == 404:
                last = "gone"
            else:
                assert answer.status_code == 200, f"{path}: {answer.status_code} {answer.text}"
                last = answer.json()
            return _alike(shape, last, self)

        try:
            await eventually(look, f"{path} shows {shape}")
        except AssertionError as error:
            raise AssertionError(f"{error}; it shows {last}") from None

    async def _tells_events(self, wanted: Sequence[str]) -> None:
        """Fails unless the new tracked events contain these, in this order."""
        records: list[str] = []

        async def look() -> bool:
            answer = await self.http.get(f"{REST}events/batch", params={"rm": self.peer.rm_id, "count": "10000"})
            if answer.status_code == 404:  # the publisher, which follows the log, has not heard of it yet
                return False
            assert answer.status_code == 200, answer.text
            records[:] = [_event_words(record) for record in answer.json().get("EventRecords") or ()]
            at = self._events_read
            for words in wanted:
                while at < len(records) and not _starts_with(records[at], words):
                    at += 1
                if at == len(records):
                    return False
                at += 1
            self._events_read = at
            return True

        try:
            await eventually(look, f"events {wanted}")
        except AssertionError as error:
            raise AssertionError(f"{error}; they are {records[self._events_read :]}") from None

    async def says_no_more(self) -> None:
        """Waits until everything sent is decided. Fails if the RM received more than the scenario says."""
        peer = self.peer
        for turn in range(2):  # what the first one's answer came with may be decided after it
            key = f"barrier-{turn}"
            current = {"allocations": [{"allocationKey": key, "applicationID": "nobody"}]}
            previous = {"asks": [{"allocationKey": key, "applicationID": "nobody", "maxAllocations": 1}]}
            barriers: dict[str, tuple[Plain, str, str]] = {
                "UpdateAllocation": (
                    current if peer.generation == "current" else previous,
                    "rejectedAllocations" if peer.generation == "current" else "rejected",
                    "allocationKey",
                ),
                "UpdateApplication": (
                    {"new": [{"applicationID": key, "partitionName": "nowhere"}]},
                    "rejected",
                    "applicationID",
                ),
                "UpdateNode": ({"nodes": [{"nodeID": key, "action": "UPDATE"}]}, "rejected", "nodeID"),
            }
            opened = peer.opened
            for method in opened:
                await peer.send(method, barriers[method][0])
            for method in opened:
                _, kind, name = barriers[method]
                heard = peer.heard[method]
                found = _barrier(heard, kind, name, key)
                await peer.until(lambda: found() is not None, lambda: f"{method}: answer to {key}; {_told(heard)}")  # noqa: B023
                place = found()
                assert place is not None
                del heard[place]
        left = {method: _told(heard) for method, heard in peer.heard.items() if heard}
        assert not left, f"{peer.rm_id} got unexpected messages: {left}"
        assert not peer.foreign, f"{peer.rm_id} ({peer.generation}) got messages of another generation: {peer.foreign}"


def _barrier(heard: list[Heard], kind: str, name: str, key: str) -> Callable[[], int | None]:
    def place() -> int | None:
        return next((n for n, each in enumerate(heard) if each.kind == kind and each.item[name] == key), None)

    return place


def _told(heard: Sequence[Heard]) -> str:
    said = ((kind, {name: value for name, value in item.items() if value}) for kind, item in heard)
    return ", ".join(f"{kind} {item}" for kind, item in said) or "-"


def _alike(wanted: Any, got: Any, role: _Role) -> bool:
    """Whether the value matches (README.md, "Matching"). Assigns ``$names``."""
    if isinstance(wanted, Mapping):
        if not isinstance(got, Mapping):
            return False
        return all(_alike(part, got.get(key, _NOTHING), role) for key, part in wanted.items())
    if isinstance(wanted, list):
        if not isinstance(got, list) or len(got) != len(wanted):
            return False
        rest = list(got)
        for part in wanted:
            place = next((n for n, each in enumerate(rest) if _alike(part, each, role)), None)
            if place is None:
                return False
            del rest[place]
        return True
    if isinstance(wanted, str):
        if wanted == "<now>":
            return isinstance(got, int) and role.began_ns <= got <= role.muster.clock.now_ns()
        if wanted == "<absent>":
            return got is _NOTHING or not got
        if wanted.startswith("$"):
            return bool(got) and role.learned.setdefault(wanted, got) == got
        if len(wanted) > 2 and wanted[0] == wanted[-1] == "/":
            return isinstance(got, str) and re.search(wanted[1:-1], got, re.DOTALL) is not None
    return bool(wanted == got)


# ---- events --------------------------------------------------------------------------------------------------------


def _name(enum: EnumDescriptor, number: int) -> str:
    value = enum.values_by_number.get(number)
    return value.name if value is not None else str(number)


def _event_words(record: Plain) -> str:
    """An event of REST: "TYPE object CHANGE DETAIL reference"."""
    enums = si.EventRecord.DESCRIPTOR.enum_types_by_name
    return " ".join(
        [
            _name(enums["Type"], record.get("type", 0)),
            record.get("objectID", ""),
            _name(enums["ChangeType"], record.get("eventChangeType", 0)),
            _name(enums["ChangeDetail"], record.get("eventChangeDetail", 0)),
            record.get("referenceID", ""),
        ]
    ).rstrip()


def _starts_with(event: str, words: str) -> bool:
    return event.split(" ")[: len(words.split(" "))] == words.split(" ")
