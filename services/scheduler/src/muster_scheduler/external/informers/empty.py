"""An informer without objects: so that what a source said earlier goes, for good.

A source whose table is taken out of the settings is stale, not empty: what it said still counts. Its table with this
kind lists nothing, which removes everything that was known from it; afterwards the table can go.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

from muster_scheduler.external.contract import Delta, InformerContext, Listing, Options
from muster_scheduler.external.informers.options import HEARTBEAT_S, InformerOptions, options_as


class EmptyOptions(InformerOptions):
    """There are none."""


def make_informer(options: Options, context: InformerContext) -> EmptySource:
    """The factory of ``muster.informers``."""
    options_as(EmptyOptions, options, context)
    return EmptySource()


class EmptySource:
    """See :class:`muster_scheduler.external.contract.ListWatch`."""

    async def list(self) -> Listing:
        return Listing(())

    async def watch(self, cursor: str) -> AsyncIterator[Sequence[Delta]]:
        while True:
            yield ()
            await asyncio.sleep(HEARTBEAT_S)

    async def close(self) -> None:
        """There is nothing to close."""
