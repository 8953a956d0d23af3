"""Everything in one answer, in the real core's shape (core-features §2.19: ``/debug/fullstatedump``).

What history servers begin with. Put together in pieces as every large answer is. The RM itself is not asked here, the
view only reads: ``muster admin dump`` does (docs/admin.md).
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Any

from muster_service.go_json import go_json

from muster_scheduler.core.partition import Partition
from muster_scheduler.follower import RmState
from muster_scheduler.view import dao, inside, placement_rules, render
from muster_scheduler.view.history import History
from muster_scheduler.view.render import Pieces

_NO_CALLBACK = {"empty": "Resource Manager did not register callback"}
_ASK_ELSEWHERE = {"empty": "Resource Manager is not asked here: muster admin dump asks it"}


def pieces(state: RmState | None, history: History, config: dict[str, Any], now_ns: int) -> Pieces:
    """The dump of one RM; None: of nobody, with everything empty.

    :param config: as :func:`configured.shown` has it.
    """
    partitions = list(state.core.partitions.values()) if state is not None else []
    rm_id = state.info.rm_id if state is not None else ""
    infos = [dao.partition_info(state.info, each) for each in partitions] if state is not None else []
    clusters = [dao.cluster(state.info, each) for each in partitions] if state is not None else []
    rules = [{"partition": each.name, "rules": placement_rules.rules(each)} for each in partitions]
    trees = (iter(render.queue(each, each.root, tree=True, shown_partition=each.name)) for each in partitions)
    callback = state is not None and state.info.callbacks.connected and state.info.callbacks.state_dump
    yield b'{"timestamp":%d' % now_ns
    yield _field(b"partitions", infos)
    yield from _list(b"applications", _joined(_applications(each) for each in partitions))
    yield _field(b"appHistory", history.applications(rm_id))
    yield from _list(b"nodes", _joined(_nodes(each) for each in partitions))
    yield _field(b"clusterInfo", clusters)
    yield _field(b"containerHistory", history.containers(rm_id))
    yield from _list(b"queues", _joined(trees))
    yield _field(b"rmDiagnostics", _ASK_ELSEWHERE if callback else _NO_CALLBACK)
    yield _field(b"logLevel", inside.level())
    yield _field(b"config", config)
    yield _field(b"placementRules", rules)
    yield b"}\n"


def _field(name: bytes, value: object) -> bytes:
    """One behind the first; what is empty is left out, as in all answers."""
    return b',"%b":%b' % (name, go_json(value)) if value else b""


def _list(name: bytes, parts: Pieces) -> Pieces:
    """The same, of what is put together in pieces."""
    written = False
    for piece in parts:
        if piece and not written:
            yield b',"%b":[' % name
            written = True
        yield piece
    if written:
        yield b"]"


def _applications(partition: Partition) -> Pieces:
    found = chain(partition.apps.values(), partition.rejected.values())
    live = (app for app in list(found) if not app.gone)
    return _joined(render.application(partition, app) for app in live)


def _nodes(partition: Partition) -> Pieces:
    live = (node for node in list(partition.nodes.values()) if not node.gone)
    yield b'{"partitionName":%b' % go_json(partition.name)
    if partition.nodes:
        yield b',"nodesInfo":['
        yield from _joined(render.node(partition, node) for node in live)
        yield b"]"
    yield b"}"


def _joined(parts: Iterator[Pieces]) -> Pieces:
    """Several, with commas between; what turns out to be nothing has none."""
    written = False
    for each in parts:
        begun = False
        for piece in each:
            if written and not begun:
                yield b","
            begun = written = True
            yield piece
