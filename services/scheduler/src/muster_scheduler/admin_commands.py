"""Operators' commands (proto AdminCommand). The scheduler answers each with an AdminResult in the same transaction.

If a command cannot be carried out, its answer gives the reason. The RM's streams carry only the command's consequences.
Only the RM's own dump takes time: the question goes to the RM's callback stream, and the result follows the RM's
answer. The waiting dumps are bounded in number and in time, and are not recorded: after a restart the operator must ask
again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import structlog
from muster_bus.log import OutRecord
from muster_core.config.queue_config import partition_name
from muster_core.model.commands import NodeAction, NodeItem, SetSchedulingEnabled, UpdateNodes
from muster_core.model.outcome import AcceptedNode, Outcome, RejectedNode
from muster_core.model.steps import Steps
from muster_proto.muster.bus.v1 import envelope_pb2 as pb
from muster_proto.muster.v1 import callbacks_pb2
from muster_proto.si.v1 import si_pb2 as si
from muster_queue_config.queue_yaml import checksum
from muster_runtime import event_settings, rm_status_text
from muster_runtime.secrets import masked_text
from muster_state.state_folder import PauseKind, RmEntry, RmInfo

from muster_scheduler import callback_ingest, end_application, generation, pauses
from muster_scheduler.config_validation import ConfigValidator, changes, event_warnings, too_large_with
from muster_scheduler.emit import Emitter

log = structlog.get_logger(__name__)

# Limit of the changes in an answer, so that it stays a small record; `muster config diff` shows all of them.
CHANGES_MAX = 1000
# Limits of one RM's waiting dumps. The caller has given up long before the oldest one is dropped.
DUMPS_WAITING_MAX = 8
DUMP_WAITS_NS = 60 * 1_000_000_000
# A record of the log holds 1 MiB.
DUMP_BYTES_MAX = 512 * 1024
# Commands that change nothing.
_READS = frozenset({"validate", "dump_rm_state"})
NO_CALLBACK = "Resource Manager did not register callback"
_SHOWN_MAX = 256


class AdminCommands:
    """Carries out commands. See the module's docstring.

    :param text_for: returns the text in place of the one that an RM sends, which may be empty, and its problems.
    :param member_of: returns the entry with which an RM with such a text is compared in its policy group.
    """

    def __init__(
        self,
        judge: ConfigValidator,
        text_for: Callable[[RmInfo, str], tuple[str, list[pb.ConfigProblem]]],
        member_of: Callable[[str, str], pb.PolicyGroupMember | None],
    ) -> None:
        self._judge, self._text_for, self._member_of = judge, text_for, member_of
        self._dumps: dict[str, dict[str, int]] = {}

    def execute(
        self,
        state: RmEntry,
        envelope: pb.RequestEnvelope,
        emitter: Emitter,
        now_ns: int,
        out: Outcome,
        outputs: list[OutRecord],
    ) -> Steps:
        """Carries out one command, in steps. Its answer is in ``outputs``, or follows the RM's answer. Raises
        DecodeError.

        :param envelope: its body is the command.
        :param out: the content of the RM's transaction.
        """
        request_id, command = envelope.request_id, envelope.admin
        result = pb.AdminResult(request_id=request_id)
        match command.WhichOneof("command"):
            case "pause":
                result.changed = _hold(state, True, command.pause, emitter, now_ns, out, outputs)
            case "resume":
                result.changed = _hold(state, False, "", emitter, now_ns, out, outputs)
            case "drain_node":
                _drain(state, command.drain_node, result, now_ns, out)
            case "end_application":
                yield from end_application.end(state, command.end_application, result, now_ns, out)
            case "validate":
                judged = envelope.judged if envelope.HasField("judged") else None
                self._validate(state, si.UpdateConfigurationRequest.FromString(command.validate), judged, result)
            case "dump_rm_state":
                if self._ask_for_dump(state, request_id, result, emitter, now_ns, outputs):
                    return
            case _:
                result.code = pb.AdminResult.NOT_POSSIBLE
                result.message = "this scheduler does not know the command: it is older than the gateway"
        is_change = result.code == pb.AdminResult.OK and command.WhichOneof("command") not in _READS
        if is_change and out:  # the answer has the stamp of the outcome that follows
            emitter.expect_outcome()
        elif is_change:  # readers must know that they have passed a command that changed nothing, too
            outputs.append(emitter.rm_record(state.core.next_submission))
        outputs.append(emitter.admin_result(result, is_change=is_change))

    def on_dumps(
        self,
        rm_id: str,
        answers: Iterable[callbacks_pb2.StateDumpAnswer],
        emitter: Emitter,
        outputs: list[OutRecord],
    ) -> None:
        """Takes an RM's dumps. Ignores an answer for which no command waits."""
        waiting = self._dumps.get(rm_id, {})
        for answer in answers:
            if waiting.pop(answer.id, None) is None:
                continue
            result = pb.AdminResult(request_id=answer.id)
            size = len(answer.json.encode())
            if answer.error or size > DUMP_BYTES_MAX:
                result.code = pb.AdminResult.NOT_POSSIBLE
                too_large = f"its dump has {size:,} bytes, expected at most {DUMP_BYTES_MAX:,}"
                result.message = (
                    f"the resource manager says: {answer.error[:_SHOWN_MAX]}" if answer.error else too_large
                )
            else:
                result.json = answer.json
            outputs.append(emitter.admin_result(result))
        if not waiting:
            self._dumps.pop(rm_id, None)

    def on_callback_lost(self, rm_id: str, emitter: Emitter, outputs: list[OutRecord]) -> None:
        """Answers all waiting dumps with an error, because the RM's callback stream ended, or the RM registered
        again.
        """
        for request_id in self._dumps.pop(rm_id, {}):
            result = pb.AdminResult(request_id=request_id, code=pb.AdminResult.NOT_POSSIBLE)
            result.message = "the resource manager's callback stream ended before it answered"
            outputs.append(emitter.admin_result(result))

    def _validate(
        self,
        state: RmEntry,
        update: si.UpdateConfigurationRequest,
        judged: pb.JudgedConfiguration | None,
        result: pb.AdminResult,
    ) -> None:
        """Judges a configuration update without applying it, not even its extra configuration."""
        text, text_problems = self._text_for(state.info, update.config)
        config, _, problems = self._judge.validate(text, judged, state.info.rm_id)
        problems += text_problems
        if too_large := too_large_with(state.info, text, update.extraConfig):
            problems.append(too_large)
        problems += generation.problems_of(update.extraConfig) + callback_ingest.problems_of(update.extraConfig)
        problems += end_application.problems_of(update.extraConfig)
        problems += event_warnings(event_settings.merged(state.info.extra_config, update.extraConfig)[1])
        if any(problem.severity == pb.ConfigProblem.ERROR for problem in problems):
            config = None
        if config is not None and checksum(text) != checksum(state.info.config):
            for obstacle in state.core.conflicts(config):
                problems.append(pb.ConfigProblem(severity=pb.ConfigProblem.ERROR, message=obstacle))
                config = None
            if config is not None:
                result.changes.extend(changes(state.core.config, config)[:CHANGES_MAX])
        result.accepted = config is not None
        result.problems.extend(problems)
        if config is not None and (member := self._member_of(text, state.info.policy_group)) is not None:
            result.policy_group.CopyFrom(member)

    def _ask_for_dump(
        self,
        state: RmEntry,
        request_id: str,
        result: pb.AdminResult,
        emitter: Emitter,
        now_ns: int,
        outputs: list[OutRecord],
    ) -> bool:
        """Sends the question for a dump. Returns whether it did; otherwise the result has the reason."""
        info = state.info
        result.code = pb.AdminResult.NOT_POSSIBLE
        if not info.callbacks.connected or not info.callbacks.state_dump:
            result.message = NO_CALLBACK
            return False
        waiting = self._dumps.setdefault(info.rm_id, {})
        for old in [dump_id for dump_id, asked_ns in waiting.items() if now_ns - asked_ns >= DUMP_WAITS_NS]:
            del waiting[old]
        if len(waiting) >= DUMPS_WAITING_MAX:
            result.message = f"{len(waiting)} dumps of the resource manager are waited for already: try again"
            return False
        waiting[request_id] = now_ns
        question = callbacks_pb2.StateDumpQuestion(id=request_id)
        outputs.append(emitter.callback(callbacks_pb2.ToResourceManager(state_dumps=[question])))
        # Records the sequence number that the question took.
        outputs.append(emitter.rm_record(state.core.next_submission))
        return True


