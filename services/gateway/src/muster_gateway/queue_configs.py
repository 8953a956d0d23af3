"""Has the queue configurations of registrations and updates read before they go to the log.

The verdict goes to the log with its request. So the scheduler reads no text while all RMs wait for its decisions, and a
replay does not judge a text anew.
"""

from __future__ import annotations

from muster_queue_config.errors import JudgeBusy, JudgeClosed
from muster_queue_config.judge import Judge

from muster_gateway.codec import JudgedConfiguration, encode_judged
from muster_gateway.errors import GatewayStopping, OverLimit


class QueueConfigs:
    """Judges queue configurations.

    :param record_bytes_max: of a request with its verdict.
    """

    def __init__(self, judge: Judge, record_bytes_max: int) -> None:
        self._judge, self._record_bytes_max = judge, record_bytes_max

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
