"""A real Prometheus scrapes a busy `muster up`: every panel has data, and the data are right."""

from __future__ import annotations

import asyncio
import math
import runpy
import urllib.request
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from e2e.gang_rig import Rm
from exposed import Family, parse
from muster_client import ask
from prometheus import Prometheus, asking
from up import Up
from waiting import eventually
from wanting import server_wanted

CODE = runpy.run_path(str(Path(__file__).parents[2] / "deploy" / "compose" / "grafana" / "dashboard.py"))
PANELS = [(row.title, panel) for row in CODE["ROWS"] for panel in row.panels]
# Rates need the samples of a while, of which the busy part must be one; a busy machine takes its time. (A query that
# comes behind that while would have no rate, however long it waits.)
_OVER, _PATIENCE_S = "30m", 60.0
_CONTAINERS = "yunikorn_root_work_queue_container"
QUEUES = """
partitions:
  - name: default
    preemption: {enabled: true}
    queues:
      - name: root
        queues:
          - {name: work, submitacl: '*', resources: {guaranteed: {vcore: 2}, max: {vcore: 6}}}
          - {name: gangs, submitacl: '*'}
          - {name: locked, submitacl: alice}
"""


class Lived(NamedTuple):
    """A Muster in which all of :func:`live` happened, and who watched it from the beginning."""

    prometheus: Prometheus
    rm: Rm


async def live(rm: Rm, noticed: Callable[[str], Awaitable[None]]) -> None:
    """What the values below are about.

    :param noticed: returns when Prometheus knows a series: what it counted before counts for no rate.
    """
    await rm.nodes(n1=8_000, n2=4_000)
    assert (await rm.application("refused", "root.locked")).how == "Rejected"
    # 1. six allocations of 1, of which two end; two asks that wait for the queue's max, one larger than any node
    await rm.application("x", "root.work")
    keys = [f"k{number}" for number in range(8)]
    await rm.client.send_asks([ask(key, "x", {"vcore": 1_000}) for key in keys])
    await rm.hears("application", "x", "Running")
    await eventually(lambda: len(rm.runs) == 6, "six run")
    await rm.ends(*list(rm.runs)[:2])  # two that waited come after them
    await eventually(lambda: len(rm.runs) == 6, "six run")
    await rm.client.send_asks([ask("large", "x", {"vcore": 100_000})])
    for series in ("muster_scheduler_decisions_total", "muster_publisher_export_seconds_count", _CONTAINERS):
        await noticed(series)
    # 2. a placeholder, and what takes its place
    await rm.application("gang", "root.gangs", 500)
    (placeholder,) = await rm.placeholders("gang", 1, 500)
    await rm.hears("new", placeholder)
    real = await rm.real("gang", "real", 500)
    await rm.swaps(placeholder, real)
    # 3. an ask of an application that nobody knows is rejected
    await rm.barrier()


@pytest.fixture(scope="module")
def lived(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lived]:
    """(A loop of its own: the tests look from outside.)"""
    directory = tmp_path_factory.mktemp("dashboard")
    muster = Up(directory, "--set", "publisher.parquet_roll_s=1")

    async def lives() -> AsyncIterator[Lived]:
        await muster.start()
        with asking(muster.http.removeprefix("http://"), directory / "prometheus") as prometheus:
            await _eventually(lambda: len(prometheus.values("up == 1")) == 2, "Prometheus hears Muster")
            async with Rm(muster.grpc, muster.http, "rm1", QUEUES) as rm:
                await live(rm, lambda series: _eventually(lambda: prometheus.values(series), series))
                yield Lived(prometheus, rm)

    loop = asyncio.new_event_loop()
    try:
        with server_wanted():
            life = lives()
            yield loop.run_until_complete(anext(life))
            loop.run_until_complete(life.aclose())
    finally:
        muster.process.kill()
        loop.close()


async def _eventually(look: Callable[[], object], what: str) -> None:
    async with asyncio.timeout(_PATIENCE_S):
        while not look():  # noqa: ASYNC110
            await asyncio.sleep(0.2)


def soon(look: Callable[[], object], what: str) -> None:
    try:
        asyncio.run(_eventually(look, what))
    except TimeoutError:
        raise AssertionError(f"not within {_PATIENCE_S:.0f} s: {what}") from None


def filled_in(expression: str) -> str:
    for name, _, _ in CODE["VARIABLES"]:
        expression = expression.replace(f"${name}", ".*")
    return expression.replace("$__rate_interval", _OVER)


