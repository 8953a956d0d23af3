"""A manager's documents through what a real informer is made of: source → informer → handler → cache → records.

Only the source and the log are ours: a line that repeats what it said, brings old versions late, documents that nobody
can read, and goes dead for a while. Time is that of the life; nothing waits for a clock.
"""

from __future__ import annotations

import asyncio
import heapq
import random
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Sequence

from manual_clock import ManualClock
from muster_bus.log import OutRecord
from muster_core.external.errors import CursorExpired, SourceUnavailable
from muster_core.external.model import ExternalObject, SourceState
from muster_informers.contract import ChangeType, Delta, Document, Listing
from muster_informers.documents import as_document
from muster_informers.handlers.default import DefaultEventHandler
from muster_informers.informer import SharedIndexInformer
from muster_informers.log_cache import LogCache
from muster_proto.muster.bus.v1 import envelope_pb2 as pb
from muster_runtime.watchdog import Usage
from muster_state import external_codec as codec
from simulation import external_wire as wire
from simulation.external_informer import PARTITION, UNREADABLE, Manners, Words
from simulation.external_world import Key, Manager

# So often everybody has a turn before it is believed that nobody wants another one.
TURNS = 20
STALE_AFTER_S, BEAT_S = 20.0, 5.0
OLD_MAX = 3


