"""The handler ``two-level``: takes only another framework's offers (the event handler framework: two-level scheduling).

In two-level scheduling a framework with a master of its own offers parts of nodes. Muster may use only these offers, so
the handler refuses all other objects: a node's whole size would count beside its offers. The core manages the states of
an offer (used, idle, returned, revoked); this handler only sets the durations if the framework does not.

The settings are in the file of ``--config-path`` (YAML; at its top, or in a table ``two-level``), or in the informer's
``handler_…`` options, which win:

=============  ========  ===========================================================================================
key            default   means
=============  ========  ===========================================================================================
``idle``       never     an offer that nothing needs for so long is given back; for offers that do not say it
``grace``      30s       how long what runs on a revoked offer may go on; likewise
=============  ========  ===========================================================================================

Both are a text (``idle: 2m``), or a number of seconds under ``idle_s``, ``grace_s``. An offer with 0 has no value of
its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NoReturn

from muster_core.external.errors import BadDocument, HandlerSettingsWrong, NotTaken
from muster_core.external.model import (
    ExternalAllocation,
    ExternalApplication,
    ExternalKind,
    ExternalNode,
    ExternalObject,
    ExternalOffer,
    ExternalPool,
    ExternalQueue,
    kind_of,
)
from muster_queue_config.yaml_reader import YamlReader
from muster_queue_config.yaml_tree import Mapping as YamlMapping
from muster_queue_config.yaml_tree import Scalar, read_tree

from muster_informers.contract import ExternalCache, HandlerContext
from muster_informers.documents import read_durations
from muster_informers.handlers.base import BaseEventHandler

TABLE = "two-level"
SECOND_NS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class TwoLevelSettings:
    """Durations for offers that have none."""

    idle_ns: int = 0
    grace_ns: int = 30 * SECOND_NS


class TwoLevelEventHandler(BaseEventHandler):
    """Puts offers into the cache; refuses everything else (NotTaken)."""

    def __init__(self, cache: ExternalCache, settings: TwoLevelSettings) -> None:
        self.cache = cache
        self.settings = settings

    def add_offer(self, offer: ExternalOffer, *, initial: bool) -> None:
        self._put(offer)

    def update_offer(self, old: ExternalOffer, new: ExternalOffer) -> None:
        self._put(new)

    def delete_offer(self, offer: ExternalOffer) -> None:
        self.cache.delete(ExternalKind.OFFER, offer.offer_id)

    def add_node(self, node: ExternalNode, *, initial: bool) -> None:
        self._refuse(node)

    def add_allocation(self, allocation: ExternalAllocation, *, initial: bool) -> None:
        self._refuse(allocation)

    def add_queue(self, queue: ExternalQueue, *, initial: bool) -> None:
        self._refuse(queue)

    def add_application(self, application: ExternalApplication, *, initial: bool) -> None:
        self._refuse(application)

    def add_pool(self, pool: ExternalPool, *, initial: bool) -> None:
        self._refuse(pool)

    def _put(self, offer: ExternalOffer) -> None:
        idle_ns, grace_ns = offer.idle_ns or self.settings.idle_ns, offer.grace_ns or self.settings.grace_ns
        self.cache.put(replace(offer, idle_ns=idle_ns, grace_ns=grace_ns))

    def _refuse(self, obj: ExternalObject) -> NoReturn:
        kind = kind_of(obj).value
        raise NotTaken(f"kind: {kind!r}, expected 'offer': the handler 'two-level' uses offers only")


def make_handler(cache: ExternalCache, config: bytes | None, context: HandlerContext) -> TwoLevelEventHandler:
    """The factory (entry point). Raises HandlerSettingsWrong."""
    settings = TwoLevelSettings()
    if config is not None:
        settings = _with(settings, _read(config), "config_path: ")
    return TwoLevelEventHandler(cache, _with(settings, context.options, "handler_"))


def _read(config: bytes) -> dict[str, object]:
    """Returns the file's keys with plain values. Raises HandlerSettingsWrong."""
    reader = YamlReader()
    try:
        document = read_tree(config.decode(), reader.unreadable)
    except UnicodeDecodeError:
        raise HandlerSettingsWrong("config_path: the file is not UTF-8 text, expected YAML") from None
    if isinstance(document, YamlMapping) and TABLE in document:
        document = document[TABLE]
    is_empty = document is None or (isinstance(document, Scalar) and document.value is None)
    if not is_empty and not reader.problems and not isinstance(document, YamlMapping):
        raise HandlerSettingsWrong("config_path: expected a mapping with keys among idle, idle_s, grace, grace_s")
    if reader.problems:
        first = reader.problems[0]
        raise HandlerSettingsWrong(f"config_path: line {first.line}, column {first.column}: {first.message}")
    if not isinstance(document, YamlMapping):
        return {}
    return {name: node.value if isinstance(node, Scalar) else [] for name, node in document.items()}


def _with(settings: TwoLevelSettings, durations: Mapping[str, object], prefix: str) -> TwoLevelSettings:
    try:
        return replace(settings, **read_durations(durations, ("idle", "grace")))
    except BadDocument as error:
        raise HandlerSettingsWrong(f"{prefix}{error}") from None
