"""The commands of ``muster admin`` and ``muster explain``; each calls the module that implements it."""

from __future__ import annotations

from pathlib import Path

from cyclopts import App

from muster_cli.flags import INSPECT, OPERATE, ReportFile
from muster_cli.operator_client import OperatorTarget

admin_app = App(
    name="admin",
    help="Operate Muster: list, pause and forget RMs, drain nodes, end applications, dump state (docs/admin.md).",
    group=OPERATE,
)
explain_app = App(
    name="explain", help="Explain why asks are pending, and how objects stand (docs/explain.md).", group=INSPECT
)
_OPERATOR = OperatorTarget()


@admin_app.command(name="rms")
def admin_rms(*, operator: OperatorTarget = _OPERATOR) -> int:
    """Lists the resource managers with state, streams and registration; --rm shows one in detail."""
    from muster_cli.admin import rms

    return rms(operator)


@admin_app.command(name="pause")
def admin_pause(*, reason: str = "", operator: OperatorTarget = _OPERATOR) -> int:
    """Pauses an RM: Muster accepts its requests but schedules nothing until it is resumed. Allocations keep running.

    :param reason: text for people, shown in explanations.
    """
    from muster_cli.admin import pause

    return pause(operator, reason)


@admin_app.command(name="resume")
def admin_resume(*, operator: OperatorTarget = _OPERATOR) -> int:
    """Resumes a paused RM and prints its state: a disconnected or stopped RM stays so."""
    from muster_cli.admin import resume

    return resume(operator)


@admin_app.command(name="forget")
def admin_forget(resource_manager: str, *, force: bool = False, operator: OperatorTarget = _OPERATOR) -> int:
    """Forgets a stopped RM: its nodes, applications and allocations end; its events and history stay.

    :param resource_manager: the RM's id.
    :param force: also forget an RM that is not stopped.
    """
    from muster_cli.admin import forget

    return forget(operator, resource_manager, force=force)


@admin_app.command(name="drain")
def admin_drain(node: str, *, partition: str = "", operator: OperatorTarget = _OPERATOR) -> int:
    """Drains a node: it gets no new allocations, and existing ones stay.

    :param node: the node's id.
    :param partition: [default]
    """
    from muster_cli.admin import drain

    return drain(operator, node, partition, schedulable=False)


@admin_app.command(name="undrain")
def admin_undrain(node: str, *, partition: str = "", operator: OperatorTarget = _OPERATOR) -> int:
    """Makes a drained node schedulable again.

    :param node: the node's id.
    :param partition: [default]
    """
    from muster_cli.admin import drain

    return drain(operator, node, partition, schedulable=True)


@admin_app.command(name="end-application")
def admin_end_application(
    application: str, *, partition: str = "", reason: str = "", operator: OperatorTarget = _OPERATOR
) -> int:
    """Ends an application: its asks go, and its RM ends its allocations. The RM must have declared that it can.

    :param application: the application's id.
    :param partition: [default]
    :param reason: text for people; the RM gets it, and explanations show it.
    """
    from muster_cli.admin import end_application

    return end_application(operator, application, partition, reason)


@admin_app.command(name="dump")
def admin_dump(*, output: ReportFile = None, operator: OperatorTarget = _OPERATOR) -> int:
    """Writes the whole state of an RM as JSON; secrets are masked.

    :param output: a file, which appears when it is complete [standard output].
    """
    from muster_cli.admin import dump

    return dump(operator, output if output is not None else Path("-"))


@admin_app.command(name="validate")
def admin_validate(file: Path, *, operator: OperatorTarget = _OPERATOR) -> int:
    """Prints what `muster config apply` would do now with a queue configuration (YAML); changes nothing.

    Exit code 0: the configuration would be accepted.

    :param file: the queue configuration.
    """
    from muster_cli.admin import validate

    return validate(operator, file)


@explain_app.command(name="ask")
def explain_ask(
    application: str, key: str, *, partition: str = "", when: bool = False, operator: OperatorTarget = _OPERATOR
) -> int:
    """Explains why an ask is pending.

    :param application: the application's id.
    :param key: the ask's allocationKey.
    :param partition: [default]
    :param when: instead: estimate when it will start, by simulations of the present state (docs/what-if-when.md).
    """
    from muster_cli.explain_output import explain
    from muster_cli.explain_output import when as when_it_starts

    if when:
        return when_it_starts(operator, application, key, partition)
    return explain(operator, lambda admin, rm: admin.explain_ask(rm, application, key, **operator.at(partition)))


@explain_app.command(name="application")
def explain_application(application: str, *, partition: str = "", operator: OperatorTarget = _OPERATOR) -> int:
    """Explains the state of an application and why its asks are pending.

    :param application: the application's id.
    :param partition: [default]
    """
    from muster_cli.explain_output import explain

    return explain(operator, lambda admin, rm: admin.explain_application(rm, application, **operator.at(partition)))


@explain_app.command(name="queue")
def explain_queue(queue: str, *, partition: str = "", operator: OperatorTarget = _OPERATOR) -> int:
    """Explains a queue's usage against its guarantee and max, and why its asks are pending.

    :param queue: the queue's path, such as root.default.
    :param partition: [default]
    """
    from muster_cli.explain_output import explain

    return explain(operator, lambda admin, rm: admin.explain_queue(rm, queue, **operator.at(partition)))


@explain_app.command(name="node")
def explain_node(node: str, *, partition: str = "", operator: OperatorTarget = _OPERATOR) -> int:
    """Explains whether a node gets allocations, which ones it has, and which pending asks would fit.

    :param node: the node's id.
    :param partition: [default]
    """
    from muster_cli.explain_output import explain

    return explain(operator, lambda admin, rm: admin.explain_node(rm, node, **operator.at(partition)))


@explain_app.command(name="preemption")
def explain_preemption(name: str, key: str = "", *, partition: str = "", operator: OperatorTarget = _OPERATOR) -> int:
    """Explains why an allocation was preempted, and for which ask.

    :param name: the application's id; without KEY: the allocationKey or UUID.
    :param key: the allocationKey.
    :param partition: [default]
    """
    from muster_cli.explain_output import explain

    application, key = (name, key) if key else ("", name)
    return explain(operator, lambda admin, rm: admin.explain_preemption(rm, application, key, **operator.at(partition)))