class LifeTime:
    """A clock for tasks, which the life advances."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self._sleeping: list[tuple[float, int, asyncio.Future[None]]] = []
        self._number = 0

    async def sleep(self, seconds: float) -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._number += 1
        heapq.heappush(self._sleeping, (self.clock.monotonic() + seconds, self._number, future))
        await future

    async def pass_by(self, seconds: float) -> None:
        """Advances the time, and lets the woken tasks run."""
        until = self.clock.monotonic() + seconds
        await self._turns()
        while self._sleeping and self._sleeping[0][0] <= until:
            due, _, future = heapq.heappop(self._sleeping)
            self.clock.advance(max(due - self.clock.monotonic(), 0.0))
            if not future.done():
                future.set_result(None)
                await self._turns()
        self.clock.advance(max(until - self.clock.monotonic(), 0.0))
        await self._turns()

    async def _turns(self) -> None:
        for _ in range(TURNS):
            await asyncio.sleep(0)


class Line:
    """Between a manager and its informer (a ListWatch).

    :ivar dead: nobody answers. ``listing``: what is answered with.
    """

    def __init__(self) -> None:
        self.dead = False
        self.listing: list[Document] = []
        self._epoch = 0
        self._waiting: list[Delta] = []
        self._woken = asyncio.Event()

    def die(self) -> None:
        """Breaks all watches. Their cursors become invalid."""
        self.dead = True
        self._epoch += 1
        self._waiting.clear()
        self._woken.set()

    def say(self, deltas: Sequence[tuple[ChangeType, Document]]) -> None:
        self._waiting += [Delta(kind, document, str(self._epoch)) for kind, document in deltas]
        self._woken.set()

    def beat(self) -> None:
        self._woken.set()

    async def list(self) -> Listing:
        if self.dead:
            raise SourceUnavailable("nobody answers")
        self._waiting.clear()
        return Listing(list(self.listing), str(self._epoch))

    async def watch(self, cursor: str) -> AsyncIterator[Sequence[Delta]]:
        if self.dead:
            raise SourceUnavailable("nobody answers")
        if cursor != str(self._epoch):
            raise CursorExpired("it was away")
        while True:
            await self._woken.wait()
            self._woken.clear()
            if self.dead or cursor != str(self._epoch):
                raise SourceUnavailable("the line is dead")
            deltas, self._waiting = self._waiting, []
            yield deltas

    async def close(self) -> None:
        """Nothing is open."""


class Records:
    """A log that accepts every record at once."""

    def __init__(self) -> None:
        self.taken: list[OutRecord] = []

    def append(self, record: OutRecord) -> Awaitable[int]:
        self.taken.append(record)
        done: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        done.set_result(len(self.taken))
        return done

    async def wait_writable(self) -> None:
        """Always."""

    async def close(self) -> None:
        """Nothing is open."""


class Chain:
    """In the place of an :class:`~simulation.external_informer.Informer`.

    :ivar life: the one that it is in.
    """

    def __init__(
        self,
        manager: Manager,
        dice: random.Random,
        manners: Manners,
        tally: Counter[str],
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self.manager = manager
        self.manners = manners
        self.life = ""
        self.away = 0
        self._dice = dice
        self._tally = tally
        self._loop = loop
        self._tasks: list[asyncio.Task[None]] = []
        self._now_ns = 0
        # Each object's version grows with each change; what was said of it before may come again.
        self._version = 0
        self._said: dict[Key, ExternalObject | str] = {}
        self._documents: dict[Key, list[Document]] = {}
        self._garbled: dict[Key, int] = {}

    @property
    def name(self) -> str:
        return self.manager.name

    def begin(self, life: str) -> None:
        """Starts a new process, without the former one's state."""
        self.close()
        self.life = life
        self._records = Records()
        self._time = LifeTime()
        self._line = Line()
        if self._documents and self._dice.random() < self.manners.garbles * 5:
            self._garbled[self._dice.choice(list(self._documents))] = self._dice.randint(1, 4)
            self._tally["informer: an object cannot be read at its start"] += 1
        self._line.dead, self._line.listing = bool(self.away), self._listing()
        self._loop.run_until_complete(self._start())

    async def _start(self) -> None:
        cache = LogCache(
            rm_id=wire.RM,
            partition=PARTITION,
            source=self.name,
            life=self.life,
            topic=wire.TOPICS.requests,
            log_partition=0,
            writer=self._records,
            clock=self._time.clock,
            sleep=self._time.sleep,
        )

        def tell(state: SourceState, reason: str) -> None:
            cache.set_source_state(state, self.manners.drains, reason)

        informer = SharedIndexInformer(
            self.name,
            self._line,
            self._time.clock,
            stale_after_s=STALE_AFTER_S,
            on_state=tell,
            sleep=self._time.sleep,
            usage=Usage,
        )
        informer.add_event_handler(
            DefaultEventHandler(cache), distrust=cache.distrust, ready=cache.ready, forget=cache.delete
        )
        self._informer = informer
        self._tasks = [asyncio.create_task(cache.run()), asyncio.create_task(informer.run())]

    def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            self._loop.run_until_complete(asyncio.gather(*self._tasks, return_exceptions=True))
        self._tasks = []

    # ---- each step -------------------------------------------------------------------------------------------------

    def words(self, now_ns: int) -> list[Words]:
        """The records of this step."""
        seconds = (now_ns - self._now_ns) / 1e9 if self._now_ns else 0.0
        self._now_ns = now_ns
        self._break_off()
        if not self._line.dead:
            self._garble()
            self._line.say(self._deltas())
            self._line.listing = self._listing()
        return self._pass_by(min(seconds, 100.0))

    def everything(self, now_ns: int) -> list[Words]:
        """All due reports at once, then LIVE."""
        self._now_ns = now_ns
        self.away, self._line.dead = 0, False
        self._said.update(dict.fromkeys(self._garbled, UNREADABLE))
        self._garbled.clear()
        self._line.say(self._deltas(prompt=True))
        self._line.listing = [each[-1] for each in self._documents.values()]
        return self._pass_by(15.0)

    def give_up(self) -> list[Words]:
        """Gives the source up: it is late and not required."""
        self._informer.stop_waiting("not synced in time")
        return self._pass_by(0.0)

    def _pass_by(self, seconds: float) -> list[Words]:
        while True:
            if not self._line.dead:
                self._line.beat()
            self._loop.run_until_complete(self._time.pass_by(min(seconds, BEAT_S)))
            seconds -= BEAT_S
            if seconds <= 0:
                break
        for task in self._tasks:
            if task.done():
                task.result()  # a defect of informer or cache
        records, self._records.taken = self._records.taken, []
        found: list[Words] = []
        for record in records:
            envelope = pb.RequestEnvelope.FromString(record.value or b"")
            found += [each for each in codec.decode(envelope.external) if each is not None]
        return found

    def _break_off(self) -> None:
        if self.away:
            self.away -= 1
            if not self.away:
                self._tally["informer: its manager is back"] += 1
                self._line.dead = False
        elif self._dice.random() < self.manners.goes:
            self.away = self._dice.randint(1, 8)
            self._tally["informer: its manager goes away"] += 1
            self._line.die()

    def _garble(self) -> None:
        for key in list(self._garbled):
            self._garbled[key] -= 1
            if self._garbled[key] <= 0:
                del self._garbled[key]
                self._said[key] = UNREADABLE  # said anew, under another version
        known = [key for key in self._said if key in self.manager.objects]
        if known and self._dice.random() < self.manners.garbles:
            self._garbled[self._dice.choice(known)] = self._dice.randint(1, 4)
            self._tally["informer: an object cannot be read"] += 1

    def _deltas(self, *, prompt: bool = False) -> list[tuple[ChangeType, Document]]:
        dice, manners, objects = self._dice, self.manners, self.manager.objects
        found: list[tuple[ChangeType, Document]] = []
        for key in list({**self._said, **objects}):
            what = objects.get(key)
            if what == self._said.get(key) or key in self._garbled or (not prompt and dice.random() < manners.lags):
                continue
            self._version += 1
            if what is None:
                del self._said[key]
                self._documents.pop(key, None)
                found.append((ChangeType.DELETED, {"kind": key[0].value, "id": key[1], "version": self._version}))
                continue
            self._said[key] = what
            document = as_document(what, self._version)
            self._documents[key] = [*self._documents.get(key, ()), document][-OLD_MAX:]
            found.append((dice.choice([ChangeType.ADDED, ChangeType.MODIFIED]), document))
        if prompt:
            return found
        return [*found, *((ChangeType.MODIFIED, self._nonsense(key)) for key in self._garbled), *self._again()]

    def _again(self) -> list[tuple[ChangeType, Document]]:
        """Repeats of earlier reports, and late older versions."""
        dice = self._dice
        if not self._documents or dice.random() >= self.manners.repeats:
            return []
        key = dice.choice(list(self._documents))
        if key in self._garbled:
            return []
        document = dice.choice(self._documents[key])
        late = document is not self._documents[key][-1]
        self._tally["informer: an old version comes late" if late else "informer: says it twice"] += 1
        if late and dice.random() < 0.3:
            return [(ChangeType.DELETED, {"kind": key[0].value, "id": key[1], "version": document["version"]})]
        return [(ChangeType.MODIFIED, document)]

    def _listing(self) -> list[Document]:
        """The answer to a listing."""
        dice = self._dice
        found = [self._nonsense(key) if key in self._garbled else each[-1] for key, each in self._documents.items()]
        dice.shuffle(found)
        if found and dice.random() < self.manners.repeats:
            found.append(dice.choice(found))
        return found

    def _nonsense(self, key: Key) -> Document:
        return {"kind": key[0].value, "id": key[1], "capacity": "zork", "quantities": -1, "maximum": [], "queue": 7}
