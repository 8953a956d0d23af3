"""Ends an application for an operator, if its RM declared that it can (decision 0235)."""

from __future__ import annotations

from collections.abc import Mapping

from muster_core.config.queue_config import INDEPENDENT, partition_name
from muster_core.model.commands import EndApplication
from muster_core.model.outcome import Outcome
from muster_core.model.states import AppState
from muster_core.model.steps import Steps
from muster_core.requests.application_requests import may_end
from muster_proto.muster.bus.v1 import envelope_pb2 as pb
from muster_runtime.secrets import masked_text
from muster_state.state_folder import RmEntry, RmInfo

# A key of a registration's extraConfig.
KEY = "muster.applications.end"
_TRUE, _FALSE = "true", "false"
_SHOWN_MAX = 256  # characters of an id, or of a value in a warning
ENDED = "ended by an operator"


def declared(extra: Mapping[str, str]) -> bool:
    """Whether the RM declared that it ends the allocations of an application that an operator ends."""
    return extra.get(KEY, "").strip().lower() == _TRUE


def problems_of(extra: Mapping[str, str]) -> list[pb.ConfigProblem]:
    """Returns a warning if the key's value has no effect."""
    if extra.get(KEY, _FALSE).strip().lower() in (_TRUE, _FALSE):
        return []
    message = (
        f"{masked_text(extra[KEY])[:_SHOWN_MAX]!r}, expected {_TRUE} or {_FALSE}: operators cannot end applications"
    )
    return [pb.ConfigProblem(severity=pb.ConfigProblem.WARNING, path=f"extraConfig[{KEY}]", message=message)]


def end(
    state: RmEntry, command: pb.AdminCommand.EndApplication, result: pb.AdminResult, now_ns: int, out: Outcome
) -> Steps:
    """Ends the application, in steps, or says in the result why not."""
    name, app_id = partition_name(command.partition, state.info.rm_id), command.application_id
    partition = state.core.partitions.get(name)
    app = partition.live_application(app_id) if partition is not None else None
    if partition is None or app is None:
        result.code = pb.AdminResult.NOT_FOUND
        missing = f"application {app_id[:_SHOWN_MAX]!r} does not exist in partition {name}, or has ended"
        result.message = missing if partition is not None else f"partition {name[:_SHOWN_MAX]!r} does not exist"
        return
    if problem := _problem(state.info, app.app_id, app.source):
        result.code, result.message = pb.AdminResult.NOT_POSSIBLE, problem
        return
    if may_end(app):
        reason = masked_text(command.reason)
        message = f"{ENDED}: {reason}" if reason else ENDED
        yield from state.core.apply_in_steps(EndApplication(name, app_id, message), now_ns, out)
        result.changed = True
    result.state = app.state.value
    result.allocations = len(app.allocations) if app.state is AppState.FAILING else 0


def _problem(info: RmInfo, app_id: str, source: str) -> str:
    if app_id == INDEPENDENT:
        return f"{app_id} is the scheduler's own application, for independent allocations: it cannot be ended"
    if source:
        return f"application {app_id} was brought by source {source}, which alone ends it"
    if not declared(info.extra_config):
        return (
            f"rm_id {info.rm_id!r} did not declare that an operator may end its applications: expected "
            f"extraConfig[{KEY}] = {_TRUE} in its registration or in an update of its configuration"
        )
    return ""
