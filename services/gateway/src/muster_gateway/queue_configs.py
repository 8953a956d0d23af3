"""Has the queue configurations of registrations and updates read before they go to the log.

The verdict goes to the log with its request. So the scheduler reads no text while all RMs wait for its decisions, and a
replay does not judge a text anew.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from muster_queue_config.errors import JudgeBusy, JudgeClosed
from muster_queue_config.judge import Judge

from muster_gateway.codec import JudgedConfiguration, encode_judged
from muster_gateway.errors import GatewayStopping, OverLimit

# Accepted configurations on the log that the scheduler has not answered.
_UNDECIDED_MAX = 2


class QueueConfigs:
    """Judges queue configurations.

    :param record_bytes_max: of a request with its verdict.
    """

    def __init__(self, judge: Judge, record_bytes_max: int) -> None:
        self._judge, self._record_bytes_max = judge, record_bytes_max
        self._places = asyncio.Semaphore(_UNDECIDED_MAX)

    @contextlib.asynccontextmanager
    async def place(self, judged: JudgedConfiguration | None) -> AsyncIterator[None]:
        """Lets a request with an accepted configuration go to the log in its turn.

        The scheduler takes up to 0.1 s for each, and other RMs' requests wait behind those on the log.
        """
        if judged is None or not judged.accepted:
            yield
            return
        async with self._places:
            yield

    async def judged(self, rm_id: str, text: str, request_bytes: int) -> JudgedConfiguration | None:
        """Returns the verdict on the text of a request; None for an empty text, which the scheduler replaces.

        Raises OverLimit, GatewayStopping.
        """
        if not text:
            return None
        try:
            found = await self._judge.judge(text, rm_id)
        except JudgeBusy as error:
            raise OverLimit(str(error)) from error
        except JudgeClosed as error:
            raise GatewayStopping from error
        return encode_judged(found, self._record_bytes_max - request_bytes)

    async def close(self) -> None:
        """Ends the reading process."""
        await self._judge.close()
