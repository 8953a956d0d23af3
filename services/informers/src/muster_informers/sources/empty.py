"""An informer without objects, to remove the objects of an earlier source for good.

A source whose table is removed from the settings becomes stale, not empty: its objects still count. If its table has
this kind instead, the listing is empty, which removes all its objects; afterwards the table can be removed.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

from muster_informers.contract import Delta, InformerContext, Listing, Options
from muster_informers.sources.options import HEARTBEAT_S, InformerOptions, options_as


class EmptyOptions(InformerOptions):
    """No options."""


def make_informer(options: Options, context: InformerContext) -> EmptySource:
    """The factory of ``muster.informers``."""
    options_as(EmptyOptions, options, context)
    return EmptySource()


class EmptySource:
    """See :class:`muster_informers.contract.ListWatch`."""

    async def list(self) -> Listing:
        return Listing(())

    async def watch(self, cursor: str) -> AsyncIterator[Sequence[Delta]]:
        while True:
            yield ()
            await asyncio.sleep(HEARTBEAT_S)

    async def close(self) -> None:
        """There is nothing to close."""
