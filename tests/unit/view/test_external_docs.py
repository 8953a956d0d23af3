"""docs/external-rest.md names exactly the fields of ``/ws/v1/external``."""

from __future__ import annotations

import documents
import msgspec
import pytest
from muster_rest.shapes.external import ObjectDao, SourceDao
from muster_rest.shapes.state import ReportedDao

TEXT = documents.page("external-rest.md")


@pytest.mark.parametrize("shape", [SourceDao, ObjectDao])
def test_every_field_has_a_row(shape: type[msgspec.Struct]) -> None:
    documents.has_the_fields_of(TEXT, shape)


def test_the_rms_own_report_is_named() -> None:
    row = next(line for line in TEXT.splitlines() if line.startswith("| node | `reported`"))
    for field in msgspec.structs.fields(ReportedDao):
        assert f"`{field.encode_name}`" in row
