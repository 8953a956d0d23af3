"""The view: follows ``si.state`` and answers REST. See README.md."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from muster_view.service import ViewService

__all__ = ["ViewService"]


def __getattr__(name: str) -> Any:
    # Late, so that reading the settings does not load a web server.
    if name == "ViewService":
        from muster_view.service import ViewService

        return ViewService
    raise AttributeError(name)
