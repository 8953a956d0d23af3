"""``muster history``: SQL over events, timelines of applications, usage over time (docs/history.md)."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import App, Parameter

from muster_cli import numbers
from muster_cli.errors import UsageError
from muster_cli.flags import SettingsFlags
from muster_cli.history.form import OutputFormat
from muster_cli.history.source import HistoryFlags

history_app = App(name="history", help="Query the history: SQL, timelines, usage over time (docs/history.md).")

_FLAGS = HistoryFlags()
_COMMON = SettingsFlags()
Switch = Annotated[bool, Parameter(negative="")]


@history_app.default
def sql(
    statement: Annotated[str, Parameter(allow_leading_hyphen=True)],
    *,
    csv: Switch = False,
    json: Switch = False,
    limit: numbers.RowsOrAll = None,
    allow_files: Switch = False,
    flags: HistoryFlags = _FLAGS,
    common: SettingsFlags = _COMMON,
) -> int:
    """Runs SQL (DuckDB) over the table `events` and the views `applications`, `allocations`, `queue_usage`,
    `user_usage` and `node_timeline`.

    :param statement: a query: muster history "select change_detail, count(*) from events group by all"
    :param csv: print CSV.
    :param json: print JSON.
    :param limit: maximum number of rows; 0: all [100 in a table, else all].
    :param allow_files: allow the statement to read and write other files.
    """
    from muster_cli.history.duckdb_store import open_history
    from muster_cli.history.output import print_note
    from muster_cli.history.source import find
    from muster_cli.history.sql import answer

    form = _form(csv=csv, json=json)
    with open_history(find(flags, common.settings, common.set), flags.rm, files_allowed=allow_files) as history:
        answer(history, statement, form, limit, files_allowed=allow_files)
        print_note(history.freshness())
    return 0


@history_app.command(name="app")
def app(
    application: str,
    *,
    life: numbers.Ordinal = 0,
    rows: numbers.RowLimit = 40,
    json: Switch = False,
    flags: HistoryFlags = _FLAGS,
    common: SettingsFlags = _COMMON,
) -> int:
    """Draws an application's timeline: its states, asks and allocations as bars, and how each ended.

    :param application: the application's id.
    :param life: which application with this id, from 1 [the last].
    :param rows: maximum number of single allocations; more are combined.
    :param json: print all data as JSON.
    """
    from muster_cli.history.app_show import show
    from muster_cli.history.app_timeline import read
    from muster_cli.history.duckdb_store import open_history
    from muster_cli.history.output import print_note
    from muster_cli.history.source import find

    with open_history(find(flags, common.settings, common.set), flags.rm) as history:
        show(read(history, application, life), rows, as_json=json)
        print_note(history.freshness())
    return 0


@history_app.command(name="usage")
def usage(
    *,
    queue: str = "",
    user: str = "",
    group: str = "",
    app: str = "",
    by: Literal["queue", "user", "application"] = "queue",
    begin: Annotated[str, Parameter(name="--from")] = "",
    end: Annotated[str, Parameter(name="--to")] = "",
    window: str = "",
    plot: Path | None = None,
    csv: Switch = False,
    json: Switch = False,
    flags: HistoryFlags = _FLAGS,
    common: SettingsFlags = _COMMON,
) -> int:
    """Shows the usage of a queue (with its descendants), a user, a group or an application over time: average and peak
    of each window.

    :param queue: the queue's path, such as root.default.
    :param by: the areas of a queue's plot: the first queues below it of which there are several, its users or its
        applications.
    :param begin: 2026-11-22T04:30:00Z, or how long before the end, such as 2h [the first usage].
    :param end: the same form [the newest event].
    :param window: length, such as 30s, 5min, 1h [about a 24th of the time].
    :param plot: also draw a plot into this file: .png, .svg or .pdf.
    :param csv: print CSV, with a row for each window and resource type.
    :param json: print JSON with the same rows.
    """
    from muster_cli.history import plot as picture
    from muster_cli.history.duckdb_store import open_history
    from muster_cli.history.output import print_note
    from muster_cli.history.source import find
    from muster_cli.history.usage import UsageSubject, read
    from muster_cli.history.usage_show import show

    form = _form(csv=csv, json=json)
    if sum(map(bool, (queue, user, group, app))) != 1:
        raise UsageError("expected exactly one of --queue, --user, --group and --app")
    if by != "queue" and not queue:
        raise UsageError(f"--by {by}: expected --queue beside it")
    if plot is not None:
        picture.check(plot)
    with open_history(find(flags, common.settings, common.set), flags.rm) as history:
        series = read(history, UsageSubject(queue, user, group, app, by), begin, end, window, flags.rm)
        if plot is not None:
            picture.draw(series, plot)
            print_note([f"drawn to {plot}"])
        show(series, form)
        print_note(history.freshness())
    return 0


@history_app.command(name="queues")
def queues(
    *, csv: Switch = False, json: Switch = False, flags: HistoryFlags = _FLAGS, common: SettingsFlags = _COMMON
) -> int:
    """Lists the queues that ever had allocations: the number of allocations (descendants included) and the usage.

    :param csv: print CSV.
    :param json: print JSON.
    """
    from muster_cli.history.views import QUEUES

    return _listed(QUEUES, _form(csv=csv, json=json), flags, common)


@history_app.command(name="nodes")
def nodes(
    *, csv: Switch = False, json: Switch = False, flags: HistoryFlags = _FLAGS, common: SettingsFlags = _COMMON
) -> int:
    """Lists the nodes: their first and last time, and their allocations.

    :param csv: print CSV.
    :param json: print JSON.
    """
    from muster_cli.history.views import NODES

    return _listed(NODES, _form(csv=csv, json=json), flags, common)


def _listed(statement: str, form: OutputFormat, flags: HistoryFlags, common: SettingsFlags) -> int:
    from muster_cli.history.duckdb_store import open_history
    from muster_cli.history.output import print_note
    from muster_cli.history.source import find
    from muster_cli.history.sql import answer

    with open_history(find(flags, common.settings, common.set), flags.rm) as history:
        answer(history, statement, form, None)
        print_note(history.freshness())
    return 0


def _form(*, csv: bool, json: bool) -> OutputFormat:
    if csv and json:
        raise UsageError("--csv and --json: expected one of them")
    return OutputFormat.CSV if csv else OutputFormat.JSON if json else OutputFormat.TABLE
