"""Everything in one answer, in YuniKorn's shape (``/debug/fullstatedump``).

History servers begin with this dump. The dump is rendered in pieces like every large answer. The view only reads and
does not ask the RM; ``muster admin dump`` does (docs/admin.md).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any

from muster_core.partition import Partition
from muster_rest.shapes.events import EventStreamDao
from muster_runtime.go_json import go_json
from muster_state.state_folder import RmEntry

from muster_view.rest import dao, json_render, placement_rules, process_debug
from muster_view.rest.history import CountHistory
from muster_view.rest.json_render import Pieces

_NO_CALLBACK = {"empty": "Resource Manager did not register callback"}
_ASK_ELSEWHERE = {"empty": "Resource Manager is not asked here: muster admin dump asks it"}


def pieces(
    state: RmEntry | None,
    history: CountHistory,
    config: dict[str, Any],
    now_ns: int,
    streams: Sequence[EventStreamDao] = (),
) -> Pieces:
    """The dump of one RM; None: there is no RM, and every list is empty.

    :param config: from :func:`queue_config_dao.to_dao`.
    :param streams: the event streams that are open.
    """
    partitions = list(state.core.partitions.values()) if state is not None else []
    rm_id = state.info.rm_id if state is not None else ""
    infos = [dao.partition_info(state.info, partition) for partition in partitions] if state is not None else []
    clusters = [dao.cluster(state.info, partition) for partition in partitions] if state is not None else []
    rules = [{"partition": partition.name, "rules": placement_rules.rules(partition)} for partition in partitions]
    trees = (
        iter(json_render.queue(partition, partition.root, tree=True, shown_partition=partition.name))
        for partition in partitions
    )
    # Both lists are of one moment: neither has a sample that is taken while the dump is sent.
    application_history, container_history = history.applications(rm_id), history.containers(rm_id)
    callback = state is not None and state.info.callbacks.connected and state.info.callbacks.state_dump
    yield b'{"timestamp":%d' % now_ns
    yield _field(b"partitions", infos)
    yield from _list(b"applications", _joined(_applications(partition) for partition in partitions))
    yield _field(b"appHistory", application_history)
    yield from _list(b"nodes", _joined(_nodes(partition) for partition in partitions))
    yield _field(b"clusterInfo", clusters)
    yield _field(b"containerHistory", container_history)
    yield from _list(b"queues", _joined(trees))
    yield _field(b"rmDiagnostics", _ASK_ELSEWHERE if callback else _NO_CALLBACK)
    yield _field(b"logLevel", process_debug.level())
    yield _field(b"config", config)
    yield _field(b"placementRules", rules)
    yield _field(b"eventStreams", list(streams))
    yield b"}\n"


def _field(name: bytes, value: object) -> bytes:
    """A further field; an empty one is left out, as in all answers."""
    return b',"%b":%b' % (name, go_json(value)) if value else b""


def _list(name: bytes, parts: Pieces) -> Pieces:
    """The same for a field that is rendered in pieces."""
    written = False
    for piece in parts:
        if piece and not written:
            yield b',"%b":[' % name
            written = True
        yield piece
    if written:
        yield b"]"


def _applications(partition: Partition) -> Pieces:
    apps = chain(partition.apps.values(), partition.rejected.values())
    live = (app for app in list(apps) if not app.gone)
    return _joined(json_render.application(partition, app) for app in live)


def _nodes(partition: Partition) -> Pieces:
    live = (node for node in list(partition.nodes.values()) if not node.gone)
    yield b'{"partitionName":%b' % go_json(partition.name)
    if partition.nodes:
        yield b',"nodesInfo":['
        yield from _joined(json_render.node(partition, node) for node in live)
        yield b"]"
    yield b"}"


def _joined(parts: Iterator[Pieces]) -> Pieces:
    """Several fields with commas between; a field without content gets no comma."""
    written = False
    for part in parts:
        begun = False
        for piece in part:
            if written and not begun:
                yield b","
            begun = written = True
            yield piece
