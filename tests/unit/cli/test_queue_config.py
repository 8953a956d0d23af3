"""`muster config check`."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from muster_cli.errors import UsageError
from muster_cli.queue_config import check, quantity, refuse_if_wrong
from rich.console import Console

GOOD = """\
partitions:
  - name: default
    nodesortpolicy: {type: binpacking}
    queues:
      - name: root
        queues:
          - name: research
            resources:
              guaranteed: {memory: 10Gi, vcore: 2500m}
              max: {memory: 1Ti}
            maxapplications: 7
          - name: "[odd"
"""


def _check(text: str, tmp_path: Path) -> tuple[bool, str]:
    file = tmp_path / "queues.yaml"
    file.write_text(text)
    out = io.StringIO()
    usable = check(file, Console(file=out, width=200))
    return usable, out.getvalue()


def test_a_good_configuration_is_shown_as_a_tree(tmp_path: Path) -> None:
    usable, printed = _check(GOOD.replace('"[odd"', "even"), tmp_path)
    assert usable
    assert "research, guaranteed {memory 10Gi, vcore 2500m}, max {memory 1Ti}, at most 7 applications" in printed
    assert printed.index("research") < printed.index("even")
    assert "binpacking" in printed


def test_errors_have_a_place_that_editors_understand(tmp_path: Path) -> None:
    usable, printed = _check(GOOD, tmp_path)
    assert not usable
    assert f"{tmp_path}/queues.yaml:12:" in printed
    assert "[odd" in printed


def test_every_error_is_shown_before_anything_starts(tmp_path: Path) -> None:
    file = tmp_path / "queues.yaml"
    file.write_text(GOOD.replace("10Gi", "10Xi"))
    with pytest.raises(UsageError) as raised:
        refuse_if_wrong(file)
    assert ":9:" in str(raised.value)
    assert ":12:" in str(raised.value)


def test_what_cannot_be_read_is_said(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"absent\.yaml: cannot be read"):
        refuse_if_wrong(tmp_path / "absent.yaml")
    (tmp_path / "binary.yaml").write_bytes(b"partitions: \xff")
    with pytest.raises(UsageError, match="is not UTF-8"):
        refuse_if_wrong(tmp_path / "binary.yaml")


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("memory", 0, "0"),
        ("memory", 1000, "1000"),
        ("memory", 10 << 30, "10Gi"),
        ("memory", (1 << 40) + 1024, "1073741825Ki"),
        ("vcore", 2000, "2"),
        ("vcore", 2500, "2500m"),
        ("pods", 1 << 70, "1024Ei"),
    ],
)
def test_a_quantity_is_written_short_and_exact(name: str, value: int, text: str) -> None:
    assert quantity(name, value) == text
