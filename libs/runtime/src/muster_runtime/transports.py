"""Connections of asyncio, after their end."""

from __future__ import annotations

import asyncio


def release(transport: asyncio.BaseTransport) -> None:
    """Drops the method of its own that asyncio's plain transport has as an attribute, once its connection is lost.

    With it the transport refers to itself, and only a collection of garbage frees it. (A process that decides does not
    look for garbage among what is old.) Other transports stay as they are.
    """
    if getattr(transport, "_read_ready_cb", None) is not None:
        transport._read_ready_cb = None  # type: ignore[attr-defined]
