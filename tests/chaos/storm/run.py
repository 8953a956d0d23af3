"""Runs a storm: ``make chaos SEED=17 MINUTES=3``. Ends with 1 if the auditor finds something."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import random
import shutil
import signal
import sys
import time
import traceback
from collections import Counter
from collections.abc import Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any

import asyncpg
import httpx
import structlog
from chaos.harness import opened_log, records
from chaos.storm.auditor import LAWS, Finding, shown_by_state
from chaos.storm.course import Course
from chaos.storm.deployment import PARTITIONS, Storm, prepared
from chaos.storm.evidence import Evidence, write_heard, write_topic
from chaos.storm.plan import Fault, plan, under_way
from chaos.storm.workload import StormRm
from event_books_shown import of_rest
from group_rig import one_rm_per_partition
from muster_bus.topics import Topics
from waiting import eventually

ASKS_PER_MINUTE, ASKS_AT_LEAST = 7_000, 20_000
SPARE = 0.7  # the share of the run in which all asks are sent if no fault holds an RM up
PROGRESS_S = 10.0
QUIET_S = 3.0
LONGEST = 3.0  # the RMs ask for at most so many times the length of the faults, on a busy machine
# Limits of the phases. None depends on how fast the machine is: five times the usual is far below.
START_S, WELL_S, STUCK_S = 300.0, 300.0, 300.0
SHOWN = 20  # findings that are printed


async def storm(seed: int, minutes: float, goal: int, directory: Path) -> list[Finding]:
    """Plays a seed. Returns what the auditor finds."""
    seconds = minutes * 60
    rm_ids = one_rm_per_partition(Topics(partitions=PARTITIONS))
    here = prepared(directory, rm_ids[2])
    course = Course()
    faults = plan(seed, seconds)
    pace = goal / len(rm_ids) / (seconds * SPARE)
    (directory / "plan.txt").write_text("".join(f"{fault}\n" for fault in faults))
    print(f"seed {seed}, {minutes:g} min, {len(faults)} faults, {goal} asks; logs and topics: {directory}", flush=True)
    if not here.clocks:
        print("libfaketime is not installed: no clock is stepped", flush=True)
    evidence: list[Evidence] = []
    rms: list[StormRm] = []
    findings: list[Finding] = []
    try:
        async with here.supervised():
            async with course.phase("all starts", START_S):
                await here.start()
                await here.well(course)
            over = asyncio.Event()
            rms += [
                StormRm(
                    rm_id,
                    here.gateways(number),
                    seed,
                    -(-goal // len(rm_ids)),
                    pace,
                    over,
                    seconds * LONGEST,
                    is_asked=number == 1,
                    source=here.source if number == 2 else None,
                )
                for number, rm_id in enumerate(rm_ids)
            ]
            findings += await _lived(here, course, rms, faults, seconds, over)
            async with course.phase("the auditor reads", START_S + seconds):
                evidence += await _evidence(here, course, rms, is_whole=not findings)
    except Exception as error:
        traceback.print_exc()
        findings.append(Finding("run", "all", f"{type(error).__name__}: {error}", at_s=course.now_s))
    finally:
        await here.stop()
    for each in evidence:
        write_heard(directory / f"heard-{each.rm_id}.jsonl", each)
    judged = {law.__name__: [found for each in evidence for found in law(each)] for law in LAWS} if not findings else {}
    _summary(rms, evidence, faults, judged, here, course)
    return findings or [found for some in judged.values() for found in some]


async def _lived(
    here: Storm, course: Course, rms: list[StormRm], faults: Sequence[Fault], seconds: float, over: asyncio.Event
) -> list[Finding]:
    """Faults, then quiet, then the end of all that writes. Returns what failed, if something did."""
    began_s = time.monotonic()
    begun: list[Fault] = []
    working = [asyncio.create_task(rm.run(), name=rm.rm_id) for rm in rms]
    showing = asyncio.create_task(_progress(course, rms, faults, begun, began_s))
    storming = asyncio.create_task(_storm(here, faults, begun, began_s, seconds))
    failed: list[Finding] = []
    try:
        async with course.phase("faults, while the RMs work", seconds + STUCK_S):
            await asyncio.wait([storming, *working], return_when=asyncio.FIRST_COMPLETED)
            for task in (storming, *working):
                if task.done():
                    task.result()
        # From here on there are no faults.
        async with course.phase("every process gets well", WELL_S):
            await here.well(course)
        async with course.phase("every copy gets in sync", WELL_S):
            await here.in_sync(course)
        over.set()
        async with course.phase("the RMs ask for the rest", seconds * LONGEST + STUCK_S):
            await _unless_stuck(asyncio.gather(*working), rms)
        async with course.phase("the RMs hear all answers", STUCK_S):
            await _unless_stuck(asyncio.gather(*(rm.heard_out() for rm in rms)), rms)
        async with course.phase("nothing is written any more", STUCK_S):
            await _quiet(here, rms)
    except Exception as error:
        traceback.print_exc()
        waiting = [f"{rm.rm_id}: {len(rm.asked)} asked, {rm.answered} answered" for rm in rms]
        failed.append(Finding("run", "all", f"{type(error).__name__}: {error}", waiting, at_s=course.now_s))
    finally:
        for task in (storming, *working, showing):
            task.cancel()
        await asyncio.gather(storming, *working, showing, return_exceptions=True)
    async with course.phase("RMs, gateways and schedulers end", STUCK_S):
        for rm in rms:
            await rm.stop()
        await here.stop_process("gateway-1", "gateway-2")
        await here.stop_process("scheduler-1", "scheduler-2")
    return failed


async def _storm(here: Storm, faults: Sequence[Fault], begun: list[Fault], began_s: float, seconds: float) -> None:
    async def one(fault: Fault) -> None:
        await asyncio.sleep(max(0.0, began_s + fault.at_s - time.monotonic()))
        async with here.turn(fault):
            begun.append(fault)
            try:
                await here.begin(fault)
                await asyncio.sleep(fault.for_s)
            finally:
                await here.end(fault)

    async with asyncio.TaskGroup() as group:
        for fault in faults:
            group.create_task(one(fault))
        group.create_task(asyncio.sleep(seconds))


async def _progress(
    course: Course, rms: list[StormRm], faults: Sequence[Fault], begun: list[Fault], began_s: float
) -> None:
    while True:
        await asyncio.sleep(PROGRESS_S)
        now_s = time.monotonic() - began_s
        asked, answered = sum(len(rm.asked) for rm in rms), sum(rm.answered for rm in rms)
        silent_s = max(time.monotonic() - rm.heard_at_s for rm in rms)
        now = ", ".join(f"{each.kind} {each.target}" for each in under_way(begun, now_s, 0.0)) or course.waits_for
        line = f"{course.now_s:5.0f} s  asked {asked}  answered {answered}  faults {len(begun)}/{len(faults)}"
        print(f"{line}  lag {silent_s:.1f} s{f'  ({now})' if now else ''}", flush=True)


async def _unless_stuck(work: asyncio.Future[Any], rms: list[StormRm]) -> None:
    """Returns when the work is done. Raises AssertionError if nothing is heard for long: no machine is that slow."""
    since_s = time.monotonic()
    while not (await asyncio.wait({work}, timeout=1.0))[0]:
        silent_s = time.monotonic() - max(since_s, *(rm.heard_at_s for rm in rms))
        if silent_s > STUCK_S:
            work.cancel()
            raise AssertionError(f"no RM has heard anything for {silent_s:.0f} s, without faults")
    work.result()


async def _quiet(here: Storm, rms: list[StormRm]) -> None:
    """Returns when nothing is written any more, and the RMs have heard what there is."""
    async with opened_log(here.log_settings) as (log, topics):

        async def ends() -> list[int]:
            found = []
            # (Heartbeats go on in the responses; each other response follows from a change of state.)
            for topic in (topics.requests, topics.state, topics.events):
                for partition in range(PARTITIONS):
                    reader = await log.reader(topic, partition)
                    found.append(await reader.end_offset())
                    await reader.close()
            return [*found, *(len(rm.heard) for rm in rms)]

        before, since_s = await ends(), time.monotonic()
        while time.monotonic() - since_s < QUIET_S:
            await asyncio.sleep(0.5)
            now = await ends()
            if now != before:
                before, since_s = now, time.monotonic()


# ---- evidence -------------------------------------------------------------------------------------------------------


async def _evidence(here: Storm, course: Course, rms: list[StormRm], *, is_whole: bool) -> list[Evidence]:
    """Reads and dumps all.

    :param is_whole: whether PostgreSQL and the view are looked at: after a failure they may never catch up.
    """
    found = []
    dumps = here.directory / "topics"
    dumps.mkdir()
    async with opened_log(here.log_settings) as (log, topics):
        for rm in rms:
            partition = topics.partition_of(rm.rm_id)
            course.waits_for = f"the topics' partition {partition}"
            one = rm.evidence()
            read = {
                name: await records(log, topic, partition)
                for name, topic in {
                    "requests": topics.requests,
                    "responses": topics.responses,
                    "events": topics.events,
                    "state": topics.state,
                    "dead-letters": topics.dead_letters,
                }.items()
            }
            for name, some in read.items():
                await asyncio.to_thread(write_topic, dumps / f"{name}-{partition}.jsonl", some)
            one.take_events(read["events"])
            one.take_responses(read["responses"])
            one.take_state(read["state"])
            one.dead_letters = [dict(each.headers).get("error", b"").decode() for each in read["dead-letters"]]
            found.append(one)
    for one in found if is_whole else ():
        course.waits_for = f"PostgreSQL to have the {len(one.events)} events of {one.rm_id}"
        one.history = await _history(here, one)
        course.waits_for = f"the view to show the state of {one.rm_id}"
        await _shown(here, one)
    return found


async def _history(here: Storm, evidence: Evidence) -> list[Any]:
    """What PostgreSQL has of an RM, when it has as many events as the topic, or when it does not grow any more."""
    names = "id, type_number, change_type_number, change_detail_number, object_id, reference_id, message, timestamp_ns"
    connection = await asyncpg.connect(here.servers["postgres"].address)
    try:

        async def is_complete() -> bool:
            count = await connection.fetchval(
                f"select count(*) from {here.schema}.events where rm = $1", evidence.rm_id
            )
            return bool(count >= len(evidence.events))

        with contextlib.suppress(AssertionError):  # (the auditor says what is missing)
            await eventually(is_complete, "history is complete", within_s=STUCK_S, every_s=0.2)
        rows = await connection.fetch(f"select {names} from {here.schema}.events where rm = $1", evidence.rm_id)
    finally:
        await connection.close()
    return [(row[0], tuple(row)[1:]) for row in rows]


async def _shown(here: Storm, evidence: Evidence) -> None:
    """What the view shows of an RM, when that is what the state has, or after a long time."""
    async with httpx.AsyncClient(base_url=here.operations["view"], timeout=60.0, trust_env=False) as client:

        async def get(path: str) -> Any:
            answer = await client.get(path, params={"rm": evidence.rm_id} | dict(httpx.URL(path).params))
            answer.raise_for_status()
            return answer.json()

        async def look() -> bool:
            evidence.shown = await of_rest(get)
            pending = (await get("/ws/v1/explain/pending"))["pending"]
            evidence.shown_pending = {(each["applicationID"], each["allocationKey"]) for each in pending}
            wanted = {name for name, ask in evidence.asks_in_state().items() if ask.pending > 0}
            same = {name: +each for name, each in evidence.shown.figures["allocated on node"].items() if +each}
            state = shown_by_state(evidence).figures["allocated on node"]
            return wanted == evidence.shown_pending and same == {name: +each for name, each in state.items() if +each}

        with contextlib.suppress(AssertionError):
            await eventually(look, "the view has caught up", within_s=STUCK_S, every_s=0.5)


# ---- what is said ---------------------------------------------------------------------------------------------------


def _summary(
    rms: list[StormRm],
    evidence: list[Evidence],
    faults: Sequence[Fault],
    judged: Mapping[str, list[Finding]],
    here: Storm,
    course: Course,
) -> None:
    heard = Counter(each.what for one in evidence for each in one.heard)
    asked = sum(len(rm.asked) for rm in rms)
    ended = sum(each.released for one in evidence for each in one.asked.values())
    rows: list[tuple[str, str]] = [
        ("asks", f"{asked}: allocated {heard['new']}, rejected {heard['rejected']}, ended by their RM {ended}"),
        ("still pending", str(sum(len(one.asks_in_state()) for one in evidence))),
        ("releases heard", str(heard["released"])),
        ("reloads answered", str(sum(rm.reloads for rm in rms))),
        ("events, responses", f"{sum(len(e.events) for e in evidence)}, {sum(len(e.responses) for e in evidence)}"),
        ("streams lost", str(sum(rm.client.metrics.streams_lost for rm in rms))),
        ("ended by themselves", f"{here.restarts} processes"),
    ]
    kinds = sorted(Counter(fault.kind for fault in faults).items())
    rows += [("faults", f"{len(faults)}: {', '.join(f'{count} {kind}' for kind, count in kinds)}")]
    rows += [("law", f"{name.replace('_', ' ')}: {len(found) or 'no'} findings") for name, found in judged.items()]
    rows += [("took", f"{took:.0f} s  {name}{f' ({end})' if end else ''}") for name, took, end in course.took]
    print("\n" + "\n".join(f"{name:>20}  {what}" for name, what in rows), flush=True)


def _tell(seed: int, minutes: float, findings: list[Finding], directory: Path, faults: Sequence[Fault]) -> None:
    for law, count in Counter(each.law for each in findings).items():
        print(f"{law}: {count} findings")
    for each in findings[:SHOWN]:
        when = f"{each.at_s:.1f} s" if each.at_s >= 0 else f"{each.at_ns} ns" if each.at_ns else "the end"
        print(f"\n[{each.law}] {each.rm_id}, {when}: {each.what}")
        for fault in under_way(faults, each.at_s) if each.at_s >= 0 else ():
            print(f"    fault {fault}")
        for line in each.records:
            print(f"    {line}")
    print(f"\n{len(findings)} findings with SEED={seed} MINUTES={minutes:g}; logs and topics: {directory}")


async def _until_told(work: Coroutine[Any, Any, list[Finding]]) -> list[Finding]:
    """Does it. SIGTERM cancels it, as Ctrl-C does: then it ends all that it started."""
    running = asyncio.ensure_future(work)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, running.cancel)
    return await running


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="make chaos", description=__doc__)
    parser.add_argument("--seed", type=int, help="of the faults and of the workload; default: another one each time")
    parser.add_argument("--minutes", type=float, default=3.0, help="how long there are faults (%(default)s)")
    parser.add_argument("--asks", type=int, default=0, help="how many in all; default: by the length, at least 20,000")
    parser.add_argument("--directory", type=Path, default=Path(".artefacts/chaos"), help="of logs and dumps")
    parser.add_argument("--keep", action="store_true", help="keep logs and dumps of a good run, too")
    parser.add_argument("--plan", action="store_true", help="print the plan of faults and end")
    options = parser.parse_args(arguments)
    seed = options.seed if options.seed is not None else random.SystemRandom().randrange(10**6)
    if options.plan:
        print(*plan(seed, options.minutes * 60), sep="\n")
        return 0
    directory = (options.directory / f"{seed}-{os.getpid()}").absolute()
    directory.mkdir(parents=True)
    goal = options.asks or max(ASKS_AT_LEAST, round(ASKS_PER_MINUTE * options.minutes))
    began_s = time.monotonic()
    with (directory / "rms.log").open("w") as said:
        structlog.configure(logger_factory=structlog.PrintLoggerFactory(said))
        findings = asyncio.run(_until_told(storm(seed, options.minutes, goal, directory)))
    if findings:
        _tell(seed, options.minutes, findings, directory, plan(seed, options.minutes * 60))
        return 1
    print(f"nothing is wrong: seed {seed}, {options.minutes:g} min, {time.monotonic() - began_s:.0f} s in all")
    if not options.keep:
        shutil.rmtree(directory, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
