"""Logging: one line per event on standard error, JSON for machines, colour on a terminal.

What the libraries log through the standard library comes out in the same form, from warnings on.
"""

from __future__ import annotations

import logging
import sys
from typing import Literal, TextIO

import structlog

Level = Literal["debug", "info", "warning", "error"]
Format = Literal["auto", "json", "console"]

# They tell of each connection, or of each request; their warnings are worth having.
_TALKATIVE = ("aiokafka", "asyncio", "grpc", "httpcore", "httpx", "uvicorn")


def configure(level: Level, form: Format, stream: TextIO | None = None) -> None:
    """Sets up structlog and the standard library's logging for this process. Later calls replace earlier ones."""
    out = sys.stderr if stream is None else stream
    as_json = form == "json" or (form == "auto" and not out.isatty())
    threshold = logging.getLevelNamesMapping()[level.upper()]
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.make_filtering_bound_logger(threshold),
        cache_logger_on_first_use=False,
    )
    ending: list[structlog.typing.Processor] = (
        [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
        if as_json
        else [structlog.dev.ConsoleRenderer(colors=out.isatty())]
    )
    handler = logging.StreamHandler(out)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*shared, structlog.stdlib.PositionalArgumentsFormatter()],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *ending],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(threshold)
    for name in _TALKATIVE:
        logging.getLogger(name).setLevel(max(threshold, logging.WARNING))
