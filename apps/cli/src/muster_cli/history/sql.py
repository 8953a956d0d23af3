"""``muster history "select …"``: one query of the history."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from muster_runtime.private_files import private_umask

from muster_cli.errors import CommandError, UsageError
from muster_cli.history import output, views
from muster_cli.history.duckdb_store import HistoryDatabase
from muster_cli.history.form import OutputFormat
from muster_cli.history.output import ResultTable

if TYPE_CHECKING:
    import duckdb

TABLE_ROWS = 100
_ROWS_AT_ONCE = 10_000
_POSITION = re.compile(r"^LINE (\d+): ", re.MULTILINE)
_KIND = re.compile(r"^(\w+ Error): ")
# Statements that only read. COPY writes files, so it needs permission.
_READING = ("SELECT", "EXPLAIN", "RELATION", "CALL")
_WRITING_FILES = "COPY"


def answer(
    history: HistoryDatabase, sql: str, form: OutputFormat, limit: int | None, *, files_allowed: bool = False
) -> None:
    """Prints the result of a statement.

    :param limit: greatest number of rows; 0: all; None: :data:`TABLE_ROWS` in a table, else all.

    Raises UsageError if the text is not one reading statement, CommandError if its SQL is wrong.
    """
    import duckdb

    connection = history.connection
    most = limit if limit is not None else TABLE_ROWS if form is OutputFormat.TABLE else 0
    try:
        statement = _one_statement(connection, sql, files_allowed=files_allowed)
        with private_umask():  # COPY … TO creates files
            cursor = connection.execute(statement)
        columns = [column[0] for column in cursor.description or ()]
        if form is not OutputFormat.TABLE:
            output.print_rows(ResultTable(columns, _rows(cursor, most)), form)
            return
        rows = list(_rows(cursor, most + 1 if most else 0))
        output.print_rows(ResultTable(columns, rows[:most] if most else rows), form)
        if most and len(rows) > most:
            total = _count(connection, statement, cursor, len(rows))
            output.print_note([f"{most:,} of {total:,} rows; --limit 0 shows all."])
    except duckdb.Error as error:
        raise CommandError(_explained(error)) from error


def _one_statement(connection: duckdb.DuckDBPyConnection, sql: str, *, files_allowed: bool) -> str:
    statements = connection.extract_statements(sql)
    if len(statements) != 1:
        raise UsageError(f"expected one SQL statement, not {len(statements)}")
    kind = statements[0].type.name
    if kind not in (*_READING, *([_WRITING_FILES] if files_allowed else [])):
        more = " (COPY … TO: --allow-files)" if kind == _WRITING_FILES else ""
        raise UsageError(
            f"expected a statement that reads, such as SELECT, not {kind}: the history is not changed{more}"
        )
    return str(statements[0].query)


def _rows(cursor: duckdb.DuckDBPyConnection, most: int) -> Iterator[Sequence[Any]]:
    remaining = most or -1
    while remaining:
        rows = cursor.fetchmany(min(remaining, _ROWS_AT_ONCE) if remaining > 0 else _ROWS_AT_ONCE)
        if not rows:
            return
        yield from rows
        remaining -= len(rows) if remaining > 0 else 0


def _count(
    connection: duckdb.DuckDBPyConnection, statement: str, cursor: duckdb.DuckDBPyConnection, fetched: int
) -> int:
    """Returns the number of rows of a statement. Where possible it counts with a query, which is cheaper than
    fetching.
    """
    import duckdb

    try:
        counted = (
            connection.cursor()
            .execute(
                f"SELECT count(*) FROM (\n{statement.rstrip().rstrip(';')}\n)"  # noqa: S608 - the user's own
            )
            .fetchone()
        )
        if counted is not None:
            return int(counted[0])
    except duckdb.Error:
        pass
    return fetched + sum(1 for _ in _rows(cursor, 0))


def _explained(error: duckdb.Error) -> str:
    """Returns DuckDB's message with the place in front; keeps the excerpt with its mark."""
    text = str(error).strip()
    head, _, excerpt = text.partition("\n")
    head = _KIND.sub("", head)
    where = ""
    if match := _POSITION.search(text):
        lines = text[match.start() :].splitlines()
        marks = [line.find("^") for line in lines[1:2]]
        if marks and marks[0] >= len(match[0]) and not lines[0].startswith(f"{match[0]}..."):
            where = f"line {match[1]}, column {marks[0] - len(match[0]) + 1}: "
        else:
            where = f"line {match[1]}: "
    if "does not exist" in head and head.startswith("Table with name"):
        excerpt = re.sub(
            r"^Did you mean .*$", f"There are: events, {', '.join(views.VIEWS)}.", excerpt, flags=re.MULTILINE
        )
    if "file system operations are disabled" in head:
        head += "; --allow-files allows them"
    return f"SQL: {where}{head}" + (f"\n{excerpt.strip(chr(10))}" if excerpt.strip() else "")
