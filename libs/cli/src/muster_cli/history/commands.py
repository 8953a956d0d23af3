"""``muster history``: SQL over what happened, an application's life, usage over time (docs/history.md)."""

from __future__ import annotations

from typing import Annotated

from cyclopts import App, Parameter

from muster_cli.common import Common
from muster_cli.errors import UsageError
from muster_cli.history.source import HistoryFlags

history_app = App(name="history", help="What happened: SQL, an application's life, usage over time (docs/history.md).")

_FLAGS = HistoryFlags()
_COMMON = Common()
Switch = Annotated[bool, Parameter(negative="")]


@history_app.default
def sql(
    statement: str,
    *,
    csv: Switch = False,
    json: Switch = False,
    limit: int | None = None,
    allow_files: Switch = False,
    flags: HistoryFlags = _FLAGS,
    common: Common = _COMMON,
) -> int:
    """Answers SQL (duckdb's) over the table `events` and the views `applications`, `allocations`, `queue_usage`,
    `user_usage` and `node_timeline`.

    :param statement: one that reads: muster history "select change_detail, count(*) from events group by all"
    :param csv: print CSV.
    :param json: print JSON.
    :param limit: most rows; 0: all [100 in a table, else all].
    :param allow_files: the statement may read and write other files.
    """
    from muster_cli.history.output import Form, note
    from muster_cli.history.source import find
    from muster_cli.history.sql import answer
    from muster_cli.history.store import opened

    if csv and json:
        raise UsageError("--csv and --json: expected one of them")
    if limit is not None and limit < 0:
        raise UsageError(f"--limit {limit}: expected 0 (all) or more")
    form = Form.CSV if csv else Form.JSON if json else Form.TABLE
    with opened(find(flags, common.settings, common.set), flags.rm, files_allowed=allow_files) as history:
        answer(history, statement, form, limit, files_allowed=allow_files)
        note(history.freshness())
    return 0


@history_app.command(name="app")
def app(
    application: str,
    *,
    life: int = 0,
    rows: int = 40,
    json: Switch = False,
    flags: HistoryFlags = _FLAGS,
    common: Common = _COMMON,
) -> int:
    """Draws an application's life: its states, asks and allocations as bars in time, and what became of them.

    :param application: its id.
    :param life: the how-manieth under this id, from 1 [the last].
    :param rows: at most so many allocations one by one; more are shown together.
    :param json: print all that is known of it as JSON.
    """
    from muster_cli.history.app_life import read
    from muster_cli.history.app_show import show
    from muster_cli.history.output import note
    from muster_cli.history.source import find
    from muster_cli.history.store import opened

    if rows < 1:
        raise UsageError(f"--rows {rows}: expected at least 1")
    with opened(find(flags, common.settings, common.set), flags.rm) as history:
        show(read(history, application, life), rows, as_json=json)
        note(history.freshness())
    return 0
