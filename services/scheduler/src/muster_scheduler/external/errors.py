"""What can go wrong with informers and event handlers.

* ExternalError
  x SettingsWrong               what was configured cannot be used: the process does not start
    - UnknownName               no informer or handler of that name is installed; says which are
    - NameTwice                 two packages have one of the same name; names both origins
    - InformerSettingsWrong
    - HandlerSettingsWrong
  x SourceError
    - SourceUnavailable         it may pass: asked again
    - SourceSaysNonsense        the answer as a whole cannot be read: asked again, nothing of it is taken
    - CursorExpired             a watch cannot go on where it was: listed again
  x BadDocument                 one document cannot be read: field, value, what was expected
  x NotTaken                    a handler does not take such an object, as the configuration wants it
  x NotSynced                   informers had not synced in time; names them, each with its last error
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence


class ExternalError(Exception):
    """The root of the tree."""


class SettingsWrong(ExternalError):
    """What was configured cannot be used.

    :ivar problems: one sentence each.
    """

    def __init__(self, *problems: str) -> None:
        super().__init__("; ".join(problems))
        self.problems = problems


class UnknownName(SettingsWrong):
    """No informer or handler of that name is installed."""

    def __init__(self, what: str, name: str, known: Sequence[str]) -> None:
        super().__init__(f"{what} {name!r} is not known, expected one of: {', '.join(known) or 'none is installed'}")


class NameTwice(SettingsWrong):
    """Two packages have an informer or handler of the same name."""

    def __init__(self, what: str, name: str, origins: Sequence[str]) -> None:
        super().__init__(f"{what} {name!r} was registered twice: by {' and by '.join(origins)}")


class InformerSettingsWrong(SettingsWrong):
    """An informer's table cannot be used."""


class HandlerSettingsWrong(SettingsWrong):
    """A handler's configuration cannot be used."""


class SourceError(ExternalError):
    """The source did not answer as it should."""


class SourceUnavailable(SourceError):
    """It may pass."""


class SourceSaysNonsense(SourceError):
    """The answer as a whole cannot be read."""


class CursorExpired(SourceError):
    """A watch cannot go on where it was."""


class BadDocument(ExternalError):
    """One document cannot be read.

    :ivar kind: and ``object_id``: as far as they could be read, else "".
    :ivar node_id: of an allocation the node that it names, if that could be read; else "".
    """

    def __init__(self, message: str, kind: str = "", object_id: str = "", node_id: str = "") -> None:
        super().__init__(message)
        self.kind, self.object_id, self.node_id = kind, object_id, node_id


class NotTaken(ExternalError):
    """A handler does not take such an object: the kind, and what was expected."""


class NotSynced(ExternalError):
    """Informers had not synced in time.

    :ivar informers: by name, the last error of each, or what it was doing.
    """

    def __init__(self, timeout_s: float, informers: Mapping[str, str]) -> None:
        named = "; ".join(f"{name}: {why}" for name, why in informers.items())
        super().__init__(f"informers that had not synced after {timeout_s:g} s: {named}")
        self.informers = dict(informers)
