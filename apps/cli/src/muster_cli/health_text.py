"""The state of the whole Muster, as the lines of a screen. The gateway computes it; nothing is graded here."""

from __future__ import annotations

import time

from muster_client.errors import AdminFailed, AdminRefused
from muster_client.health_client import Grade as WireGrade
from muster_client.health_client import HealthClient, SystemHealth
from muster_rest.shapes.health import Grade, PartHealthDao, SystemHealthDao
from muster_rest.system_health import duration, unreachable
from muster_runtime.terminal import escape_invisible
from rich.text import Text

_STYLES = {Grade.OK: "green", Grade.DEGRADED: "bold yellow", Grade.FAILED: "bold red"}
_GRADES = {WireGrade.OK: Grade.OK, WireGrade.DEGRADED: Grade.DEGRADED}
_OTHERS_NAMED_MAX = 4
_NS = 1_000_000_000


async def fetch_health(client: HealthClient, gateway: str) -> SystemHealthDao | None:
    """Asks a gateway for the state. If it does not answer, that is the state.

    Returns None if this gateway is older, or refuses this caller.
    """
    try:
        return decode_health(await client.get())
    except AdminRefused:
        return None
    except AdminFailed as error:
        remedy = "start it, or repair the connection to it"
        return unreachable(f"{gateway} does not answer ({error.code.name})", remedy, time.time_ns())


def decode_health(health: SystemHealth) -> SystemHealthDao:
    """Returns a message as the record that REST has."""
    return SystemHealthDao(
        grade=_GRADES.get(health.grade, Grade.FAILED),
        part=health.part,
        since=health.since_ns,
        sentence=health.sentence,
        remedy=health.remedy,
        checked=health.checked_ns,
        parts=[
            PartHealthDao(
                part=part.part,
                grade=_GRADES.get(part.grade, Grade.FAILED),
                since=part.since_ns,
                sentence=part.sentence,
                remedy=part.remedy,
                others=list(part.others),
            )
            for part in health.parts
        ],
    )


def health_lines(health: SystemHealthDao | None) -> list[Text]:
    """Returns the worst part with its age and its remedy, and the names of the others that do not work."""
    if health is None:
        return []
    line = Text.assemble("Muster  ", (str(health.grade), _STYLES[health.grade]))
    faults = [part for part in health.parts if part.grade is not Grade.OK]
    if health.grade is Grade.OK:
        return [line.append(f"  {escape_invisible(health.sentence)}" if health.sentence else "")]
    if health.part:
        age = duration(max(0, health.checked - health.since) / _NS)
        line.append(f"  {escape_invisible(health.part)} for {age}: {escape_invisible(health.sentence)}")
    lines = [line]
    if health.remedy:
        lines.append(Text(f"        {escape_invisible(health.remedy)}"))
    if others := faults[1:]:
        named = ", ".join(f"{escape_invisible(part.part)} ({part.grade})" for part in others[:_OTHERS_NAMED_MAX])
        more = len(others) - _OTHERS_NAMED_MAX
        lines.append(Text(f"        also: {named}{f' and {more} more' if more > 0 else ''}"))
    return lines
