"""Resource managers and their configuration."""

from __future__ import annotations

from collections.abc import Iterator

from muster_bus.clock import Clock, recorded_ns
from muster_queue_config.sandboxed_parser import SandboxedParser
from muster_runtime.go_json import go_json
from muster_state.state_folder import RmEntry

from muster_view.rest import json_render, queue_config_dao, resource_managers
from muster_view.rest.http_messages import HEADERS, HttpAnswer, HttpCall
from muster_view.rest.lookup import Lookup
from muster_view.rest.state_source import StateSource
from muster_view.rest.yaml_executor import YamlExecutor


class RmEndpoints:
    """Answers about resource managers, and judges configurations."""

    def __init__(
        self, lookup: Lookup, source: StateSource, yaml: YamlExecutor, judge: SandboxedParser, clock: Clock
    ) -> None:
        self._lookup, self._source, self._yaml, self._clock = lookup, source, yaml, clock
        self._judge = judge

    async def resource_managers(self, call: HttpCall) -> HttpAnswer:
        named = call.query.get("rm")
        states = [self._lookup.find_rm(call, in_parts=True)] if named else list(self._lookup.states(call).values())
        meant = self._lookup.default_rm(call)

        def shown(state: RmEntry) -> Iterator[bytes]:
            now_ns = recorded_ns(self._clock, state.info.clock)
            description = self._lookup.described(call, state, now_ns)
            yield go_json(resource_managers.to_dao(state, description, default=state.info.rm_id == meant))

        return HttpAnswer(json_render.listing(states, shown))

    async def configuration(self, call: HttpCall) -> HttpAnswer:
        return HttpAnswer(json_render.body(resource_managers.configuration(self._lookup.find_rm(call).info)))

    async def config(self, call: HttpCall) -> HttpAnswer:
        info = self._lookup.find_rm(call).info
        # Only this exact header gives JSON: YuniKorn also sends YAML to readers that accept JSON among others.
        if call.accept == "application/json":
            return HttpAnswer(
                json_render.body(
                    await self._yaml.read(queue_config_dao.to_dao, info.config, info.extra_config, go=True)
                )
            )
        text = await self._yaml.read(queue_config_dao.as_yaml, info.config, info.extra_config)
        return HttpAnswer(iter([text]), headers={**HEADERS, "Content-Type": "application/x-yaml; charset=UTF-8"})

    async def validate(self, call: HttpCall) -> HttpAnswer:
        return HttpAnswer(json_render.body(await queue_config_dao.validate(call.body, self._judge)))
