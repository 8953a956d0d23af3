"""Reports of external sources, for RMs that are registered and for others (the machine's part)."""

from __future__ import annotations

from collections.abc import Sequence

import structlog
from muster_core.config.queue_config import partition_name
from muster_core.external.model import NOT_CONFIGURED, ApplyExternalChanges, SetSourceState, SourceState
from muster_core.external.validation import name_problem
from muster_core.model.commands import SetSchedulingEnabled
from muster_core.model.steps import LIGHT_STEP, Steps, emptied, finish
from muster_informers.sync_gate import SyncGate

from muster_scheduler import pauses
from muster_scheduler.dead_letters import UnreadableRequest
from muster_scheduler.rm_table import RmTable

log = structlog.get_logger(__name__)


class ExternalReportIngest:
    """Applies what external sources report.

    :param gate: the sources that the scheduler must wait for; without a life: none, and none is given up.
    """

    def __init__(self, roster: RmTable, gate: SyncGate) -> None:
        self._roster = roster
        self._gate = gate
        self._ignored: dict[tuple[str, str], str] = {}  # (RM, source) → life; for the log

    def apply_in_steps(
        self, rm_id: str, commands: Sequence[ApplyExternalChanges | SetSourceState], now_ns: int
    ) -> Steps:
        """Takes a source's commands, whether its RM is registered or not; in steps.

        Ignores informers of another start: those of an owner that is gone. (A paused owner that goes on does not know
        that yet, and its informers list again. If they counted, those of this start would be an earlier life for ever.)
        """
        if problem := name_problem(rm_id, "rm_id"):
            raise UnreadableRequest(problem)
        state = self._roster.folder.rms.get(rm_id)
        out = self._roster.outcome(rm_id)
        for command in commands:
            if self._is_of_another_start(rm_id, command):
                self._ignore(rm_id, command)
                continue
            if state is not None:
                yield from state.core.apply_in_steps(command, now_ns, out)
                continue
            changes = yield from self._roster.folder.books_of(rm_id).apply_in_steps(command, now_ns)
            for count, changed in enumerate(emptied(changes), 1):
                out.mark_changed(changed.what, changed.what.partition)
                if not count % LIGHT_STEP:
                    yield
        if state is not None and state.info.awaited:
            if pauses.mark_awaited(state.info, self.awaited(rm_id), now_ns):
                self._roster.unwritten[rm_id] = None
            if not state.info.awaited:
                log.info("all sources are known", rm=rm_id)
                state.core.apply(SetSchedulingEnabled(state.info.decides), now_ns, out)

    def awaited(self, rm_id: str) -> tuple[str, ...]:
        """Returns the sources that the RM's scheduling waits for."""
        return pauses.awaited_sources(self._gate, self._roster.folder.external.get(rm_id), rm_id)

    def _is_of_another_start(self, rm_id: str, command: ApplyExternalChanges | SetSourceState) -> bool:
        source = partition_name(command.partition), command.source
        return source in self._gate.awaited_sources(rm_id) and not self._gate.is_of_this_start(command.life)

    def _ignore(self, rm_id: str, command: ApplyExternalChanges | SetSourceState) -> None:
        if self._ignored.get((rm_id, command.source)) != command.life:
            self._ignored[rm_id, command.source] = command.life
            log.warning("informers of another start are ignored", rm=rm_id, source=command.source, life=command.life)

    def give_up_forgotten(self, rm_id: str, now_ns: int) -> None:
        """Gives up sources that no informer brings any more: their last reports may be outdated. Does so once."""
        if not self._gate.incarnation:
            return  # the creator of this machine does not know the informers
        brought = {*self._gate.awaited_sources(rm_id), *self._gate.natives.get(rm_id, ())}
        for entry in list(self._roster.folder.books_of(rm_id).all_sources()):
            if (entry.partition, entry.source) in brought or entry.reason == NOT_CONFIGURED:
                continue
            command = SetSourceState(
                entry.partition, entry.source, entry.life, SourceState.STALE, entry.drains, NOT_CONFIGURED
            )
            log.warning("source without an informer", rm=rm_id, partition=entry.partition, source=entry.source)
            finish(self.apply_in_steps(rm_id, (command,), now_ns))
