"""A core with sources outside of its RM, whose records are folded beside it: what is live must be what is folded."""

from __future__ import annotations

import random

from builders import Cluster, configured
from muster_bus.log import Record
from muster_bus.topics import state_key
from muster_core import invariants
from muster_core.external.model import (
    ApplyExternalChanges,
    ExternalChange,
    ExternalKind,
    ExternalObject,
    SetSourceState,
    SourceState,
    id_of,
    kind_of,
)
from muster_core.external.reports import ReportedObject
from muster_core.model.commands import Command
from muster_core.model.outcome import Outcome
from muster_core.model.pending_reason import ask_reason
from muster_core.model.states import APP_TERMINAL
from muster_core.scheduler import SchedulerCore
from muster_state import state_codec
from muster_state.state_folder import RmInfo, StateFolder, encode_registration, encode_rm, new_core

RM = "rm"
LEAVES = "{name: root, submitacl: '*', queues: [{name: a}, {name: b}]}"


class Outside(Cluster):
    """A cluster in the hand, with sources.

    :ivar kept: its records, newest per key: what a compacted topic holds.
    :ivar follower: took every record as it came.
    """

    def __init__(self, queues: str = LEAVES, *, nodesort: str = "fair", partition: str = "") -> None:
        super().__init__(queues, nodesort=nodesort, partition=partition)
        self.info = RmInfo(RM, life="RUNNING", registered_ns=self.now_ns, registrations=1)
        self._text(queues, nodesort, partition)
        self.kept: dict[bytes, bytes] = {}
        self.follower = StateFolder()
        self.follower.build()
        self._offset = 0
        self._write(self.outcomes[0], registers=True)

    def _text(self, queues: str, nodesort: str, partition: str) -> None:
        assert configured(queues, nodesort=nodesort, partition=partition)
        named = f"name: default, nodesortpolicy: {{type: {nodesort}}}, {partition} queues: [{queues}]"
        self.info.config = f"partitions: [{{{named}}}]"

    def do(self, *commands: Command, budget: int = 1 << 30) -> Outcome:
        """As every cluster does; and the follower hears of it."""
        out = super().do(*commands, budget=budget)
        self._write(out)
        return out

    def reload(self, queues: str, *, nodesort: str = "fair", partition: str = "") -> tuple[str, ...]:
        """Another configuration; its record comes first, as the machine writes it."""
        self._text(queues, nodesort, partition)
        self._registers = True
        return super().reload(queues, nodesort=nodesort, partition=partition)

    _registers = False

    def _write(self, out: Outcome, *, registers: bool = False) -> None:
        self.info.last_decided_ns = self.now_ns
        self._take(state_key(RM, state_codec.RM, "-"), encode_rm(self.info, self.core.next_submission))
        if registers or self._registers:
            self._registers = False
            self._take(state_key(RM, state_codec.REGISTRATION, "-"), encode_registration(self.info))
        for partition, what, alive in out.objects():
            key = state_codec.key_of(RM, partition, what)
            self._take(key, state_codec.encode(partition, what) if alive else None)

    def _take(self, key: bytes, value: bytes | None) -> None:
        self.follower.fold(Record("si.state", 0, self._offset, 0, key, value))
        self._offset += 1
        if value is None:
            self.kept.pop(key, None)
        else:
            self.kept[key] = value

    # ---- sources ---------------------------------------------------------------------------------------------------

    def says(self, source: str, *objects: ExternalObject, life: str = "1") -> Outcome:
        return self.do(says(source, *objects, life=life))

    def forgets(self, source: str, *objects: ExternalObject, life: str = "1") -> Outcome:
        return self.do(forgets(source, *objects, life=life))

    def distrusts(self, source: str, *objects: ExternalObject, life: str = "1") -> Outcome:
        """A source cannot be relied on for these."""
        changes = tuple(ExternalChange(kind_of(each), id_of(each), None, stale=True) for each in objects)
        return self.do(ApplyExternalChanges("default", source, life, changes))

    def sets(
        self, source: str, state: SourceState, *, life: str = "1", drains: bool = True, reason: str = ""
    ) -> Outcome:
        """A source is live, lost, or lists."""
        return self.do(SetSourceState("default", source, life, state, drains, reason))

    def entry(self, source: str, kind: ExternalKind, object_id: str) -> ReportedObject:
        found = self.core.external.for_partition("default").entry(source, kind, object_id)
        assert found is not None, f"{source} says nothing of {kind} {object_id}"
        return found

    # ---- folds -----------------------------------------------------------------------------------------------------

    def folded(self, seed: int = 0) -> SchedulerCore:
        """A core from the records, in any order."""
        folder = StateFolder()
        records = list(self.kept.items())
        random.Random(seed).shuffle(records)
        for offset, (key, value) in enumerate(records):
            folder.fold(Record("si.state", 0, offset, 0, key, value))
        folder.build()
        core = folder.rms[RM].core
        core.activate(self.now_ns, self.now_ns)
        return core

    def restart(self, seed: int = 0) -> None:
        """The scheduler is another one from here on, that knows the records only."""
        self.core = self.folded(seed)
        invariants.check(self.core)

    def register_again(self) -> None:
        """Starts the RM anew. The sources' reports stay."""
        books = self.core.external
        out = self.core.end(self.now_ns)
        self.info.registrations += 1
        self.info.registered_ns = self.now_ns
        out = Outcome()
        for entry in books.all_sources():
            out.mark_changed(entry, entry.partition)
            for each in entry.entries.values():
                out.mark_changed(each, each.partition)
        self.core = new_core(self.info, searching=True, external=books)
        self.kept = {key: value for key, value in self.kept.items() if b"/ext/" in key or b"/source/" in key}
        self.core.start(self.now_ns, out)
        self.outcomes.append(out)
        self._write(out, registers=True)
        self.do()

    def check_folds(self) -> None:
        """What was folded, from all records or from each as it came, is what is live."""
        live = meaning(self.core)
        folded = self.folded()
        invariants.check(folded)
        assert meaning(folded) == live
        followed = self.follower.rms[RM].core
        assert meaning(followed) == live


