import re
import xml.etree.ElementTree as ET

import pytest

from bench.flames import Box, Frame, boxes_of, figure, frame_of, read_stacks, tree_of

TURN = Frame("asyncio.base_events", "_run_once")
APPLY, EMIT = Frame("muster_core.scheduler", "apply"), Frame("muster_scheduler.emit", "emit")
LOOP = "<module> (muster);run (asyncio/runners.py);_run_once (asyncio/base_events.py)"
RAW = f"""
{LOOP};_run (asyncio/events.py);apply (muster_core/scheduler.py) 6
{LOOP};_run (asyncio/events.py);emit (muster_scheduler/emit.py:7) 3
{LOOP} 1
{LOOP};select (selectors.py) 50
thread (0x7F12): "muster-log-writer_0";_bootstrap (threading.py);wait (threading.py:320) 50
thread (0x7F13): "pool_1" 50
"""


@pytest.mark.parametrize(
    ("text", "frame"),
    [
        (
            "KafkaOwner.commit (muster_bus/backends/kafka_owner.py:12)",
            ("muster_bus.backends.kafka_owner", "KafkaOwner.commit"),
        ),
        ("<lambda> (/home/x/.venv/lib/python3.11/site-packages/aiokafka/conn.py)", ("aiokafka.conn", "<lambda>")),
        ("select (selectors.py)", ("selectors", "select")),
        ("f (/srv/muster/libs/core/src/muster_core/__init__.py:3)", ("muster_core", "f")),
        ('thread (0x7F12): "muster-log-writer_0"', ("", "muster-log-writer")),
        ("thread (12): MainThread", ("", "main thread")),
        ("thread (0x7F12)", ("", "a thread")),
    ],
)
def test_a_frame_is_a_module_and_a_function_without_a_path(text: str, frame: tuple[str, str]) -> None:
    assert frame_of(text) == frame


def test_stacks_have_no_plumbing_no_lines_and_no_thread_that_waits() -> None:
    assert read_stacks(RAW) == {(TURN, APPLY): 6, (TURN, EMIT): 3, (TURN,): 1}


def test_a_frame_is_as_wide_as_its_samples_and_stands_under_its_caller() -> None:
    boxes = list(boxes_of(tree_of(read_stacks(RAW)), least=0.1))
    assert boxes == [Box(TURN, 0, 0.0, 1.0), Box(APPLY, 1, 0.0, 0.6), Box(EMIT, 1, 0.6, 0.3)]


def test_a_small_share_is_left_out_and_moves_nothing() -> None:
    small = Frame("muster_core.a", "small")
    stacks = {(small, APPLY): 1, (EMIT,): 99}
    assert list(boxes_of(tree_of(stacks), least=0.02)) == [Box(EMIT, 0, 0.01, 0.99)]


def test_a_figure_is_xml_with_the_shares_of_its_frames_and_the_same_each_time() -> None:
    panels = [("a & b", read_stacks(RAW)), ("c", {(Frame("x", "<lambda>"),): 1})]
    drawn = figure("One <process>", panels)
    assert drawn == figure("One <process>", list(panels))
    root = ET.fromstring(drawn)
    told = [each.text for each in root.iter("{http://www.w3.org/2000/svg}title")]
    assert told[0] == "One <process>"
    assert {"muster_core.scheduler.apply: 60.0%", "muster_scheduler.emit.emit: 30.0%", "x.<lambda>: 100.0%"} < set(told)
    texts = [each.text for each in root.iter("{http://www.w3.org/2000/svg}text")]
    assert {"a & b", "c", "scheduler.apply", "scheduling core"} < set(texts)
    assert not re.search(r"\d/|/\w+/", re.sub(r"http://[^\"]+|</\w+>", "", drawn))
