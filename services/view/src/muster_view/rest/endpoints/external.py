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
        found = [each for each in books.all_sources() if partition in (None, each.partition)]
        return HttpAnswer(external.sources(rm_id, found))

    async def objects(self, call: HttpCall) -> HttpAnswer:
        _, books = self._books(call)
        name, partition = call.path["source"], call.query.get("partition", "")
        found = [each for each in external.named(books, name) if partition in ("", each.partition)]
        if not found:
            raise HttpError(404, f"Source not found: {quote(name)}")
        if len(found) > 1:
            partitions = ", ".join(each.partition for each in found)
            raise HttpError(400, f'Several partitions have this source, name one with "partition": {partitions}')
        kind, place, most = external_kind(call), after(call), limit(call, external.OBJECTS_DEFAULT)
        return HttpAnswer(external.objects(found[0], kind, place, most))

    def _books(self, call: HttpCall) -> tuple[str, ExternalReports]:
        """The objects of sources for the RM that the request names, or for the only one; the RM need not have
        registered.
        """
        books, states = self._source.external(), self._lookup.states(call)
        named = call.query.get("rm", "")
        known = sorted({rm_id for rm_id in (*books, *states) if call.reach.can_read_all_of(rm_id)})
        stopped = {each: each in states and states[each].info.life == rm_status_text.STOPPED for each in known}
        meant = named or resolve_rm(stopped, call.default_rm)
        if meant is None and known:
            raise HttpError(400, f'Several resource managers are known, name one with "rm": {", ".join(known)}')
        if named and named not in known:
            raise HttpError(404, f"Resource manager not found: {quote(named)}")
        call.rm_id = meant
        return call.rm_id or "", books.get(call.rm_id or "") or ExternalReports()
