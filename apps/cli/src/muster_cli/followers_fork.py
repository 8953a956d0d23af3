"""The followers' process as a copy of the deciding one, made before that has a thread.

Both processes need most of their modules. A copy shares their memory until one of them writes to it, and does not load
them again. Only the first process of the followers is a copy: later ones, after a failure, are started anew.
"""

from __future__ import annotations

import socket
from importlib import import_module
from typing import NoReturn

from muster_runtime.child_process import ChildProcess

from muster_cli.followers_messages import FromFollowers

# What both processes load. (What only one needs would be the other's, too.)
_BOTH = (
    "grpc_health.v1.health",
    "grpc_reflection.v1alpha.reflection",
    "muster_bus.pipe.messages",
    "muster_runtime.exposition",
    "muster_runtime.http_server",
    "muster_state.state_folder",
    "starlette.applications",
)


def fork_followers() -> ChildProcess[FromFollowers] | None:
    """Starts the followers' process. None: this process may not be copied. Raises OSError."""
    for module in _BOTH:
        import_module(module)
    return ChildProcess.fork(_main, FromFollowers)


def _main(end: socket.socket) -> NoReturn:
    from muster_cli.followers_child import run_on

    run_on(end)
