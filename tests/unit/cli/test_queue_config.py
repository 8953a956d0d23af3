"""`muster config check` and `muster config diff`."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from muster_cli.config_check import check, compare, refuse_if_wrong
from muster_cli.errors import UsageError
from muster_cli.main import run
from muster_runtime.terminal import Screen

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
    usable = check(file, Screen(file=out, width=200))
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


def test_an_unreadable_file_is_reported(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"absent\.yaml: cannot be read"):
        refuse_if_wrong(tmp_path / "absent.yaml")
    (tmp_path / "binary.yaml").write_bytes(b"partitions: \xff")
    with pytest.raises(UsageError, match="is not UTF-8"):
        refuse_if_wrong(tmp_path / "binary.yaml")


EVERYTHING = """\
partitions:
- name: default
  nodesortpolicy: {type: dotproduct, resourceweights: {vcore: 2, gpu: 0.5}}
  preemption: {enabled: false, quotapreemptionenabled: true, optout: last}
  reservation: {delay: 90s}
  usergroupresolver: {type: os}
  placementrules:
  - {name: tag, value: "[ns]", create: true, filter: {type: deny, groups: [ops]}, parent: {name: fixed, value: Prod}}
  - {name: provided}
  queues:
  - name: root
    limits: [{users: [zoe, "*"], maxapplications: 5, maxresources: {memory: 1Gi}}]
    queues:
    - name: Prod
      parent: true
      maxapplications: 9
      submitacl: "ann,bob ops"
      properties: {application.sort.policy: fair, priority.offset: 7, colour: blue}
      resources: {max: {memory: 1Ti, vcore: 40}}
      childtemplate: {maxapplications: 3, resources: {max: {vcore: 2}, guaranteed: {vcore: 1}}, properties: {a: b}}
      queues:
      - {name: web, maxapplications: 9, adminacl: " admins", resources: {max: {vcore: 10}, guaranteed: {vcore: 4}}}
      - {name: batch, maxapplications: 2, parent: true, resources: {max: {gpu: 8}}}
    - {name: shut}
"""


@pytest.fixture(scope="module")
def everything(tmp_path_factory: pytest.TempPathFactory) -> str:
    usable, printed = _check(EVERYTHING, tmp_path_factory.mktemp("everything"))
    assert usable
    return " ".join(printed.replace("│", " ").split())


@pytest.mark.parametrize(
    "text",
    [
        # effective guarantees and maxima: summed from below, and the least on the path
        "Prod, parent, guaranteed {vcore 4} (of its children), max {memory 1Ti, vcore 40}, at most 9 applications",
        "web, guaranteed {vcore 4}, max {memory 1Ti from above, vcore 10}, at most 9 applications",
        "batch, parent, max {memory 1Ti from above, vcore 40 from above, gpu 8}, at most 2 applications",
        # policies
        "properties application.sort.policy=fair, priority.offset=7, colour=blue",
        "properties application.sort.policy=fair (from above), colour=blue (from above)",
        # access
        "submit users ann,bob; groups ops",
        "admin groups admins",
        "shut └── no user may submit here",
        # limits, templates
        "limit user zoe, user *: max {memory 1Gi}, at most 5 applications",
        "new leaves below at most 3 applications, max {vcore 2}, guaranteed {vcore 1}, a=b ├",
        "a=b (from above)",
        # of the partition
        "node sort policy dotproduct (vcore 2, gpu 0.5)",
        "placement rules 0: tag [ns] (create; not group ops) below fixed Prod 1: provided",
        "preemption off; opted-out allocations: last; quota preemption: on",
        "reservation after 1m30s, given up after 1h",
        "users without groups os",
        "unknown property 'colour'",
        "can be used, 2 warnings",
    ],
)
def test_the_effective_settings_are_shown(everything: str, text: str) -> None:
    assert text in everything


def test_warnings_stand_beside_errors_in_the_order_of_the_text(tmp_path: Path) -> None:
    usable, printed = _check(EVERYTHING.replace("gpu: 8", "gpu: x").replace("name: tag", "name: tg"), tmp_path)
    assert not usable
    kinds = [(line.split()[0], line.split(":")[1]) for line in printed.splitlines()]
    assert kinds == [("error", "8"), ("warning", "18"), ("warning", "20"), ("error", "23")]


def test_an_old_word_is_a_warning_with_its_place(tmp_path: Path) -> None:
    stateaware = "{name: a, properties: {application.sort.policy: stateaware}}"
    text = f"partitions:\n- name: default\n  queues:\n  - {{name: root, queues: [{stateaware}]}}\n"
    usable, printed = _check(text, tmp_path)
    assert usable
    assert "stateaware is deprecated: it means fifo" in printed
    assert ":4:" in printed


# ---- diff ------------------------------------------------------------------------------------------------------------


def _compare(old: str, new: str, tmp_path: Path) -> list[str]:
    files = (tmp_path / "old.yaml", tmp_path / "new.yaml")
    for file, text in zip(files, (old, new), strict=True):
        file.write_text(text)
    out = io.StringIO()
    compare(*files, Screen(file=out, width=200))
    return [" ".join(line.split()) for line in out.getvalue().splitlines()]


def test_changes_are_shown(tmp_path: Path) -> None:
    new = (
        EVERYTHING.replace("name: shut", "name: open")
        .replace("vcore: 10", "vcore: 12")
        .replace("{name: provided}", "{name: user}")
    )
    new = new.replace("{name: batch, maxapplications: 2, parent: true,", "{name: batch, maxapplications: 2,")
    assert _compare(EVERYTHING, new, tmp_path) == [
        "partition default",
        (
            "~ placementrules tag [ns] (create; not group ops) below fixed Prod; provided -> "
            "tag [ns] (create; not group ops) below fixed Prod; user"
        ),
        "~ root.prod.web resources.max.vcore 10 -> 12",
        "~ root.prod.batch leaf or parent parent -> leaf",
        "- root.shut leaf removed: its applications finish first",
        "+ root.open new leaf",
        "5 changes",
    ]


def test_no_change_and_other_partitions(tmp_path: Path) -> None:
    assert _compare(EVERYTHING, EVERYTHING + "# a remark\n", tmp_path) == ["no change"]
    assert _compare("partitions: [{queues: []}]", "partitions: [{queues: [], name: gpu}]", tmp_path) == [
        "partition default",
        "- partition removed",
        "partition gpu",
        "+ new partition",
        "2 changes",
    ]


def test_the_commands_and_their_exit_codes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good, bad = tmp_path / "good.yaml", tmp_path / "bad.yaml"
    good.write_text(EVERYTHING)
    bad.write_text(GOOD)
    assert run(["config", "check", str(good)]) == 0
    assert run(["config", "check", str(bad)]) == 1
    assert run(["config", "diff", str(good), str(good)]) == 0
    assert "no change" in capsys.readouterr().out
    assert run(["config", "diff", str(good), str(bad)]) == 2
    assert "bad.yaml:12:" in capsys.readouterr().err


def test_standard_input_can_be_checked(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    text = "partitions:\n  - name: default\n    queues:\n      - name: root\n        submitacl: *\n"
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
    assert run(["config", "check", "-"]) == 1
    assert "-:5:21" in (said := capsys.readouterr().out)
    assert "a * that stands for itself must be quoted, '*'" in said