def _hold(
    state: RmEntry, paused: bool, reason: str, emitter: Emitter, now_ns: int, out: Outcome, outputs: list[OutRecord]
) -> bool:
    """Pauses or resumes an RM. Returns whether that changed anything. A second pause keeps the first one's reason."""
    info = state.info
    if info.paused == paused:
        return False
    lasted = not paused and pauses.end(info, PauseKind.OPERATOR, info.paused_ns, now_ns, info.paused_reason)
    info.paused, info.paused_reason, info.paused_ns = paused, masked_text(reason), now_ns if paused else 0
    state.core.apply(SetSchedulingEnabled(info.decides), now_ns, out)
    outputs.append(emitter.rm_record(state.core.next_submission))
    if lasted:
        outputs.append(emitter.registration_record())
    log.info("rm paused" if paused else "rm resumed", rm=info.rm_id, reason=reason)
    return True


def _drain(
    state: RmEntry, command: pb.AdminCommand.DrainNode, result: pb.AdminResult, now_ns: int, out: Outcome
) -> None:
    name = partition_name(command.partition, state.info.rm_id)
    partition = state.core.partitions.get(name)
    node = partition.nodes.get(command.node_id) if partition is not None else None
    if partition is None or node is None:
        result.code = pb.AdminResult.NOT_FOUND
        result.message = (
            f"partition {name[:_SHOWN_MAX]!r} does not exist"
            if partition is None
            else f"node {command.node_id[:_SHOWN_MAX]!r} does not exist in partition {name}"
        )
        return
    result.allocations = len(node.allocations)
    # The states that external sources report for the node are separate. This command neither sets nor lifts them.
    report = partition.node_lives.report_of(node)
    if (report is None or report.schedulable) == command.schedulable:
        if command.schedulable and not node.schedulable:
            result.code = pb.AdminResult.NOT_POSSIBLE
            result.message = (
                f"node {node.node_id} is not drained by an operator or the RM: it takes no new allocations because "
                f"of the statements of {', '.join(node.sources)}"
            )
        return
    action = NodeAction.DRAIN_TO_SCHEDULABLE if command.schedulable else NodeAction.DRAIN_NODE
    already = len(out.facts)
    state.core.apply(UpdateNodes((NodeItem(command.node_id, action, partition=name, by_operator=True),)), now_ns, out)
    # The RM did not ask, so it gets no answer. (It gets the event, and the new allocations of its asks.)
    out.facts[already:] = [fact for fact in out.facts[already:] if not isinstance(fact, AcceptedNode | RejectedNode)]
    result.changed = True


def never_registered(rm_id: str, result: pb.AdminResult) -> None:
    """Answers a command about an RM that was never there."""
    result.code = pb.AdminResult.NOT_FOUND
    result.message = f"rm_id {rm_id[:_SHOWN_MAX]!r}: no such resource manager was ever registered"


def may_forget(info: RmInfo, now_ns: int, result: pb.AdminResult, *, force: bool) -> bool:
    """Tells whether an RM may be forgotten. If not, the result says why."""
    if info.life == rm_status_text.STOPPED or force:
        return True
    result.code = pb.AdminResult.NOT_POSSIBLE
    result.message = (
        f"rm_id {info.rm_id[:_SHOWN_MAX]!r} is {info.life}{rm_status_text.format_ago(info.life_ns, now_ns)}, expected "
        f"{rm_status_text.STOPPED}: stop it first, or say that it is to be forgotten all the same (force)"
    )
    return False
