"""The ``muster`` command. Each command is a few lines here and calls the module that implements it."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import App, Parameter
from muster_client.access import AFTER_VARIABLE, AccessWrong
from muster_runtime import logs, optional_packages
from muster_runtime.terminal import drop_output, give_up_output, guard_tracebacks, print_lines, write_data
from muster_si.positions import AFTER_HEADER

from muster_cli import contexts, numbers
from muster_cli.audit_flags import AuditSelection
from muster_cli.config_commands import config_app
from muster_cli.context_positions import POSITIONS
from muster_cli.errors import CommandError, UsageError
from muster_cli.events_flags import EventSelection
from muster_cli.flags import (
    DEFAULT_GATEWAY,
    DEFAULT_HTTP,
    HISTORY,
    INSPECT,
    NO_ACCESS_FLAGS,
    OPERATE,
    RUN,
    AccessFlags,
    GatewayAddress,
    HttpAddress,
    ReportFile,
    RmId,
    SettingsFlags,
)
from muster_cli.history.commands import history_app
from muster_cli.operator_commands import admin_app, explain_app
from muster_cli.probe import ADDRESS_VARIABLE, DEFAULT_ADDRESS, TIMEOUT_S
from muster_cli.reachability import check_reachable
from muster_cli.simulation_commands import simulate, what_if


def _default(value: object) -> str | None:
    """What the help shows of a default: nothing where a flag is off or empty."""
    return str(value) if value not in ((), "", False, None) else None


app = App(
    name="muster",
    version=lambda: f"muster {version('muster')}",
    help="A networked resource scheduler: requests over gRPC, every decision on a durable log.",
    default_parameter=Parameter(negative=(), show_default=_default),
)
topics_app = App(name="topics", help="Create, check and list the topics of the log.", group=OPERATE)
app.command(topics_app)
app.command(config_app)
app.command(contexts.context_app)
events_app = App(name="events", help="Read past events and watch new ones (docs/events-grpc.md).", group=INSPECT)
app.command(admin_app)
app.command(events_app)
app.command(explain_app)
history_app.group = HISTORY
app.command(history_app)
app.command(simulate, group=HISTORY)
app.command(what_if, group=HISTORY)


_DISK_FULL = (errno.ENOSPC, errno.EDQUOT)
_COMMON = SettingsFlags()
_EVENTS = EventSelection()
_AUDIT = AuditSelection()


@app.command(group=RUN)
def up(
    *,
    data_dir: Path,
    config: Path | None = None,
    grpc_address: str | None = None,
    http_address: str | None = None,
    event_handler: str | None = None,
    config_path: Path | None = None,
    common: SettingsFlags = _COMMON,
) -> int:
    """Runs gateway, scheduler, view and event publisher with one command, on an embedded log.

    State, history and event ids survive restarts and `kill -9`.

    :param data_dir: directory of the log, the sessions and the history; created if absent.
    :param config: queue configuration (YAML) of RMs that register without one.
    :param grpc_address: where SI clients connect [127.0.0.1:9090].
    :param http_address: the REST front [127.0.0.1:9080].
    :param event_handler: what becomes of objects that informers bring (docs/external.md) [default].
    :param config_path: configuration file of the event handler, handed to it as it is.
    """
    from muster_cli import bootstrap

    flags = [
        ("gateway.grpc_address", "--grpc-address", grpc_address),
        *_http(http_address),
        *_external(event_handler, config_path),
    ]
    return bootstrap.up(data_dir, config, common.settings, common.set, flags)


@app.command(group=RUN)
def gateway(
    *, grpc_address: str | None = None, http_address: str | None = None, common: SettingsFlags = _COMMON
) -> int:
    """Runs the gateway: the scheduler interface over gRPC, and the HTTP front.

    :param grpc_address: where SI clients connect [127.0.0.1:9090].
    :param http_address: the REST front [127.0.0.1:9080].
    """
    from muster_cli import bootstrap

    flags = [("gateway.grpc_address", "--grpc-address", grpc_address), *_http(http_address)]
    return bootstrap.run_service("gateway", common.settings, common.set, flags)


@app.command(group=RUN)
def scheduler(
    *,
    config: Path | None = None,
    http_address: str | None = None,
    event_handler: str | None = None,
    config_path: Path | None = None,
    common: SettingsFlags = _COMMON,
) -> int:
    """Runs the scheduler: it reads requests from the log and writes responses, events and states to it.

    :param config: queue configuration (YAML) of RMs that register without one.
    :param http_address: /metrics and /health [127.0.0.1:9083].
    :param event_handler: what becomes of objects that informers bring (docs/external.md) [default].
    :param config_path: configuration file of the event handler, handed to it as it is.
    """
    from muster_cli import bootstrap

    flags = [("scheduler.http_address", "--http-address", http_address), *_external(event_handler, config_path)]
    return bootstrap.run_service("scheduler", common.settings, common.set, flags, config)


@app.command(group=RUN)
def view(*, http_address: str | None = None, common: SettingsFlags = _COMMON) -> int:
    """Runs the view: it follows the state on the log and answers REST.

    :param http_address: address of REST [127.0.0.1:9081].
    """
    from muster_cli import bootstrap

    flags = [("view.http_address", "--http-address", http_address)]
    return bootstrap.run_service("view", common.settings, common.set, flags)


@app.command(group=RUN)
def event_publisher(*, http_address: str | None = None, common: SettingsFlags = _COMMON) -> int:
    """Runs the event publisher: events over REST and streams, history in Parquet and PostgreSQL.

    :param http_address: address of REST [127.0.0.1:9082].
    """
    from muster_cli import bootstrap

    flags = [("publisher.http_address", "--http-address", http_address)]
    return bootstrap.run_service("event-publisher", common.settings, common.set, flags)


@app.command(group=RUN)
def derive(*, http_address: str | None = None, common: SettingsFlags = _COMMON) -> int:
    """Runs the Faust application: a topic for each kind of event, and usage in windows (docs/usage.md).

    :param http_address: /metrics and /health [127.0.0.1:9084].
    """
    from muster_cli import bootstrap

    flags = [("derive.http_address", "--http-address", http_address)]
    return bootstrap.run_service("derive", common.settings, common.set, flags)


@app.command(group=RUN)
def replay_trace(
    trace: Path | None = None,
    *,
    gateway: GatewayAddress = DEFAULT_GATEWAY,
    http: HttpAddress = DEFAULT_HTTP,
    rm_id: str = "openb",
    chunk: numbers.MessageItems = 100,
    asks_per_s: numbers.Rate = 0.0,
    timeout_s: numbers.TimeoutS = 120.0,
    json: ReportFile = None,
    keep: bool = False,
    flags: AccessFlags = NO_ACCESS_FLAGS,
) -> int:
    """Replays a cluster's trace through a gateway and accounts for every task.

    :param trace: directory with nodes.csv.gz, pods.csv.gz and queues.yaml [openb, which comes with Muster].
    :param gateway: gRPC address of the gateway.
    :param http: host:port or URL of the REST front, for utilisation, reasons and events.
    :param rm_id: the RM to register as.
    :param chunk: items per message.
    :param asks_per_s: asks per second; 0: as fast as the gateway accepts them.
    :param timeout_s: for all tasks to be placed or to have a reason, from the last ask on.
    :param json: also write the report there, as JSON; "-": to standard output, instead of the tables.
    :param keep: stay connected afterwards, until interrupted. The replay's cluster is kept after its end, too: nothing
        moves in it, and Muster stops its RM after gateway.pause_timeout_s.
    """
    from muster_replay.replay import main_replay
    from muster_replay.trace import OPENB

    access = flags.access()
    check_reachable(gateway)
    check_reachable(http)
    logs.configure("warning", "auto")
    return main_replay(
        trace or OPENB,
        gateway,
        http,
        rm_id,
        chunk=chunk,
        asks_per_s=asks_per_s,
        timeout_s=timeout_s,
        json_file=json,
        keep=keep,
        access=access,
    )


@app.command(group=RUN)
def demo(
    trace: Path | None = None,
    *,
    data_dir: Path | None = None,
    live: bool = False,
    seed: numbers.Seed = 1,
    json: ReportFile = None,
    keep: bool = False,
    timeout_s: numbers.TimeoutS = 120.0,
) -> int:
    """Starts `muster up` in a new directory and replays a trace through it, or with --live a cluster that lives on.

    With --live users start tasks, gangs and urgent work until Ctrl-C, and a page shows it.

    :param trace: directory with nodes.csv.gz, pods.csv.gz and queues.yaml [openb, which comes with Muster].
    :param data_dir: directory of the log and history [a new temporary directory, which is not deleted].
    :param live: no trace, but a small cluster whose tasks come, run for a while and end, until Ctrl-C.
    :param seed: of what the users of --live do.
    :param json: also write the report there, as JSON; "-": to standard output, instead of the tables.
    :param keep: leave Muster running until interrupted.
    :param timeout_s: for all tasks to be placed or to have a reason, from the last ask on.
    """
    from muster_replay.demo import main_demo, main_live
    from muster_replay.trace import OPENB

    logs.configure("warning", "auto")
    if live:
        if trace is not None or json is not None or keep:
            raise UsageError("--live plays no trace and has no report: expected it without TRACE, --json and --keep")
        return main_live(data_dir=data_dir, seed=seed)
    return main_demo(trace or OPENB, data_dir=data_dir, json_file=json, keep=keep, timeout_s=timeout_s)


@app.command(group=INSPECT)
def health(
    address: Annotated[str, Parameter(env_var=ADDRESS_VARIABLE)] = DEFAULT_ADDRESS,
    *,
    process: Annotated[bool, Parameter(negative="")] = False,
    json: Annotated[bool, Parameter(negative="")] = False,
    timeout_s: numbers.TimeoutS = TIMEOUT_S,
    flags: AccessFlags = NO_ACCESS_FLAGS,
) -> int:
    """Shows how each part of Muster is, the worst first; exit code 1 if one has failed (docs/health.md).

    With a token, a gateway gives details.

    :param address: grpc://host:port or http://host:port (https://) of a gateway; of any other service with --process.
    :param process: only ask whether this one process is ready, as a container's health check does.
    :param json: print JSON.
    :param timeout_s: how long to wait for an answer.
    """
    if not process:
        from muster_cli.health import health as of_all

        return of_all(address, timeout_s, flags.access(), as_json=json)
    from muster_cli.probe import probe

    ready, text = probe(address, timeout_s, flags.access())
    print_lines(f"{address}: {text.strip()}")
    return 0 if ready else 1


@app.command(group=OPERATE)
def backup(backup_dir: Path, *, data_dir: Path | None = None, common: SettingsFlags = _COMMON) -> int:
    """Copies the log and the sessions of `muster up` to a new directory, also while it works (docs/backup.md).

    :param backup_dir: the new directory.
    :param data_dir: the directory of `muster up`.
    """
    from muster_cli import backup as of

    return of.backup(backup_dir, data_dir, common.settings, common.set)


@app.command(group=OPERATE)
def restore(
    backup_dir: Path,
    *,
    data_dir: Path | None = None,
    replace: Annotated[bool, Parameter(negative="")] = False,
    common: SettingsFlags = _COMMON,
) -> int:
    """Puts a backup into a data directory; Muster must not be running there (docs/backup.md).

    :param backup_dir: the directory that `muster backup` made.
    :param data_dir: the directory of `muster up`.
    :param replace: move the log and the sessions that are there aside.
    """
    from muster_cli import backup as of

    return of.restore(backup_dir, data_dir, replace, common.settings, common.set)


@app.command(group=OPERATE)
def verify(backup_dir: Path | None = None, *, data_dir: Path | None = None, common: SettingsFlags = _COMMON) -> int:
    """Checks a backup, a data directory or a log on Kafka, also while Muster works: checksums, order, and nothing lost.

    :param backup_dir: a backup; without it --data-dir is checked.
    :param data_dir: the directory of `muster up`; without it the log is on Kafka.
    """
    from muster_cli import backup as of

    return of.verify(backup_dir, data_dir, common.settings, common.set)


@app.command(group=OPERATE)
def repair(
    *,
    data_dir: Path | None = None,
    accept: Annotated[tuple[str, ...], Parameter(negative="")] = (),
    common: SettingsFlags = _COMMON,
) -> int:
    """Lists the parts of a log that are damaged or missing, and goes on without them; Muster must not be running there.

    The log is written anew without these parts, and the old files are moved aside; on Kafka the log is noted as it is
    (docs/backup.md).

    :param data_dir: the directory of `muster up`; without it the log is on Kafka.
    :param accept: the word of a part to go on without, as listed; all parts must be accepted.
    """
    from muster_cli import repair as of

    return of.repair(data_dir, accept, common.settings, common.set)


@app.command(group=OPERATE)
def migrate(
    *,
    data_dir: Path | None = None,
    to_data_dir: Path | None = None,
    to_settings: Path | None = None,
    to_set: Annotated[tuple[str, ...], Parameter(negative="")] = (),
    common: SettingsFlags = _COMMON,
) -> int:
    """Copies a log into a new one: from `muster up` to Kafka, or back; Muster must not be running (docs/growing.md).

    Ids, numbers, times and history are the same in the new log. If it is interrupted, the same command continues it.

    :param data_dir: the directory of `muster up` to copy; without it the settings name the log.
    :param to_data_dir: a directory for `muster up`, without a log.
    :param to_settings: TOML file with the settings of the new Muster.
    :param to_set: one setting of the new Muster as section.field=value; repeatable.
    """
    from muster_cli import migrate as migrating

    return migrating.migrate(data_dir, common.settings, common.set, to_data_dir, to_settings, to_set)


@app.command(group=INSPECT)
def top(
    *,
    gateway: GatewayAddress = DEFAULT_GATEWAY,
    rm: RmId = "",
    partition: str = "",
    queue: str = "",
    nodes: numbers.RowLimit = 10,
    interval: numbers.IntervalS = 1.0,
    once: Annotated[bool, Parameter(negative="")] = False,
    json: Annotated[bool, Parameter(negative="")] = False,
    flags: AccessFlags = NO_ACCESS_FLAGS,
) -> int:
    """Shows counts and rates, queues, the fullest nodes, and why asks are pending.

    On a terminal it refreshes until Ctrl-C; into a pipe it prints one text after the other.

    :param gateway: gRPC address of a gateway.
    :param rm: the RM's id; needed if several are registered.
    :param partition: [default]
    :param queue: only this queue and its descendants.
    :param nodes: number of nodes, the fullest first.
    :param interval: seconds between two snapshots, at least 0.1.
    :param once: print one snapshot and exit.
    :param json: print each snapshot as one line of JSON (docs/metrics.md).
    """
    from muster_cli.top import TopOptions
    from muster_cli.top import top as show

    return show(TopOptions(gateway, rm, partition, queue, nodes, interval, once, json, flags))


@app.command(group=INSPECT)
def get(
    kind: Literal["rms", "nodes", "queues", "applications", "allocations", "asks", "users", "groups"],
    names: tuple[str, ...] = (),
    /,
    *,
    http: HttpAddress = DEFAULT_HTTP,
    rm: RmId = "",
    partition: str = "default",
    state: str = "",
    where: Annotated[tuple[str, ...], Parameter(negative="")] = (),
    sort: Annotated[str, Parameter(allow_leading_hyphen=True)] = "",
    columns: str = "",
    output: Annotated[Literal["table", "wide", "name", "json", "yaml"], Parameter(name=("--output", "-o"))] = "table",
    watch: Annotated[bool, Parameter(name=("--watch", "-w"), negative="")] = False,
    interval: numbers.IntervalS = 1.0,
    timeout_s: numbers.TimeoutS = 15.0,
    flags: AccessFlags = NO_ACCESS_FLAGS,
) -> int:
    """Lists nodes, applications, queues, asks, allocations, users, groups or resource managers.

    With --watch a terminal shows all of them in place; a pipe gets what is new (+), other (~) or gone (-).

    :param kind: what to list.
    :param names: only these; an ask or an allocation is named by its key, or as APPLICATION/KEY.
    :param http: host:port or URL of a gateway's REST.
    :param rm: the RM's id [the only one].
    :param partition: the partition.
    :param state: of applications: active, completed, rejected or all [active]; all has what ended, too, from the
        history: also of nodes and queues.
    :param where: a condition on a column, such as queue=root.ml*, state!=Running, waiting>600; repeatable.
    :param sort: columns, the first one decides, such as queue,-vcore (downwards).
    :param columns: which columns, separated by commas [the usual ones; with -o wide all].
    :param output: the form.
    :param watch: go on until Ctrl-C.
    :param interval: seconds between two readings, at least 0.1.
    :param timeout_s: how long to wait for an answer.
    """
    from muster_cli.get.command import GetOptions
    from muster_cli.get.command import get as show

    return show(
        GetOptions(
            kind, names, http, rm, partition, state, where, sort, columns, output, watch, interval, timeout_s, flags
        )
    )


@events_app.command(name="watch")
def events_watch(
    *,
    wanted: EventSelection = _EVENTS,
    requests: Annotated[bool, Parameter(negative="")] = False,
    requests_only: Annotated[bool, Parameter(negative="")] = False,
) -> int:
    """Prints new events until Ctrl-C, each one once, even over restarts of gateway and publisher.

    Without --start, --since or --newest it begins with the next event.

    :param requests: also print the RM's notifications about asks, which have no id.
    :param requests_only: print only these.
    """
    from muster_cli.events import watch

    logs.configure("error", "auto")
    return watch(wanted, requests=requests, requests_only=requests_only)


@events_app.command(name="batch")
def events_batch(
    *, wanted: EventSelection = _EVENTS, count: numbers.Events = 1_000, timeout_s: numbers.TimeoutS = 15.0
) -> int:
    """Prints past events; without --start, --since or --newest it begins with the oldest one left.

    :param count: maximum number of events.
    :param timeout_s: how long to wait for each 1,000 of them.
    """
    from muster_cli.events import batch

    logs.configure("error", "auto")
    return batch(wanted, count, timeout_s)


@app.command(group=INSPECT)
def audit(*, wanted: AuditSelection = _AUDIT, common: SettingsFlags = _COMMON) -> int:
    """Shows who asked what of Muster, from where, and with which result (docs/security.md)."""
    from muster_cli.audit import show

    logs.configure("error", "auto")
    return show(wanted, common.settings, common.set)


@app.command(group=OPERATE, name="version")
def show_version(*, json: bool = False) -> int:
    """Shows the version of Muster, its form and its Python.

    :param json: print JSON.
    """
    from muster_cli.versions import show

    return show(as_json=json)


@app.command(group=OPERATE, name="completion")
def show_completion(shell: Literal["bash", "zsh", "fish"], /) -> int:
    """Prints the completion script for a shell (docs/command-line.md).

    :param shell: whose.
    """
    from muster_cli.completion import script

    write_data(script(app, shell))
    return 0


@topics_app.command(name="create")
def topics_create(*, common: SettingsFlags = _COMMON) -> int:
    """Creates missing topics and checks the others; changes no existing one."""
    from muster_cli import topics

    return topics.create(common.settings, common.set)


@topics_app.command(name="verify")
def topics_verify(*, common: SettingsFlags = _COMMON) -> int:
    """Checks that every topic exists with its configured settings, and lost no end on Kafka; changes nothing."""
    from muster_cli import topics

    return topics.verify(common.settings, common.set)


@topics_app.command(name="grow")
def topics_grow(
    partitions: numbers.Partitions, *, data_dir: Path | None = None, common: SettingsFlags = _COMMON
) -> int:
    """Moves the records of all RMs to more partitions, with Muster stopped; can be interrupted (docs/growing.md).

    :param partitions: the new number.
    :param data_dir: the directory of `muster up`; without it the log is on Kafka.
    """
    from muster_cli import migrate as migrating

    return migrating.grow(partitions, data_dir, common.settings, common.set)


@topics_app.command(name="describe")
def topics_describe(*, common: SettingsFlags = _COMMON) -> int:
    """Lists the topics with their settings, their partitions and offsets."""
    from muster_cli import topics

    return topics.describe(common.settings, common.set)


def _http(address: str | None) -> list[tuple[str, str, object]]:
    return [("gateway.http_address", "--http-address", address)]


def _external(event_handler: str | None, config_path: Path | None) -> list[tuple[str, str, object]]:
    return [
        ("scheduler.external.event_handler", "--event-handler", event_handler),
        ("scheduler.external.config_path", "--config-path", config_path),
    ]


def run(arguments: Sequence[str]) -> int:
    """Runs a command. Exit codes: 0 done, 1 failed, 2 invalid call."""
    from muster_cli.settings_loader import SettingsError

    try:
        if arguments[:1] != ["context"]:  # which mends a file that cannot be read
            contexts.apply(os.environ)
        result = _called(arguments)
    except CommandError as error:
        print_lines(f"muster: {error}", error=True)
        return error.exit_code
    except AccessWrong as error:
        print_lines(f"muster: {error}", error=True)
        return 2
    except SettingsError as error:
        for problem in error.problems:
            print_lines(f"muster: {problem}", error=True)
        return 2
    except ImportError as error:
        if not optional_packages.is_extra(error):
            raise
        print_lines(f"muster: {optional_packages.with_install_hint(error)}", error=True)
        return 2
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # the reader of the output is gone, such as `head`
        give_up_output()
        return 0
    except OSError as error:
        if error.errno not in _DISK_FULL:
            raise
        print_lines(f"muster: the output cannot be written: {error.strerror}", error=True)
        drop_output()
        return 1
    return result if isinstance(result, int) else 0


def _called(arguments: Sequence[str]) -> object:
    """Runs a command, once more without the position that its context kept if that is of another log."""
    try:
        return app(list(arguments), result_action="return_value")
    except UsageError as error:
        is_given = "--after" in arguments or AFTER_VARIABLE in os.environ
        if is_given or f"{AFTER_HEADER}: must" not in str(error) or not POSITIONS.forget():
            raise
        return app(list(arguments), result_action="return_value")


def main() -> None:
    """Runs the command of the process's arguments, and ends the process."""
    guard_tracebacks()
    sys.exit(run(sys.argv[1:]))
