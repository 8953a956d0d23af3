"""The RM's requests about applications."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from muster_si.tags import is_forced

from muster_core.applications import admission
from muster_core.config.queue_config import INDEPENDENT, partition_name
from muster_core.model.application import Application
from muster_core.model.commands import AppItem
from muster_core.model.outcome import (
    AcceptedApplication,
    EventChange,
    EventDetail,
    EventType,
    Outcome,
    RejectedApplication,
)
from muster_core.model.states import AppState
from muster_core.model.steps import Steps
from muster_core.partition import Partition
from muster_core.queues import placement_rules
from muster_core.requests.item_validation import announce, begin


class ApplicationRequests:
    """Adds and removes applications of the RM.

    :param partitions: the core's partitions, by name.
    :param submission: makes the next submission number.
    """

    def __init__(self, partitions: Mapping[str, Partition], submission: Callable[[], int]) -> None:
        self._partitions = partitions
        self._submission = submission

    def add(self, item: AppItem, out: Outcome, now_ns: int) -> None:
        reason = self._place(item, out, now_ns)
        if reason:
            partition = self._partitions.get(partition_name(item.partition))
            if partition is not None:
                partition.lifecycle.remember_rejected(item, reason, self._submission(), out, now_ns)
            out.facts.append(RejectedApplication(item.app_id, reason))
            out.add_event(
                EventType.APP, EventChange.REMOVE, EventDetail.APP_REJECT, item.app_id, message=reason, now_ns=now_ns
            )

    def _place(self, item: AppItem, out: Outcome, now_ns: int) -> str:
        name = partition_name(item.partition)
        partition = self._partitions.get(name)
        if partition is None:
            return f"partition {item.partition!r} does not exist"
        live = partition.live_application(item.app_id)
        if live is not None:
            by = f" (source {live.source} brought it)" if live.source else ""
            return f"adding application {item.app_id} to partition {name}, but application already existed{by}"
        if item.app_id == INDEPENDENT:
            return f"{INDEPENDENT} is the scheduler's own application, for independent allocations: expected another id"
        # A fault rejects an ordinary application. A forced one is accepted differently, and an event says why.
        forced = is_forced(item.tags)
        reasons: list[str] = []
        if forced:
            item = admission.sanitize(item, reasons)
        elif problem := admission.owner_problem(item):
            return problem
        user, groups = admission.owner_of(item, reasons)
        if problem := admission.quota_problem(partition, self._partitions.values(), item, user, out, now_ns):
            return problem
        placeholder_ask, problem = admission.gang_of(item)
        if problem and not forced:
            return problem
        reasons += [problem] if problem else []
        path, problem = placement_rules.resolve_queue(partition, item.queue, user, groups, item.tags)
        if not path:
            return f"failed to place application {item.app_id}: {problem}"
        reasons += [problem] if problem else []
        leaf = admission.leaf_for(partition, path, item, placeholder_ask, user, groups)
        if isinstance(leaf, str):
            if not forced:
                return leaf
            reasons.append(leaf)
            leaf = admission.leaf_for_recovery(partition)
            placeholder_ask = admission.countable(partition, placeholder_ask)
        queue, created, quota = leaf
        app = Application(partition.types, item.app_id, queue, self._submission(), now_ns)
        app.requested_queue = item.queue
        app.user, app.groups_of_user = user, groups
        app.tags = dict(item.tags)
        app.execution_timeout_ms = item.execution_timeout_ms
        app.placeholder_ask, app.gang_style = placeholder_ask, item.gang_style
        begin(partition, app, out, now_ns)
        if placeholder_ask and any(placeholder_ask.values()):
            partition.gangs.get_or_create(app)
        for new in created:
            partition.queue_tree.announce_queue(new, out, now_ns)
        if quota:
            partition.queue_tree.limit_dynamic_queue(queue, *quota, out, now_ns)
        partition.gangs.review_timeout(app, out, now_ns)
        out.facts.append(AcceptedApplication(app.app_id))
        reason = f"taken into {queue.path}, since it must be: {'; '.join(reasons)}" if reasons else ""
        announce(app, reason, out, now_ns)
        return ""

    def remove(self, partition_text: str, app_id: str, out: Outcome, now_ns: int) -> Steps:
        partition = self._partitions.get(partition_name(partition_text))
        app = partition.live_application(app_id) if partition is not None else None
        if app is not None and app.independent:
            reason = f"{INDEPENDENT} is the scheduler's own application, for independent allocations: it ends with that"
            out.facts.append(RejectedApplication(app_id, reason))
        elif app is not None and app.source:
            reason = f"application {app_id} was brought by source {app.source}, which alone ends it"
            out.facts.append(RejectedApplication(app_id, reason))
        elif partition is not None and app is not None:
            yield from partition.lifecycle.remove_in_steps(app, out, now_ns)

    def end(self, partition_text: str, app_id: str, message: str, out: Outcome, now_ns: int) -> Steps:
        """Fails an application, because an operator ends it."""
        partition = self._partitions.get(partition_name(partition_text))
        app = partition.live_application(app_id) if partition is not None else None
        if partition is not None and app is not None and may_end(app):
            yield from partition.lifecycle.fail(app, message, out, now_ns)


def may_end(app: Application) -> bool:
    """Whether an operator's end changes anything about a live application. (The scheduler's own, and those of external
    sources, end in other ways.)
    """
    return not app.independent and not app.source and app.state is not AppState.FAILING
