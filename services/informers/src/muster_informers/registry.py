"""The informers and event handlers by name (the event handler framework: RegisterEventHandler, GetEventHandler).

A package registers one by an entry point (groups ``muster.informers``, ``muster.event_handlers``; Muster's own are
registered in the same way). A program that embeds the scheduler calls :func:`register_informer` or
:func:`register_event_handler`. A name that is registered twice is fatal, and the error names both origins; else only
the results would show which of two handlers ran. Only requested names are imported.

Unlike in the event handler framework, an unknown name is an error, not "no handler": without the requested handler a
scheduler would silently over-commit.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from importlib.metadata import EntryPoint, PackageNotFoundError, entry_points, packages_distributions, version
from pathlib import Path
from typing import Any, cast

from muster_core.external.errors import (
    DuplicateName,
    HandlerSettingsWrong,
    InformerSettingsWrong,
    InvalidExternalSettings,
    UnknownName,
)
from muster_runtime.optional_packages import with_install_hint

from muster_informers.contract import (
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

# People write configurations; a larger file is a mistake.
CONFIG_BYTES_MAX = 1024 * 1024

Points = Callable[[], Iterable[EntryPoint]]


class Registry:
    """The factories of one group.

    :param noun: for messages: "informer", "event handler".
    :param wrong: raised when a factory cannot be loaded, or fails in a way of its own.
    :param methods: the methods that a made object must have.
    :param points: gives the group's entry points; None: the installed ones.
    """

    def __init__(
        self,
        noun: str,
        group: str,
        wrong: type[InvalidExternalSettings],
        methods: Iterable[str],
        points: Points | None = None,
    ) -> None:
        self.noun = noun
        self.group = group
        self._wrong = wrong
        self._methods = tuple(methods)
        self._points: Points = points if points is not None else lambda: _installed(group)
        self._registered: dict[str, Callable[..., Any]] = {}

    def register(self, name: str, factory: Callable[..., Any]) -> None:
        """Registers a factory of this process. Raises DuplicateName: the name is taken, here or in a package."""
        if name in self._registered:
            raise DuplicateName(self.noun, name, (_origin_of(self._registered[name]), _origin_of(factory)))
        self._registered[name] = factory
        try:
            self._all_by_name()
        except DuplicateName:
            del self._registered[name]
            raise

    def is_registered(self, name: str) -> bool:
        """Tells whether the name was registered in this process."""
        return name in self._registered

    def names(self) -> list[str]:
        """Returns all names, sorted. Raises DuplicateName."""
        return sorted(self._all_by_name())

    def origin(self, name: str) -> str:
        """The origin of the one with that name, for messages. Raises UnknownName, DuplicateName."""
        return _origin_of(self._get(name))

    def make(self, name: str, *arguments: object) -> Any:
        """Calls the factory of that name with the arguments and returns its result.

        Raises UnknownName, DuplicateName; InvalidExternalSettings as the factory raises it, and for a factory that
        cannot be loaded, fails in another way or makes another object: then with its origin. (Not with the text of the
        failure, which may quote a secret of the options, but with its type and place.)
        """
        registered = self._get(name)
        origin = _origin_of(registered)
        try:
            factory = registered.load() if isinstance(registered, EntryPoint) else registered
        except Exception as error:
            raise self._wrong(
                f"{self.noun} {name!r} of {origin} cannot be loaded: {type(error).__name__}: "
                f"{with_install_hint(error) if isinstance(error, ImportError) else error}"
            ) from error
        if not callable(factory):
            raise self._wrong(f"{self.noun} {name!r} of {origin} is no factory: {type(factory).__name__}")
        try:
            product = factory(*arguments)
        except InvalidExternalSettings:
            raise
        except Exception as error:
            raise self._wrong(
                f"{self.noun} {name!r} of {origin} failed: {type(error).__name__} at {_code_location(error)}"
            ) from None
        if missing := [method for method in self._methods if not callable(getattr(product, method, None))]:
            raise self._wrong(
                f"{self.noun} {name!r} of {origin} made a {type(product).__name__} without {', '.join(missing)}"
            )
        return product

    def _get(self, name: str) -> EntryPoint | Callable[..., Any]:
        registered = self._all_by_name()
        if name not in registered:
            raise UnknownName(self.noun, name, sorted(registered))
        return registered[name]

    def _all_by_name(self) -> dict[str, EntryPoint | Callable[..., Any]]:
        """The entry points by name."""
        registered: dict[str, EntryPoint | Callable[..., Any]] = dict(self._registered)
        for point in self._points():
            existing = registered.setdefault(point.name, point)
            # A package that is found twice on the path is no conflict.
            if existing is not point and _origin_of(existing) != _origin_of(point):
                raise DuplicateName(self.noun, point.name, (_origin_of(existing), _origin_of(point)))
        return registered


def _methods_of(protocol: type) -> list[str]:
    return [name for name, value in vars(protocol).items() if callable(value) and not name.startswith("_")]


informers = Registry("informer", INFORMERS_GROUP, InformerSettingsWrong, _methods_of(ListWatch))
event_handlers = Registry("event handler", EVENT_HANDLERS_GROUP, HandlerSettingsWrong, _methods_of(EventHandler))


def register_informer(name: str, factory: InformerFactory) -> None:
    """Registers an informer of this process. Raises DuplicateName."""
    informers.register(name, factory)


def register_event_handler(name: str, factory: HandlerFactory) -> None:
    """Registers an event handler (the event handler framework: RegisterEventHandler). Raises DuplicateName."""
    event_handlers.register(name, factory)


def get_informer(kind: str, options: Options, context: InformerContext, registry: Registry = informers) -> ListWatch:
    """Makes the source of an informer of that kind. Raises UnknownName, DuplicateName, InformerSettingsWrong."""
    return cast("ListWatch", registry.make(kind, options, context))


def get_event_handler(
    name: str,
    config_path: Path | str | None,
    cache: ExternalCache,
    context: HandlerContext,
    registry: Registry = event_handlers,
) -> EventHandler:
    """Makes the event handler of that name for one informer (the event handler framework: GetEventHandler).

    :param config_path: a file whose bytes the factory gets; None or "": there is none.
    :raises UnknownName, DuplicateName: by its name.
    :raises HandlerSettingsWrong: the file cannot be read, or the handler cannot use it.
    """
    return cast("EventHandler", registry.make(name, cache, read_config(config_path), context))


def read_config(path: Path | str | None) -> bytes | None:
    """Reads the file of ``--config-path``. Raises HandlerSettingsWrong."""
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


def _origin_of(registered: EntryPoint | Callable[..., Any]) -> str:
    """Returns distribution and module."""
    if isinstance(registered, EntryPoint):
        package = (
            f"{registered.dist.name} {registered.dist.version}" if registered.dist is not None else "an unknown package"
        )
        return f"{package} ({registered.value})"
    module = getattr(registered, "__module__", None) or type(registered).__module__
    name = getattr(registered, "__qualname__", None) or type(registered).__qualname__
    for package in _packages().get(module.partition(".")[0], ()):
        try:
            return f"{package} {version(package)} ({module}:{name})"
        except PackageNotFoundError:
            continue
    return f"this process ({module}:{name})"


def _installed(group: str) -> tuple[EntryPoint, ...]:
    return _entry_points_on(tuple(sys.path), group)


@lru_cache(maxsize=8)
def _entry_points_on(path: tuple[str, ...], group: str) -> tuple[EntryPoint, ...]:
    """The entry points of a group, read once: a search takes 20 ms, and each take-over of a partition needs some.

    :param path: where modules are searched now; another one may have other packages.
    """
    return tuple(entry_points(group=group))


@lru_cache(maxsize=1)
def _packages() -> Mapping[str, Sequence[str]]:
    """The packages that a module can belong to. (The search takes a second if many are installed.)"""
    return packages_distributions()


def _code_location(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    return f"{frames[-1].filename}:{frames[-1].lineno}" if frames else "an unknown place"
