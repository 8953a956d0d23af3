"""The headers of a gRPC call that answers with a stream."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc


async def send_headers(context: Any) -> None:
    """Sends a call's headers, unless they were sent. A call that may be cancelled and then ended with a status needs
    this first.

    gRPC sends the headers with the first message otherwise. If that write is cancelled, gRPC takes them for unsent, and
    ``abort`` fails: the caller would not get the status.
    """
    sending = asyncio.ensure_future(context.send_initial_metadata(()))
    try:
        await asyncio.shield(sending)
    except asyncio.CancelledError:
        await asyncio.wait({sending})
        raise
    except grpc.aio.UsageError:
        pass  # they were sent
