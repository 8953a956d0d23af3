"""The objects of external sources: ``/ws/v1/external`` (docs/external-rest.md)."""

from __future__ import annotations

from muster_core.external.reports import ExternalReports
from muster_runtime import rm_status_text
from muster_runtime.default_rm import resolve_rm

from muster_view.errors import HttpError
from muster_view.rest import external
from muster_view.rest.http_messages import HttpAnswer, HttpCall
from muster_view.rest.lookup import Lookup
from muster_view.rest.parameters import after, external_kind, limit, quote
from muster_view.rest.state_source import StateSource


class ExternalEndpoints:
    """Answers about external sources."""

    def __init__(self, lookup: Lookup, source: StateSource) -> None:
        self._lookup, self._source = lookup, source

    async def sources(self, call: HttpCall) -> HttpAnswer:
        rm_id, books = self._books(call)
        partition = call.path.get("partition")
        sources = [source for source in books.all_sources() if partition in (None, source.partition)]
        return HttpAnswer(external.sources(rm_id, sources))

    async def objects(self, call: HttpCall) -> HttpAnswer:
        _, books = self._books(call)
        name, partition = call.path["source"], call.query.get("partition", "")
        sources = [source for source in external.named(books, name) if partition in ("", source.partition)]
        if not sources:
            raise HttpError(404, f"Source not found: {quote(name)}")
        if len(sources) > 1:
            partitions = ", ".join(source.partition for source in sources)
            raise HttpError(400, f'Several partitions have this source, name one with "partition": {partitions}')
        kind, position, most = external_kind(call), after(call), limit(call, external.OBJECTS_DEFAULT)
        return HttpAnswer(external.objects(sources[0], kind, position, most))

    def _books(self, call: HttpCall) -> tuple[str, ExternalReports]:
        """The objects of sources for the RM that the request names, or for the only one; the RM need not have
        registered.
        """
        books, states = self._source.external(), self._lookup.states(call)
        named = call.query.get("rm", "")
        rm_ids = sorted({rm_id for rm_id in (*books, *states) if call.reach.can_read_all_of(rm_id)})
        stopped = {rm_id: rm_id in states and states[rm_id].info.life == rm_status_text.STOPPED for rm_id in rm_ids}
        meant = named or resolve_rm(stopped, call.default_rm)
        if meant is None and rm_ids:
            raise HttpError(400, f'Several resource managers are known, name one with "rm": {", ".join(rm_ids)}')
        if named and named not in rm_ids:
            raise HttpError(404, f"Resource manager not found: {quote(named)}")
        call.rm_id = meant
        return call.rm_id or "", books.get(call.rm_id or "") or ExternalReports()
