"""Reads history in files with duckdb, as an analyst does."""

from typing import Any

import duckdb


def rows_of(query: str) -> list[tuple[Any, ...]]:
    """All rows of an SQL query, asked on a connection of its own.

    duckdb's default connection belongs to the whole process, and lets nobody else ask while an answer on it is not
    read to its end.
    """
    with duckdb.connect() as connection:
        return connection.execute(query).fetchall()
