"""The forms in which rows are printed."""

from __future__ import annotations

from enum import StrEnum


class OutputFormat(StrEnum):
    """A table for people; CSV and JSON for programs."""

    TABLE = "table"
    CSV = "csv"
    JSON = "json"
