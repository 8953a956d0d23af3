"""Large answers: the whole state of an RM, and the states of many objects."""

from __future__ import annotations

from muster_bus.clock import Clock, day_ns
from muster_rest.shapes.events import EventStreamDao

from muster_view.errors import HttpError
from muster_view.rest import object_states, queue_config_dao, state_dump
from muster_view.rest.http_messages import HttpAnswer, HttpCall
from muster_view.rest.lookup import Lookup
from muster_view.rest.state_source import StateSource
from muster_view.rest.yaml_executor import YamlExecutor


class StateEndpoints:
    """Answers with the state of many objects at once."""

    def __init__(self, lookup: Lookup, source: StateSource, yaml: YamlExecutor, clock: Clock) -> None:
        self._lookup, self._source, self._yaml, self._clock = lookup, source, yaml, clock

    async def state_dump(self, call: HttpCall) -> HttpAnswer:
        state = self._lookup.rm(call)
        config, streams = queue_config_dao.NOTHING, list[EventStreamDao]()
        if state is not None:
            streams = await self._source.event_streams(state.info.rm_id)
            config = await self._yaml.read(queue_config_dao.to_dao, state.info.config, state.info.extra_config, go=True)
            state = self._source.states().get(state.info.rm_id)  # the RM may have registered again meanwhile
        return HttpAnswer(state_dump.pieces(state, self._source.history(), config, day_ns(self._clock), streams))

    async def object_states(self, call: HttpCall) -> HttpAnswer:
        state = self._lookup.find_rm(call)
        # (Readers store the answer: half a transaction in it would stay wrong for ever.)
        if self._source.is_partial(state.info.rm_id):
            raise HttpError(503, "A transaction is being taken in: try again")
        departed = self._source.removed_objects(state.info.rm_id)
        return HttpAnswer(object_states.pieces(state, departed, object_states.read(call.body)))
