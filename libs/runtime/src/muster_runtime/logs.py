"""Logging: one line per event on standard error, JSON for machines, colour on a terminal.

Secrets are masked, by the name of a value and within every text (secrets.py), also in tracebacks. Log messages of
libraries have the same form. The talkative libraries log only warnings and worse.
"""

from __future__ import annotations

import io
import logging
import sys
from collections.abc import Callable, Mapping
from enum import Enum
from types import NoneType
from typing import Literal, TextIO

import structlog

from muster_runtime.elapsed import elapsed_s
from muster_runtime.invisible import visible
from muster_runtime.secrets import MASK, is_secret, masked_json, masked_text

Level = Literal["debug", "info", "warning", "error"]
Format = Literal["auto", "json", "console"]

# These libraries log each connection or each request. Their warnings are useful.
_TALKATIVE = ("aiokafka", "asyncio", "grpc", "httpcore", "httpx", "uvicorn")
# While a broker is unreachable, each reader of each partition logs it, thousands of times a second in all.
_REPETITIVE = ("aiokafka", "aiokafka.consumer.fetcher")
_REPEATED_AFTER_S = 10.0
_TEMPLATES_MAX = 1_000
# These log what any client can cause: asyncio each failed accept, of which there are thousands in a second while the
# process has no files left, and the exception of each task that nobody awaited, such as gRPC's of a broken call.
_OF_CLIENTS = ("asyncio", "grpc")
_OF_CLIENTS_AFTER_S = 60.0


_configured: tuple[Level, Format] | None = None


class _StartupFilter(logging.Filter):
    """Passes warnings and worse until the process is ready."""

    ready = False

    def filter(self, record: logging.LogRecord) -> bool:
        return self.ready or record.levelno >= logging.WARNING


_brief = _StartupFilter()


def in_plain_text(_: object, __: str, entry: structlog.typing.EventDict) -> structlog.typing.EventDict:
    """Writes values as JSON has them: nothing in an entry is in Python's notation, such as ``PosixPath('x')``."""
    for name, value in entry.items():
        if name != "exc_info":  # the renderer's
            entry[name] = _plain(value)
    return entry


def _plain(value: object) -> object:
    match value:
        case Enum():
            return value.value if isinstance(value, (str, int)) else value.name
        case str() | bool() | int() | float() | None:
            return value
        case bytes():
            return value.decode(errors="backslashreplace")
        case Mapping():
            return {str(name): _plain(item) for name, item in value.items()}
        case list() | tuple():
            return [_plain(item) for item in value]
        case set() | frozenset():
            return sorted((_plain(item) for item in value), key=str)
        case BaseException():
            return f"{type(value).__name__}: {value}" if str(value) else type(value).__name__
    return str(value)


def without_secrets(_: object, __: str, entry: structlog.typing.EventDict) -> structlog.typing.EventDict:
    """Masks the secrets in an entry's values. A processor of structlog; the last one before the entry becomes text.

    Before it: :func:`in_plain_text`.
    """
    for name, value in entry.items():
        if isinstance(value, str):
            entry[name] = MASK if value and is_secret(name) else masked_text(value)
        elif isinstance(value, (dict, list)):
            entry[name] = masked_json({name: value})[name]
    return entry


def _all_visible(_: object, __: str, entry: structlog.typing.EventDict) -> structlog.typing.EventDict:
    """No text commands the terminal (invisible.py). The renderer's own colours come later."""
    for name, value in entry.items():
        if isinstance(value, str):
            entry[name] = visible(value, breaks=name in ("event", "exception", "stack"))
        elif name != "exc_info" and not isinstance(value, (int, float, NoneType)):
            entry[name] = visible(repr(value), breaks=False)
    return entry


def _traceback(out: TextIO, error: structlog.typing.ExcInfo) -> None:
    text = io.StringIO()
    structlog.dev.plain_traceback(text, error)
    out.write(visible(masked_text(text.getvalue())))


class RepeatFilter(logging.Filter):
    """Passes a message if no similar one (logger, place in the code) was passed for a while.

    The next message that passes gives the number of dropped ones.

    :param monotonic: a clock in seconds; tests replace it.
    """

    def __init__(self, after_s: float = _REPEATED_AFTER_S, monotonic: Callable[[], float] = elapsed_s) -> None:
        super().__init__()
        self._after_s, self._monotonic = after_s, monotonic
        self._said: dict[tuple[object, ...], tuple[float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        like, now = self._kind(record), self._monotonic()
        said_at, left_out = self._said.get(like, (-self._after_s, 0))
        if now - said_at < self._after_s:
            self._said[like] = (said_at, left_out + 1)
            return False
        if len(self._said) >= _TEMPLATES_MAX:
            self._said.clear()
        self._said[like] = (now, 0)
        if left_out:
            record.msg = f"{record.getMessage()} (and {left_out} more like it in {now - said_at:.0f} s)"
            record.args = ()
        return True

    def _kind(self, record: logging.LogRecord) -> tuple[object, ...]:
        """Returns what similar messages have in common."""
        return (record.name, record.pathname, record.lineno)


class SeldomOfClients(RepeatFilter):
    """Does this for what clients can cause: all messages of some libraries, one of a kind in a minute.

    The libraries log from one place in their code, so a kind is the first line and the exception.
    """

    def __init__(self, monotonic: Callable[[], float] = elapsed_s) -> None:
        super().__init__(_OF_CLIENTS_AFTER_S, monotonic)

    def filter(self, record: logging.LogRecord) -> bool:
        return record.name.partition(".")[0] not in _OF_CLIENTS or super().filter(record)

    def _kind(self, record: logging.LogRecord) -> tuple[object, ...]:
        error = record.exc_info[1] if record.exc_info else None
        first, _, _ = record.getMessage().partition("\n")
        return (record.name, first, type(error), getattr(error, "errno", None))


def configure(level: Level, form: Format, stream: TextIO | None = None, *, brief_start: bool = False) -> None:
    """Sets up structlog and the standard library's logging for this process. Later calls replace earlier ones.

    :param brief_start: on a terminal, log no more than warnings until :func:`end_startup` is called; does not
        change debug.
    """
    global _configured  # noqa: PLW0603 - one process, one way to log
    _configured = (level, form)
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
        [structlog.processors.format_exc_info, in_plain_text, without_secrets, structlog.processors.JSONRenderer()]
        if as_json
        else [
            in_plain_text,
            without_secrets,
            _all_visible,
            structlog.dev.ConsoleRenderer(colors=out.isatty(), exception_formatter=_traceback),
        ]
    )
    handler = logging.StreamHandler(out)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*shared, structlog.stdlib.PositionalArgumentsFormatter()],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *ending],
        )
    )
    handler.addFilter(SeldomOfClients())
    _brief.ready = False
    if brief_start and level != "debug" and out.isatty():
        handler.addFilter(_brief)
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(threshold)
    for name in _TALKATIVE:
        logging.getLogger(name).setLevel(max(threshold, logging.WARNING))
    for name in _REPETITIVE:
        logger = logging.getLogger(name)
        logger.filters[:] = [RepeatFilter()]


def end_startup() -> None:
    """Ends a brief start."""
    _brief.ready = True


def configured() -> tuple[Level, Format]:
    """Returns this process's level and format, so that a child can use the same."""
    return _configured or ("info", "auto")
