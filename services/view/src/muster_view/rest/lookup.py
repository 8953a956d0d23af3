"""Finds the RM, partition and queue that a request names; refuses names that do not exist.

What the caller may not read does not exist for it (``Call.reach``). A caller that may read only some of an RM's
partitions gets these. For answers about the whole RM it needs all partitions.
"""

from __future__ import annotations

from collections.abc import Mapping

from muster_core.config.queue_config import without_rm
from muster_core.model.queue import Queue
from muster_core.partition import Partition
from muster_runtime import rm_status_text
from muster_runtime.default_rm import resolve_rm
from muster_state.state_folder import RmEntry

from muster_view.errors import HttpError
from muster_view.rest import resource_managers
from muster_view.rest.http_messages import HttpCall
from muster_view.rest.parameters import queue_path, quote
from muster_view.rest.state_source import StateSource


class Lookup:
    """Finds the objects that a request names. Raises RequestRefused for an unknown name."""

    def __init__(self, source: StateSource) -> None:
        self._source = source

    def states(self, call: HttpCall) -> Mapping[str, RmEntry]:
        """The RMs that the caller may read, by id; sorted."""
        states = self._source.states()
        if call.reach.is_all:
            return states
        return {rm_id: state for rm_id, state in states.items() if call.reach.can_read_rm(rm_id)}

    def rm(self, call: HttpCall, *, in_parts: bool = False) -> RmEntry | None:
        """The RM that the request names, or the only one; None: there is no RM. Raises RequestRefused.

        :param in_parts: the answer shows partitions that the caller may read, and nothing else of the RM.
        """
        states = self.states(call)
        named = call.query.get("rm", "")
        if named:
            state = states.get(named)
            if state is None:
                raise HttpError(404, f"Resource manager not found: {quote(named)}")
        else:
            meant = self.default_rm(call)
            if meant is None and states:
                raise HttpError(
                    400, f'Several resource managers are registered, name one with "rm": {", ".join(states)}'
                )
            state = states[meant] if meant is not None else None
        if state is None:
            return None
        if not in_parts and not call.reach.can_read_all_of(state.info.rm_id):
            raise HttpError(403, f"This needs the right to read all partitions of {quote(state.info.rm_id)}")
        call.rm_id = state.info.rm_id
        return state

    def described(self, call: HttpCall, state: RmEntry, now_ns: int) -> str:
        """The meaning of an RM's state, and advice."""
        facts = call.note.facts(self._source.log_partition(state.info.rm_id))
        return resource_managers.describe(state.info, now_ns, facts)

    def default_rm(self, call: HttpCall) -> str | None:
        """The RM of a request that names none; None: several are possible, or there is no RM."""
        stopped = {rm_id: state.info.life == rm_status_text.STOPPED for rm_id, state in self.states(call).items()}
        return resolve_rm(stopped, call.default_rm)

    def partitions(self, call: HttpCall) -> tuple[RmEntry | None, list[Partition]]:
        """The RM, and those of its partitions that the caller may read."""
        state = self.rm(call, in_parts=True)
        return state, self._seen(call, state) if state is not None else []

    def _seen(self, call: HttpCall, state: RmEntry) -> list[Partition]:
        rm_id = state.info.rm_id
        return [
            partition for name, partition in state.core.partitions.items() if call.reach.can_read_partition(rm_id, name)
        ]

    def partition(self, call: HttpCall) -> Partition:
        partition = self.partition_or_none(call)
        if partition is None:
            raise HttpError(404, "Partition not found")
        return partition

    def partition_or_none(self, call: HttpCall) -> Partition | None:
        """The partition for usage: YuniKorn does not check it there, and an unknown partition has no usage."""
        _, partitions = self.partitions(call)
        return next((partition for partition in partitions if _is(partition, call.path["partition"])), None)

    def leaf(self, call: HttpCall) -> tuple[Partition, Queue]:
        """The queue that the path names. As in YuniKorn, an unknown partition is reported before an unknown queue."""
        partition = self.partition(call)
        queue = partition.queues.get(queue_path(call))
        if queue is None:
            raise HttpError(404, "Queue not found")
        return partition, queue

    def find_rm(self, call: HttpCall, *, in_parts: bool = False) -> RmEntry:
        state = self.rm(call, in_parts=in_parts)
        if state is None:
            raise HttpError(404, "No resource manager is registered")
        return state

    def partitions_of(self, call: HttpCall, state: RmEntry) -> list[Partition]:
        """The partition that the query names, or all that the caller may read."""
        named, readable = call.query.get("partition", ""), self._seen(call, state)
        if not named:
            return readable
        matches = [partition for partition in readable if _is(partition, named)]
        if not matches:
            raise HttpError(404, "Partition not found")
        return matches


def _is(partition: Partition, named: str) -> bool:
    """Whether a partition has a name, with or without its RM."""
    return partition.name in (named, without_rm(named, partition.rm_id))
