"""Access lists whose separators are not clear: refused with their place, and closed where they are recorded."""

from __future__ import annotations

from dataclasses import replace

from muster_bus.clock import SystemClock
from muster_bus.log import OutRecord
from muster_bus.topics import state_key
from muster_client import application
from muster_scheduler.service import SchedulerService
from muster_scheduler.settings import SchedulerSettings
from muster_state import state_codec
from muster_state.state_folder import encode_registration
from scenario.operated import RM, World, on_every_log
from waiting import PATIENCE_S, eventually

LISTS = """\
partitions:
  - name: default
    queues:
      - name: root
        queues:
          - {{name: a, submitacl: "{0}"}}
          - {{name: b, adminacl: "{0}"}}
          - {{name: open, submitacl: 'mia '}}
"""
EXPECTED = "expected 'users groups', each a comma-separated list, with one space between"


UNCLEAR = [
    (" nora crew", "multiple spaces found in ACL (characters 1 and 6)"),
    ("nora crew ", "multiple spaces found in ACL (characters 5 and 10)"),
    ("kim  night,day", "multiple spaces found in ACL (characters 4 and 5)"),
    ("kim, lea, crew", "multiple spaces found in ACL (characters 5 and 10)"),
    ("  ", "multiple spaces found in ACL (characters 1 and 2)"),
    (" * ", "multiple spaces found in ACL (characters 1 and 3)"),
    (r"kim\tnight\tday", "multiple blanks found in ACL"),
    (r"kim night\nday", "multiple blanks found in ACL"),
]


async def test_unclear_lists_are_refused_with_their_place(world: World) -> None:
    for text, problem in UNCLEAR:
        answer = await world.admin.update_configuration(RM, LISTS.format(text), timeout_s=PATIENCE_S)
        assert not answer.accepted, text
        assert [(each.path, each.line, each.column, each.message) for each in answer.problems] == [
            (f"partitions[0].queues[0].queues[{number}].{key}", 6 + number, 34 - number, f"{problem}: {EXPECTED}")
            for number, key in enumerate(("submitacl", "adminacl"))
        ]


# Who asks to submit: the user's name and group.
PEOPLE = [("nora", "crew"), ("nora", "x"), ("kim", "nora"), ("kim", "crew"), ("lea", "x")]
ALL = {"nora crew", "nora x", "kim nora", "kim crew", "lea x"}
ADMITTED: list[tuple[str, set[str]]] = [
    (" nora", {"kim nora"}),  # groups only: not the user of that name
    ("nora ", {"nora crew", "nora x"}),
    ("lea crew", {"nora crew", "kim crew", "lea x"}),
    (r"nora\tcrew", set()),  # a tab separates nothing, so this is no name
    (r"lea,nora\u00a0crew", {"lea x"}),
    ("*,", set()),  # not alone in its place
    (" ,*", set()),
    ("*,lea", {"lea x"}),
    ("* ", ALL),
    (r"*\n", ALL),
]


async def test_who_may_submit(world: World) -> None:
    told = world.told
    for number, (text, admitted) in enumerate(ADMITTED):
        assert (await world.admin.update_configuration(RM, LISTS.format(text), timeout_s=PATIENCE_S)).accepted
        told.accepted.clear()
        told.rejected.clear()
        asked = {f"{number} {user} {group}": (user, group) for user, group in PEOPLE}
        await world.rm.send_applications(
            [application(app_id, "root.a", user=user, groups=[group]) for app_id, (user, group) in asked.items()]
        )
        await world.until(lambda: len(told.accepted) + len(told.rejected) == len(PEOPLE), "all are answered")
        assert {app_id.partition(" ")[2] for app_id in told.accepted} == admitted, text


async def test_a_comma_before_the_space_is_warned_of(world: World) -> None:
    answer = await world.admin.update_configuration(RM, LISTS.format("kim, lea"), timeout_s=PATIENCE_S)
    assert answer.accepted
    assert {(each.line, each.column, each.message) for each in answer.problems} == {
        (6, 34, f"the names after the space are groups, also after a comma: {EXPECTED}"),
        (7, 33, f"the names after the space are groups, also after a comma: {EXPECTED}"),
    }


@on_every_log
async def test_recorded_lists_admit_nobody_and_are_named(world: World) -> None:
    """As if an earlier version had accepted the text: it starts, also a second time."""
    services = world.services
    text = LISTS.format(" nora crew")
    await services.scheduler.stop()
    partition = services.topics.partition_of(RM)
    info = services.view.states()[RM].info
    recorded = encode_registration(replace(info, config=text, compiled=b"of another version"))
    key = state_key(RM, state_codec.REGISTRATION, "-")
    owner = await services.log.take_over(SchedulerSettings().group, services.topics.requests, partition)
    await owner.commit([OutRecord(services.topics.state, partition, key, recorded)], None)
    for start in ("first", "second"):
        await _start(world)
        await _admits_only_mia(world, start)
        await services.scheduler.stop()
    await _start(world)
    mended = text.replace(" nora crew", "nora crew")
    assert (await world.admin.update_configuration(RM, mended, timeout_s=PATIENCE_S)).accepted
    await world.rm.send_applications([application("z", "root.a", user="nora", groups=["x"])])
    await world.until(lambda: world.told.accepted[-1] == "z", "the mended list admits")


async def _start(world: World) -> None:
    services = world.services
    services.scheduler = SchedulerService(SchedulerSettings(), services.log, services.topics, SystemClock())
    await services.scheduler.start()


async def _admits_only_mia(world: World, start: str) -> None:
    told = world.told
    told.accepted.clear()
    told.rejected.clear()
    people = [("nora", "x", "a"), ("kim", "crew", "b"), ("mia", "x", "open")]
    await world.rm.send_applications(
        [application(f"{start} {user}", f"root.{leaf}", user=user, groups=[group]) for user, group, leaf in people]
    )
    await world.until(lambda: len(told.accepted) + len(told.rejected) == len(people), "all are answered")
    assert told.accepted == [f"{start} mia"]

    async def named() -> bool:
        checks = (await world.http.get("/ws/v1/scheduler/healthcheck")).json()["HealthChecks"]
        (check,) = [each for each in checks if each["Name"] == "Access lists"]
        said = check["DiagnosisMessage"]
        return bool(check["Succeeded"]) and all(each in said for each in ("line 6", "line 7", "admits nobody"))

    await eventually(named, "the health check names both lists")