def says(source: str, *objects: ExternalObject, life: str = "1") -> ApplyExternalChanges:
    changes = tuple(ExternalChange(kind_of(each), id_of(each), each) for each in objects)
    return ApplyExternalChanges("default", source, life, changes)


def forgets(source: str, *objects: ExternalObject, life: str = "1") -> ApplyExternalChanges:
    changes = tuple(ExternalChange(kind_of(each), id_of(each), None) for each in objects)
    return ApplyExternalChanges("default", source, life, changes)


def meaning(core: SchedulerCore) -> dict[str, object]:
    """What a core holds, whatever numbers its types have."""
    found: dict[str, object] = {}
    for name, part in core.partitions.items():
        quantities = part.types.quantities
        found[name] = {
            "capacity": quantities(part.capacity),
            "pooled": sorted(part.types.names[number] for number in part.types.pooled),
            "root": (part.root.by_name(part.root.maximum), part.root.sources),
            "nodes": {
                node.node_id: (
                    quantities(node.capacity),
                    node.named_capacity(),
                    quantities(node.allocated),
                    quantities(node.occupied),
                    quantities(node.available),
                    node.schedulable,
                    node.sources,
                    sorted(node.attributes.items()),
                )
                for node in sorted(part.nodes.values(), key=lambda each: each.node_id)
            },
            "allocations": {
                (app.app_id, held.unique_key): (held.node_id, held.preempted, held.releasing_since_ns)
                for app in sorted(part.apps.values(), key=lambda each: each.app_id)
                for held in app.allocations.values()
            },
            "asks": {
                (app.app_id, ask.key): (ask.pending, ask_reason(ask), ask.reserved_node)
                for app in part.apps.values()
                for ask in app.asks.values()
            },
            "bounds": {
                app.app_id: [ledger.path for ledger in app.bounds]
                for app in part.apps.values()
                if app.state not in APP_TERMINAL  # (of those that are over the queue may be gone)
            },
        }
    found["ext"] = {
        (entry.partition, entry.source, entry.kind, entry.object_id): (
            entry.said,
            entry.stale,
            entry.problem,
            entry.offer_state,
            entry.idle_since_ns,
            entry.deadline_ns,
        )
        for source in core.external.all_sources()
        for entry in source.entries.values()
    }
    return found
