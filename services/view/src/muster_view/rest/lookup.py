"""Finds the RM, partition and queue that a request names; refuses names that do not exist."""

from __future__ import annotations

from muster_core.model.queue import Queue
from muster_core.partition import Partition
from muster_runtime import rm_words, whose
from muster_state.follower import RmState

from muster_view.errors import RequestRefused
from muster_view.rest.call import Call
from muster_view.rest.parameters import queue_path, shown
from muster_view.rest.source import Snapshot


class Lookup:
    """Finds the objects that a request names. Raises RequestRefused for an unknown name."""

    def __init__(self, source: Snapshot) -> None:
        self._source = source

    def rm(self, call: Call) -> RmState | None:
        """The RM that the request names, or the only one; None: there is no RM. Raises RequestRefused."""
        states = self._source.states()
        named = call.query.get("rm", "")
        if named:
            state = states.get(named)
            if state is None:
                raise RequestRefused(404, f"Resource manager not found: {shown(named)}")
        else:
            meant = self.meant(call)
            if meant is None and states:
                raise RequestRefused(
                    400, f'Several resource managers are registered, name one with "rm": {", ".join(states)}'
                )
            state = states[meant] if meant is not None else None
        if state is not None:
            call.rm_id = state.info.rm_id
        return state

    def meant(self, call: Call) -> str | None:
        """The RM of a request that names none; None: several are possible, or there is no RM."""
        stopped = {rm_id: state.info.life == rm_words.STOPPED for rm_id, state in self._source.states().items()}
        return whose.meant(stopped, call.default_rm)

    def partition(self, call: Call) -> Partition:
        partition = self.partition_or_none(call)
        if partition is None:
            raise RequestRefused(404, "Partition not found")
        return partition

    def partition_or_none(self, call: Call) -> Partition | None:
        """The partition for usage: YuniKorn does not check it there, and an unknown partition has no usage."""
        state = self.rm(call)
        return state.core.partitions.get(call.path["partition"]) if state is not None else None

    def leaf(self, call: Call) -> tuple[Partition, Queue]:
        """The queue that the path names. As in YuniKorn, an unknown partition is reported before an unknown queue."""
        partition = self.partition(call)
        queue = partition.queues.get(queue_path(call))
        if queue is None:
            raise RequestRefused(404, "Queue not found")
        return partition, queue

    def known(self, call: Call) -> RmState:
        state = self.rm(call)
        if state is None:
            raise RequestRefused(404, "No resource manager is registered")
        return state

    def partitions_of(self, call: Call, state: RmState) -> list[Partition]:
        named = call.query.get("partition", "")
        if not named:
            return list(state.core.partitions.values())
        if named not in state.core.partitions:
            raise RequestRefused(404, "Partition not found")
        return [state.core.partitions[named]]
