"""Limits of users and groups in a queue configuration: one queue's list, and the lists down the tree.

Messages keep YuniKorn's texts where its documentation has them, including their spelling.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from muster_core.config import acl
from muster_core.config.acl import EVERYBODY
from muster_core.config.queue_config import LimitConfig, QueueConfig, quantity_text

from muster_queue_config.yaml_reader import YamlReader, place_of, truncate
from muster_queue_config.yaml_tree import Place

LIMIT_KEYS = frozenset({"groups", "limit", "maxapplications", "maxresources", "users"})

Kind = Literal["user", "group"]
_NAME_RULES = {"user": acl.USER_NAME, "group": acl.GROUP_NAME}


@dataclass(frozen=True, slots=True)
class ParsedLimit:
    """A limit, and the places of its parts.

    :ivar names: (kind, name, path, place) of each of its users and groups.
    """

    config: LimitConfig
    path: str
    place: Place
    names: tuple[tuple[Kind, str, str, Place], ...]


@dataclass(frozen=True, slots=True)
class _LimitBound:
    """The limit of a user or group from a queue on down: the least on the path."""

    resources: Mapping[str, int]
    applications: int


_Bounds = dict[tuple[Kind, str], _LimitBound]


class LimitsReader:
    """Reads lists of limits through a reader."""

    def __init__(self, reader: YamlReader) -> None:
        self._reader = reader

    # ---- one list --------------------------------------------------------------------------------------------------

    def read(self, value: Any, path: str) -> tuple[ParsedLimit, ...]:
        """Reads one queue's limits. Reports problems to the reader; raises nothing."""
        limits: list[ParsedLimit] = []
        names: dict[Kind, set[str]] = {"user": set(), "group": set()}
        for item, where, position in self._reader.sequence(value, path):
            limit = self._entry(item, where, position)
            if limit is not None:
                self._names(limit, names)
                limits.append(limit)
        return tuple(limits)

    def _entry(self, item: Any, path: str, position: Place) -> ParsedLimit | None:
        reader = self._reader
        owner = reader.mapping(item, path, position, LIMIT_KEYS)
        if owner is None:
            return None
        users, groups = (reader.texts(owner, key, path) for key in ("users", "groups"))
        text = reader.text(owner, "limit", path)
        config = LimitConfig(
            tuple(name for name, _, _ in users),
            tuple(name for name, _, _ in groups),
            reader.count(owner, "maxapplications", path),
            reader.quantities(owner, "maxresources", path) or None,
            text,
        )
        if config.max_resources is not None and not any(config.max_resources.values()):
            reader.error(
                f"{path}.maxresources",
                place_of(owner, "maxresources", position),
                f"MaxResources should be greater than zero in limit {truncate(text)!r}: all resource types are zero",
            )
        elif config.max_resources is None and not config.max_applications:
            reader.error(
                path,
                position,
                f"invalid resource combination for limit {truncate(text)!r} all resource limits are null: "
                "expected maxresources, maxapplications, or both",
            )
        return ParsedLimit(
            config,
            path,
            position,
            (
                *(("user", name, where, name_place) for name, where, name_place in users),
                *(("group", name, where, name_place) for name, where, name_place in groups),
            ),
        )

    def _names(self, limit: ParsedLimit, names: dict[Kind, set[str]]) -> None:
        error = self._reader.error
        if not limit.names:
            error(
                limit.path, limit.place, f"empty user and group lists defined in limit {truncate(limit.config.text)!r}"
            )
        for kind, name, where, name_place in limit.names:
            names_of_kind = names[kind]
            if name != EVERYBODY and not _NAME_RULES[kind].match(name):
                error(where, name_place, f"invalid limit {kind} name {truncate(name)!r} in limit definition")
            elif name in names_of_kind:
                error(where, name_place, f"duplicated {kind} name {truncate(name)} , already existed")
            elif name != EVERYBODY and EVERYBODY in names_of_kind:
                error(
                    where, name_place, f"should not set no wildcard {kind} {truncate(name)} after wildcard {kind} limit"
                )
            elif kind == "group" and name == EVERYBODY and not names_of_kind:
                error(
                    where,
                    name_place,
                    "should not specify only one group limit that is using the wildcard. "
                    "There must be at least one limit with a group name defined before it",
                )
            names_of_kind.add(name)

    # ---- against the queue -----------------------------------------------------------------------------------------

    def check_against(self, limits: tuple[ParsedLimit, ...], maximum: Mapping[str, int], max_applications: int) -> None:
        """Checks that no limit is above its queue's own max (root has none) and maxapplications."""
        for limit in limits:
            text = truncate(limit.config.text)
            if max_applications and limit.config.max_applications > max_applications:
                self._reader.error(
                    f"{limit.path}.maxapplications",
                    limit.place,
                    f"invalid MaxApplications settings for limit {text!r} exceed current the queue MaxApplications: "
                    f"{limit.config.max_applications}, expected at most {max_applications}",
                )
            over = _over(limit.config.max_resources or {}, maximum)
            if over:
                self._reader.error(
                    f"{limit.path}.maxresources",
                    limit.place,
                    f"invalid MaxResources settings for limit {text!r} exeecd current the queue MaxResources: "
                    f"{_shown(limit.config.max_resources or {}, over)}, expected at most {_shown(maximum, over)}",
                )

    # ---- down the tree ---------------------------------------------------------------------------------------------

    def check_tree(self, root: QueueConfig, limits: Mapping[int, tuple[ParsedLimit, ...]]) -> None:
        """Checks that no limit of a user or group is above its limit in a queue further up.

        :param limits: of each queue that has some, by the queue's identity.
        """
        self._check_queue(root, root.name.lower(), [], limits)

    def _check_queue(
        self, queue: QueueConfig, path: str, above: list[_Bounds], limits: Mapping[int, tuple[ParsedLimit, ...]]
    ) -> None:
        own: _Bounds = {}
        for limit in limits.get(id(queue), ()):
            for kind, name, where, position in limit.names:
                own[kind, name] = self._bound(limit.config, kind, name, above, (path, where, position))
        bounds = [own, *above] if own else above
        for child in queue.queues:
            self._check_queue(child, f"{path}.{child.name.lower()}", bounds, limits)

    def _bound(
        self, limit: LimitConfig, kind: Kind, name: str, above: list[_Bounds], at: tuple[str, str, Place]
    ) -> _LimitBound:
        queue, where, position = at
        resources, applications = limit.max_resources or {}, limit.max_applications
        bound = next(_held(above, (kind, name)), None)
        ancestor = "immediate or ancestor parent {}"
        if bound is None and name != EVERYBODY:
            bound = next(_held(above, (kind, EVERYBODY)), None)
            ancestor = "wildcard {} of immediate or ancestor parent queue:"
        if bound is None:
            return _LimitBound(resources, applications)
        over = _over(resources, bound.resources)
        if over:
            self._reader.error(
                where,
                position,
                f"{kind} {truncate(name)} max resource {_shown(resources, over)} of queue {truncate(queue)} is "
                "greater than "
                f"{ancestor.format('maximum resource')} {_shown(bound.resources, over)}",
            )
        if bound.applications and not 0 < applications <= bound.applications:
            self._reader.error(
                where,
                position,
                f"{kind} {truncate(name)} max applications {applications or '0 (any number)'} of queue "
                f"{truncate(queue)} is "
                f"greater than {ancestor.format('max applications')} {bound.applications}",
            )
        least = {
            resource_type: min(bound.resources.get(resource_type, most), most)
            for resource_type, most in {**bound.resources, **resources}.items()
        }
        return _LimitBound(least, min((n for n in (applications, bound.applications) if n), default=0))


def _held(above: list[_Bounds], key: tuple[Kind, str]) -> Iterator[_LimitBound]:
    return (bounds[key] for bounds in above if key in bounds)


def _over(requested: Mapping[str, int], most: Mapping[str, int]) -> list[str]:
    """Returns the types of which ``requested`` exceeds ``most``; a type without a maximum is unlimited."""
    return [name for name, value in requested.items() if name in most and value > most[name]]


def _shown(quantities: Mapping[str, int], names: list[str]) -> str:
    return "{" + ", ".join(f"{truncate(name)}: {quantity_text(name, quantities[name])}" for name in names[:3]) + "}"