@pytest.mark.parametrize(("row", "panel"), PANELS, ids=[f"{row}: {panel.title}" for row, panel in PANELS])
def test_every_panel_has_data(lived: Lived, row: str, panel: object) -> None:
    for legend, expression in panel.asks:  # type: ignore[attr-defined]
        query = filled_in(expression)
        soon(
            lambda query=query: [value for value in lived.prometheus.values(query) if not math.isnan(value)],
            f"{row}, {legend}: {query}",
        )


@pytest.mark.parametrize(("name", "_label", "query"), CODE["VARIABLES"], ids=lambda value: str(value))
def test_every_variable_has_values(lived: Lived, name: str, _label: str, query: str) -> None:
    series, _, label = query.removeprefix("label_values(").removesuffix(")").rpartition(", ")
    expected = {"queue": {"root", "root.work", "root.gangs", "root.locked"}, "resource": {"vcore"}}

    def found() -> set[str]:
        return {each["metric"][label] for each in lived.prometheus.query(f"group by ({label}) ({series})")}

    # (A scrape that was too late for a busy machine ends all series until the next one.)
    soon(lambda: found() == expected[name], f"{name} is one of {expected[name]}")


_Q = "yunikorn_queue_resource"
TRUE = {
    'sum(yunikorn_scheduler_container_allocation_attempt_total{state="allocated"})': 10,
    'sum(yunikorn_scheduler_container_allocation_attempt_total{state="released"})': 3,
    'sum(yunikorn_scheduler_container_allocation_attempt_total{state="rejected"})': 1,
    'sum(yunikorn_scheduler_application_submission_total{result="new"})': 3,
    'sum(yunikorn_scheduler_application_submission_total{result="accepted"})': 2,
    'sum(yunikorn_scheduler_application_submission_total{result="rejected"})': 1,
    'sum(yunikorn_scheduler_application_total{state="running"})': 2,
    'sum(yunikorn_scheduler_node{state="active"})': 2,
    "sum(yunikorn_scheduler_vcore_node_usage_total)": 2,
    f'{_Q}{{queue="root.work", state="allocated", resource="vcore"}}': 6_000,
    f'{_Q}{{queue="root.work", state="pending", resource="vcore"}}': 100_000,
    f'{_Q}{{queue="root.work", state="guaranteed", resource="vcore"}}': 2_000,
    f'{_Q}{{queue="root.work", state="max", resource="vcore"}}': 6_000,
    f'{_Q}{{queue="root", state="max", resource="vcore"}}': 12_000,
    f'{_Q}{{queue="root", state="allocated", resource="vcore"}}': 6_500,
    'yunikorn_root_work_queue_container{state="allocated"}': 8,
    'yunikorn_root_work_queue_container{state="released"}': 2,
    'yunikorn_root_gangs_queue_container{state="allocated"}': 2,
    'yunikorn_root_gangs_queue_container{state="released"}': 1,
    'yunikorn_queue_app{queue="root.locked", state="rejected"}': 1,
    'yunikorn_queue_app_total{queue="root.locked", state="rejected"}': 1,
    'sum(muster_scheduler_replacements_total{rm="rm1"})': 1,
    "sum(muster_gateway_streams_open)": 3,
    "sum(muster_view_lag_records)": 0,
    "yunikorn_event_total_not_channeled": 0,
}


@pytest.mark.parametrize(("query", "value"), TRUE.items(), ids=list(TRUE))
def test_values_are_true(lived: Lived, query: str, value: float) -> None:
    soon(lambda: lived.prometheus.values(query) == [value], f"{query} is {value}: {lived.prometheus.values(query)}")


def test_the_histogram_s_count_is_the_rounds(lived: Lived) -> None:
    counted = "yunikorn_scheduler_scheduling_latency_milliseconds_count"
    soon(
        lambda: lived.prometheus.values(f"{counted} == on () sum(muster_scheduler_decisions_total)"),
        f"{lived.prometheus.values(counted)}: as many as rounds",
    )


def test_prometheus_reads_all_of_it_as_its_type_and_nothing_twice(lived: Lived) -> None:
    families: list[Family] = []

    def all_up() -> bool:
        return {(each["health"], each["lastError"]) for each in lived.prometheus.targets()} == {("up", "")}

    soon(all_up, "both addresses are read")
    for target in lived.prometheus.targets():
        with urllib.request.urlopen(target["scrapeUrl"], timeout=60) as answer:
            families += parse(answer.read().decode()).values()
    assert not [family.name for family in families if family.type == "untyped"]
    # What one process counts is exposed by it alone: sums over both addresses are true.
    counted = [family.name for family in families if family.name.startswith("muster_") and any(family.samples.values())]
    both = {name for name in counted if counted.count(name) > 1}
    assert not {name for name in both if name.startswith(("muster_scheduler", "muster_gateway", "muster_publisher"))}
