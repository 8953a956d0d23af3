"""Releases without an application id (previous generation): the key alone names an ask, the UUID alone an allocation.

The release of an ask then concerns every application that has an ask with that key at this moment.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from muster_core.config.queue_config import partition_name
from muster_core.model.application import Application
from muster_core.model.commands import ReleaseItem
from muster_core.partition import Partition


class UnqualifiedReleases:
    """Finds the applications that one message's releases concern. Goes through all applications at most once for each
    message.

    Each release sees the effect of the earlier releases in the same message.

    :param releases: all releases of the message, in order.
    :ivar are_some: whether the message has such a release.
    """

    def __init__(self, releases: Sequence[ReleaseItem], partitions: Mapping[str, Partition]) -> None:
        self._partitions = partitions
        unnamed = [item for item in releases if _is_unnamed(item)]
        self.are_some = bool(unnamed)
        self._keys = {item.key for item in unnamed if item.ask_only and item.key}
        self._uuids = {item.uuid for item in unnamed if not item.ask_only}
        # By (partition, key or UUID, whether it is an ask's key): the applications that have it, or had it before.
        self._candidates: dict[tuple[str, str, bool], dict[Application, None]] = {}
        if unnamed:
            self._read()

    def named(self, item: ReleaseItem) -> Sequence[ReleaseItem]:
        """Returns one item for each application that the item concerns. An item that names its application, or that
        matches no application, stays as it is.
        """
        if not _is_unnamed(item):
            return (item,)
        name, text = partition_name(item.partition), item.key if item.ask_only else item.uuid
        candidates = self._candidates.get((name, text, item.ask_only))
        if not candidates:
            return (item,)
        apps = self._partitions[name].apps
        owners = [
            app.app_id
            for app in sorted(candidates, key=lambda app: app.submission)
            if apps.get(app.app_id) is app and text in (app.asks if item.ask_only else app.by_uuid)
        ]
        return [item._replace(app_id=app_id) for app_id in owners] or (item,)

    def gained(self, partition: Partition, app: Application, key: str) -> None:
        """Notes that the application may have a new ask with that key, or a new allocation of that ask with a UUID."""
        if key in self._keys and key in app.asks:
            self._add(partition.name, key, True, app)
        for allocation in app.allocations_of(key) if self._uuids else ():
            if allocation.uuid in self._uuids:
                self._add(partition.name, allocation.uuid, False, app)

    def _read(self) -> None:
        for name, partition in self._partitions.items():
            for app in partition.apps.values():
                for key in sorted(self._keys & app.asks.keys()):
                    self._add(name, key, True, app)
                for uuid in sorted(self._uuids & app.by_uuid.keys()):
                    self._add(name, uuid, False, app)

    def _add(self, name: str, text: str, is_ask: bool, app: Application) -> None:
        self._candidates.setdefault((name, text, is_ask), {})[app] = None


def _is_unnamed(item: ReleaseItem) -> bool:
    return not item.app_id and (item.ask_only or bool(item.uuid))
