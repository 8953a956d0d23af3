"""The errors of informers and event handlers.

* ExternalError
  x InvalidExternalSettings  the configuration cannot be used: the process does not start
    - UnknownName            no informer or handler of that name is installed; names the installed ones
    - DuplicateName          two packages have an informer or handler of the same name; names both origins
    - InformerSettingsWrong
    - HandlerSettingsWrong
  x SourceError
    - SourceUnavailable      the source does not answer now: it is asked again
    - SourceSaysNonsense     the answer as a whole cannot be read: it is ignored, and the source asked again
    - CursorExpired          a watch cannot continue from its cursor: the source lists again
  x BadDocument              one document cannot be read: names the field, its value, and the expectation
  x NotTaken                 a handler does not accept such an object, as configured
  x HandlerExited            the process of a handler has ended: the handler is asked again when it is back
  x HandlerTimeout           a handler did not answer in time about an object of the RM
  x NotSynced                informers had not synced in time; names each with its last error
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence


class ExternalError(Exception):
    """The base of all errors here."""


class InvalidExternalSettings(ExternalError):
    """The configuration cannot be used.

    :ivar problems: one sentence for each problem.
    """

    def __init__(self, *problems: str) -> None:
        super().__init__("; ".join(problems))
        self.problems = problems


class UnknownName(InvalidExternalSettings):
    """No informer or handler of that name is installed."""

    def __init__(self, subject: str, name: str, registered: Sequence[str]) -> None:
        super().__init__(
            f"{subject} {name!r} is not known, expected one of: {', '.join(registered) or 'none is installed'}"
        )


class DuplicateName(InvalidExternalSettings):
    """Two packages have an informer or handler of the same name."""

    def __init__(self, subject: str, name: str, origins: Sequence[str]) -> None:
        super().__init__(f"{subject} {name!r} was registered twice: by {' and by '.join(origins)}")


class InformerSettingsWrong(InvalidExternalSettings):
    """An informer's table cannot be used."""


class HandlerSettingsWrong(InvalidExternalSettings):
    """A handler's configuration cannot be used."""


class SourceError(ExternalError):
    """The source did not answer as it should."""


class SourceUnavailable(SourceError):
    """The source does not answer now; it may later."""


class SourceSaysNonsense(SourceError):
    """The answer as a whole cannot be read."""


class CursorExpired(SourceError):
    """A watch cannot continue from its cursor."""


class BadDocument(ExternalError):
    """One document cannot be read.

    :ivar kind: the object's kind, and ``object_id`` its id, if they could be read; else "".
    :ivar node_id: the node that an allocation names, if it could be read; else "".
    """

    def __init__(self, message: str, kind: str = "", object_id: str = "", node_id: str = "") -> None:
        super().__init__(message)
        self.kind, self.object_id, self.node_id = kind, object_id, node_id


class NotTaken(ExternalError):
    """A handler does not accept such an object; names the kind, and what was expected."""


class HandlerExited(ExternalError):
    """The process of a handler has ended."""


class HandlerTimeout(ExternalError):
    """A handler did not answer in time; names the handler and how long the caller waited."""


class NotSynced(ExternalError):
    """Informers had not synced in time.

    :ivar informers: by name, the last error of each informer, or what it was doing.
    """

    def __init__(self, timeout_s: float, informers: Mapping[str, str]) -> None:
        named = "; ".join(f"{name}: {reason}" for name, reason in informers.items())
        super().__init__(f"informers that had not synced after {timeout_s:g} s: {named}")
        self.informers = dict(informers)
