"""How a manager's words come to the log: what an informer and its cache do, with a bad line between.

The newest state of an object wins, as in the cache; batches come late, in parts, some of it twice. The manager goes
away and comes back with another listing; an object of it cannot be read for a while.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass

from muster_core.external.model import ApplyExternalChanges, ExternalChange, ExternalObject, SetSourceState, SourceState
from simulation.external_world import Key, Manager

PARTITION = "default"
UNREADABLE = "unreadable"
Words = ApplyExternalChanges | SetSourceState


@dataclass(frozen=True, slots=True)
class Manners:
    """The chances of an informer's faults, for each step.

    :param prompt: everything is told in the step in which it happens.
    :param drains: of its hosts, while it is lost.
    """

    prompt: bool
    drains: bool
    lags: float = 0.0
    goes: float = 0.0
    garbles: float = 0.0
    repeats: float = 0.0


def manners(dice: random.Random) -> Manners:
    prompt = dice.random() < 0.4
    return Manners(
        prompt,
        drains=dice.random() < 0.6,
        lags=0.0 if prompt else dice.choice([0.2, 0.5]),
        goes=dice.choice([0.0, 0.03, 0.08]),
        garbles=dice.choice([0.0, 0.02, 0.05]),
        repeats=dice.choice([0.0, 0.2]),
    )


class Informer:
    """Of one manager, over its lives.

    :ivar life: the one that it is in. ``state``: as it said last in it.
    """

    def __init__(self, manager: Manager, dice: random.Random, manners: Manners, tally: Counter[str]) -> None:
        self.manager = manager
        self.manners = manners
        self.life = ""
        self.state: SourceState | None = None
        self.away = 0
        self._dice = dice
        self._tally = tally
        # What was said in this life, by object; UNREADABLE: that it cannot be read.
        self._sent: dict[Key, ExternalObject | str] = {}
        self._garbled: dict[Key, int] = {}

    @property
    def name(self) -> str:
        return self.manager.name

    def begin(self, life: str) -> None:
        """Starts a new process, without the former one's state."""
        self.life = life
        self.state = None
        self._sent = {}
        self._garbled = {}

    def _is_due(self, key: Key) -> bool:
        return key not in self._garbled and self._sent.get(key) != self.manager.objects.get(key)

    def close(self) -> None:
        """The process ends."""

    # ---- each step -------------------------------------------------------------------------------------------------

    def words(self, now_ns: int) -> list[Words]:
        """The records of this step."""
        dice, manners = self._dice, self.manners
        found: list[Words] = []
        if self.state is None:
            self.state = SourceState.LISTING
            found.append(self._note(SourceState.LISTING))
        if self.away:
            return found + self._lost()
        if self.state is SourceState.LIVE and dice.random() < manners.goes:
            self.away = dice.randint(1, 8)
            self._tally["informer: its manager goes away"] += 1
            return found
        self._garble()
        found += self._changes()
        complete = not any(self._is_due(key) for key in {**self._sent, **self.manager.objects})
        if self.state is not SourceState.LIVE and complete and dice.random() < 0.7:
            self.state = SourceState.LIVE
            found.append(self._note(SourceState.LIVE))
        return found

    def _lost(self) -> list[Words]:
        """The manager is away, which the informer reports after a while. It lists anew when the manager is back."""
        self.away -= 1
        if self.away:
            if self.state is not SourceState.STALE and self._dice.random() < 0.5:
                self.state = SourceState.STALE
                self._tally["informer: stale"] += 1
                return [self._note(SourceState.STALE, "the manager does not answer")]
            return []
        self._garbled.clear()
        self._tally["informer: its manager is back"] += 1
        return []

    def give_up(self) -> list[Words]:
        """Gives the source up: it is late and not required."""
        if self.state in (SourceState.LIVE, SourceState.STALE):
            return []
        self.state = SourceState.STALE
        self.away = max(self.away, 2)
        self._tally["informer: given up"] += 1
        return [self._note(SourceState.STALE, "not synced in time")]

    def everything(self, now_ns: int) -> list[Words]:
        """All due reports at once, then LIVE."""
        self.away = 0
        self._garbled.clear()
        found: list[Words] = [] if self.state is not None else [self._note(SourceState.LISTING)]
        keys = [key for key in {**self._sent, **self.manager.objects} if self._is_due(key)]
        if keys:
            found.append(self._update(keys))
        if self.state is not SourceState.LIVE:
            self.state = SourceState.LIVE
            found.append(self._note(SourceState.LIVE))
        return found

    def _garble(self) -> None:
        """Makes an object's document unreadable, or readable again."""
        for key in list(self._garbled):
            self._garbled[key] -= 1
            if not self._garbled[key]:
                del self._garbled[key]
        known = [key for key, what in self._sent.items() if what != UNREADABLE]
        if known and self._dice.random() < self.manners.garbles:
            self._garbled[self._dice.choice(known)] = self._dice.randint(1, 4)
            self._tally["informer: an object cannot be read"] += 1

    def _changes(self) -> list[Words]:
        dice, manners = self._dice, self.manners
        found: list[Words] = []
        lost = [key for key in self._garbled if self._sent.get(key) != UNREADABLE]
        if lost:
            for key in lost:
                self._sent[key] = UNREADABLE
            changes = tuple(ExternalChange(kind, object_id, None, stale=True) for kind, object_id in lost)
            found.append(ApplyExternalChanges(PARTITION, self.name, self.life, changes))
        keys = [key for key in {**self._sent, **self.manager.objects} if self._is_due(key)]
        if manners.lags:
            keys = [key for key in keys if dice.random() >= manners.lags]
        if keys and dice.random() < 0.5:
            dice.shuffle(keys)
        if dice.random() < manners.repeats:
            said = [key for key, what in self._sent.items() if what != UNREADABLE and not self._is_due(key)]
            keys += dice.sample(said, min(len(said), 3))
            self._tally["informer: says it twice"] += bool(said)
        while keys:
            count = dice.choice([1, 2, 5, 100])
            found.append(self._update(keys[:count]))
            keys = keys[count:]
        return found

    def _update(self, keys: list[Key]) -> ApplyExternalChanges:
        changes = []
        objects = self.manager.objects
        for kind, object_id in keys:
            what = objects.get((kind, object_id))
            changes.append(ExternalChange(kind, object_id, what))
            if what is not None:
                self._sent[kind, object_id] = what
            else:
                self._sent.pop((kind, object_id), None)
        return ApplyExternalChanges(PARTITION, self.name, self.life, tuple(changes))

    def _note(self, state: SourceState, reason: str = "") -> SetSourceState:
        return SetSourceState(PARTITION, self.name, self.life, state, self.manners.drains, reason)
