"""Which informers and event handlers there are, by name (seed 004: RegisterEventHandler, GetEventHandler).

Two ways to be known: an entry point of an installed package (groups ``muster.informers``, ``muster.event_handlers``;
Muster's own are registered in the same way), or :func:`register_informer`, :func:`register_event_handler` from a
program that embeds the scheduler. The same name twice is fatal, whichever way it came, and the error names both
origins: nobody wants to find out by the results which of two handlers ran. Only what is asked for is imported.

Unlike the seed, an unknown name is an error, not "no handler": a scheduler without the handler that was asked for would
over-commit quietly.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from importlib.metadata import EntryPoint, PackageNotFoundError, entry_points, packages_distributions, version
from pathlib import Path
from typing import Any, cast

from muster_scheduler.external.contract import (
    EVENT_HANDLERS_GROUP,
    INFORMERS_GROUP,
    EventHandler,
    ExternalCache,
    HandlerContext,
    HandlerFactory,
    InformerContext,
    InformerFactory,
    ListWatch,
    Options,
)
from muster_scheduler.external.errors import (
    HandlerSettingsWrong,
    InformerSettingsWrong,
    NameTwice,
    SettingsWrong,
    UnknownName,
)

# A configuration is written by people.
CONFIG_BYTES_MAX = 1024 * 1024

Points = Callable[[], Iterable[EntryPoint]]


class Registry:
    """The factories of one group.

    :param what: for messages: "informer", "event handler".
    :param wrong: raised when a factory cannot be loaded, or fails in a way of its own.
    :param methods: what a made thing must have.
    :param points: gives the group's entry points; None: those that are installed.
    """

    def __init__(
        self, what: str, group: str, wrong: type[SettingsWrong], methods: Iterable[str], points: Points | None = None
    ) -> None:
        self.what = what
        self.group = group
        self._wrong = wrong
        self._methods = tuple(methods)
        self._points: Points = points if points is not None else lambda: entry_points(group=group)
        self._registered: dict[str, Callable[..., Any]] = {}

    def register(self, name: str, factory: Callable[..., Any]) -> None:
        """Makes a factory of this process known. Raises NameTwice: so is another one, here or in a package."""
        if name in self._registered:
            raise NameTwice(self.what, name, (_origin_of(self._registered[name]), _origin_of(factory)))
        self._registered[name] = factory
        try:
            self._known()
        except NameTwice:
            del self._registered[name]
            raise

    def is_registered(self, name: str) -> bool:
        """Whether it is of this process, and of no package."""
        return name in self._registered

    def names(self) -> list[str]:
        """All that are known, sorted. Raises NameTwice."""
        return sorted(self._known())

    def origin(self, name: str) -> str:
        """Where the one of that name comes from, for people. Raises UnknownName, NameTwice."""
        return _origin_of(self._found(name))

    def make(self, name: str, *arguments: object) -> Any:
        """What the factory of that name makes of the arguments.

        Raises UnknownName, NameTwice; SettingsWrong as the factory raises it, and for a factory that cannot be loaded,
        fails in another way or makes something else: then with its origin. (Without the words of the failure, which may
        repeat a secret of the options; its type and place say enough.)
        """
        found = self._found(name)
        origin = _origin_of(found)
        try:
            factory = found.load() if isinstance(found, EntryPoint) else found
        except Exception as error:
            raise self._wrong(
                f"{self.what} {name!r} of {origin} cannot be loaded: {type(error).__name__}: {error}"
            ) from error
        if not callable(factory):
            raise self._wrong(f"{self.what} {name!r} of {origin} is no factory: {type(factory).__name__}")
        try:
            made = factory(*arguments)
        except SettingsWrong:
            raise
        except Exception as error:
            raise self._wrong(
                f"{self.what} {name!r} of {origin} failed: {type(error).__name__} at {_place_of(error)}"
            ) from None
        if missing := [method for method in self._methods if not callable(getattr(made, method, None))]:
            raise self._wrong(
                f"{self.what} {name!r} of {origin} made a {type(made).__name__} without {', '.join(missing)}"
            )
        return made

    def _found(self, name: str) -> EntryPoint | Callable[..., Any]:
        known = self._known()
        if name not in known:
            raise UnknownName(self.what, name, sorted(known))
        return known[name]

    def _known(self) -> dict[str, EntryPoint | Callable[..., Any]]:
        """By name. (Asked when something is looked up, at start; so nothing is kept.)"""
        known: dict[str, EntryPoint | Callable[..., Any]] = dict(self._registered)
        for point in self._points():
            other = known.setdefault(point.name, point)
            # (One package that is found twice on the path is not two.)
            if other is not point and _origin_of(other) != _origin_of(point):
                raise NameTwice(self.what, point.name, (_origin_of(other), _origin_of(point)))
        return known


def _methods_of(protocol: type) -> list[str]:
    return [name for name, value in vars(protocol).items() if callable(value) and not name.startswith("_")]


informers = Registry("informer", INFORMERS_GROUP, InformerSettingsWrong, _methods_of(ListWatch))
event_handlers = Registry("event handler", EVENT_HANDLERS_GROUP, HandlerSettingsWrong, _methods_of(EventHandler))


def register_informer(name: str, factory: InformerFactory) -> None:
    """Makes an informer of this process known. Raises NameTwice."""
    informers.register(name, factory)


def register_event_handler(name: str, factory: HandlerFactory) -> None:
    """Makes an event handler of this process known (seed 004: RegisterEventHandler). Raises NameTwice."""
    event_handlers.register(name, factory)


def get_informer(kind: str, options: Options, context: InformerContext, registry: Registry = informers) -> ListWatch:
    """The source of an informer of that kind. Raises UnknownName, NameTwice, InformerSettingsWrong."""
    return cast("ListWatch", registry.make(kind, options, context))


def get_event_handler(
    name: str,
    config_path: Path | str | None,
    cache: ExternalCache,
    context: HandlerContext,
    registry: Registry = event_handlers,
) -> EventHandler:
    """The event handler of that name, for one informer (seed 004: GetEventHandler).

    :param config_path: a file that the factory gets the bytes of; None or "": there is none.
    :raises UnknownName, NameTwice: by its name.
    :raises HandlerSettingsWrong: the file cannot be read, or the handler cannot use it.
    """
    return cast("EventHandler", registry.make(name, cache, read_config(config_path), context))


def read_config(path: Path | str | None) -> bytes | None:
    """What ``--config-path`` names. Raises HandlerSettingsWrong."""
    if path is None or path == "":
        return None
    try:
        with Path(path).open("rb") as file:
            config = file.read(CONFIG_BYTES_MAX + 1)
    except OSError as error:
        raise HandlerSettingsWrong(f"config_path: {str(path)!r}: {error.strerror or error}") from None
    if len(config) > CONFIG_BYTES_MAX:
        raise HandlerSettingsWrong(f"config_path: {str(path)!r}: expected at most {CONFIG_BYTES_MAX} bytes")
    return config


def _origin_of(found: EntryPoint | Callable[..., Any]) -> str:
    """Distribution and module."""
    if isinstance(found, EntryPoint):
        package = f"{found.dist.name} {found.dist.version}" if found.dist is not None else "an unknown package"
        return f"{package} ({found.value})"
    module = getattr(found, "__module__", None) or type(found).__module__
    name = getattr(found, "__qualname__", None) or type(found).__qualname__
    for package in _packages().get(module.partition(".")[0], ()):
        try:
            return f"{package} {version(package)} ({module}:{name})"
        except PackageNotFoundError:
            continue
    return f"this process ({module}:{name})"


@lru_cache(maxsize=1)
def _packages() -> Mapping[str, Sequence[str]]:
    """Which packages a module can be of. (Looking takes a second where many are installed.)"""
    return packages_distributions()


def _place_of(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    return f"{frames[-1].filename}:{frames[-1].lineno}" if frames else "an unknown place"
