"""Has the queue configurations of registrations and updates read before they go to the log.

The verdict goes to the log with its request. So the scheduler reads no text while all RMs wait for its decisions, and a
replay does not judge a text anew.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from muster_queue_config.errors import ParserBusy, ParserClosed
from muster_queue_config.sandboxed_parser import SandboxedParser

from muster_gateway.codec import JudgedConfiguration, encode_judged
from muster_gateway.errors import GatewayStopping, OverLimit

# Accepted configurations on the log that the scheduler has not answered: large ones, and others.
_UNDECIDED_LARGE, _UNDECIDED_SMALL = 1, 4
# Those of some dozens of queues are smaller, and take the scheduler few milliseconds.
_LARGE_BYTES = 1024


class ConfigPreparser:
    """Judges queue configurations.

    :param record_bytes_max: of a request with its verdict.
    """

    def __init__(self, judge: SandboxedParser, record_bytes_max: int) -> None:
        self._judge, self._record_bytes_max = judge, record_bytes_max
        self._large, self._small = asyncio.Semaphore(_UNDECIDED_LARGE), asyncio.Semaphore(_UNDECIDED_SMALL)

    @contextlib.asynccontextmanager
    async def admission_slot(self, judged: JudgedConfiguration | None) -> AsyncIterator[None]:
        """Lets a request with an accepted configuration go to the log in its turn.

        The scheduler works up to 0.1 s on a large one, and other RMs' requests wait behind those on the log. Small ones
        do not wait for large ones.
        """
        if judged is None or not judged.accepted:
            yield
            return
        is_large = not 0 < len(judged.compiled) <= _LARGE_BYTES  # (without its bytes, the scheduler reads the text)
        async with self._large if is_large else self._small:
            yield

    async def parse(self, rm_id: str, text: str, request_bytes: int) -> JudgedConfiguration | None:
        """Returns the verdict on the text of a request; None for an empty text, which the scheduler replaces.

        Raises OverLimit, GatewayStopping.
        """
        if not text:
            return None
        try:
            result = await self._judge.parse(text, rm_id)
        except ParserBusy as error:
            raise OverLimit(str(error)) from error
        except ParserClosed as error:
            raise GatewayStopping from error
        return encode_judged(result, self._record_bytes_max - request_bytes)

    async def close(self) -> None:
        """Ends the reading process."""
        await self._judge.close()
