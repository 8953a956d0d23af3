"""Generated bad input against the whole of Muster: each gets a clear answer, changes nothing, and harms no other RM.

For each request of si.v1.Scheduler: every field with every kind of wrong value (``spoilt.py``), messages that are none,
in nobody's name or too large. After each one the attacked RM's whole state is what it was, and another RM, of the same
partition and on streams that were open all along, gets its next allocation.
"""

from __future__ import annotations

import os
from contextlib import suppress

import pytest
from e2e.arena import Arena
from e2e.spoilt import (
    ALLOCATION,
    APPLICATION,
    BRANCHES,
    BREAKER,
    NODE,
    RUNS,
    SECRET,
    VICTIM,
    WITNESS,
    BadRegistration,
    Broken,
    Spoilt,
    allocation,
    bad_registrations,
    broken_streams,
    messages,
    old_ask,
    request_of,
)
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from muster_bus.topics import HEADER_ERROR
from muster_gateway.stream_kind import StreamKind
from muster_proto.muster.bus.v1 import envelope_pb2 as pb
from muster_proto.si.v1 import si_pb2 as si
from waiting import eventually

EXAMPLES = int(os.environ.get("MUSTER_BAD_INPUT_EXAMPLES", "40"))
# No shrinking: an example that fails waits for an answer that does not come.
generated = settings(
    max_examples=EXAMPLES,
    derandomize=True,
    database=None,
    phases=(Phase.generate,),
    suppress_health_check=list(HealthCheck),
)


async def _turned_away(arena: Arena, kind: StreamKind, items: list[Spoilt]) -> None:
    before = arena.state(VICTIM)
    assert len(before) >= 6, "no state to protect: the test proves nothing"
    reasons = await arena.rejections(kind, request_of(kind, items), len(items))
    for each in items:
        told = any(all(text in reason for text in each.says) for reason in reasons)
        # (Of two for one key the second is a mistake for that alone.)
        twice = len(items) > 1 and any("a second time" in reason for reason in reasons)
        assert told or twice, (each, reasons)
    assert len(reasons) == len(items), "one answer for each item"
    await arena.serve(WITNESS)
    assert arena.state(VICTIM) == before
    assert not any(SECRET in reason for reason in reasons)


@pytest.mark.parametrize(
    ("kind", "branch"), [(kind, branch) for kind, branches in BRANCHES.items() for branch in range(len(branches))]
)
def test_every_way_to_spoil_an_item_alone(arena: Arena, kind: StreamKind, branch: int) -> None:
    @settings(generated, max_examples=max(3, EXAMPLES // 20))
    @given(item=BRANCHES[kind][branch])
    def each(item: Spoilt) -> None:
        arena.run(_turned_away(arena, kind, [item]))

    each()


@generated
@given(items=messages(ALLOCATION))
def test_bad_asks_allocations_and_releases_of_both_generations(arena: Arena, items: list[Spoilt]) -> None:
    arena.run(_turned_away(arena, ALLOCATION, items))


@generated
@given(items=messages(APPLICATION))
def test_bad_applications(arena: Arena, items: list[Spoilt]) -> None:
    arena.run(_turned_away(arena, APPLICATION, items))


@generated
@given(items=messages(NODE))
def test_bad_nodes_of_both_generations(arena: Arena, items: list[Spoilt]) -> None:
    arena.run(_turned_away(arena, NODE, items))


@generated
@given(broken=broken_streams)
def test_messages_that_end_their_stream_end_no_other(arena: Arena, broken: Broken) -> None:
    async def example() -> None:
        before = arena.state(BREAKER), arena.state(VICTIM)
        code, story = await arena.broken(broken.kind, broken.messages)
        assert code.name in broken.statuses, story
        assert broken.says in story
        assert SECRET not in story
        await arena.serve(WITNESS)
        await arena.serve(VICTIM)
        await _is_as_before(arena, before[1])
        assert _but_life(arena.state(BREAKER)) == _but_life(before[0])

    arena.run(example())


async def _is_as_before(arena: Arena, before: dict[bytes, bytes]) -> None:
    """The victim's state is as it was. (A decision's last steps may come behind its answer.)"""
    with suppress(AssertionError):
        await eventually(lambda: arena.state(VICTIM) == before)
    assert arena.state(VICTIM) == before


def _but_life(state: dict[bytes, bytes]) -> dict[bytes, bytes]:
    """Without the RM's own: a stream that comes and goes makes it RUNNING and DISCONNECTED by turns."""
    return {key: value for key, value in state.items() if key != b"rm"}


@generated
@given(registration=bad_registrations)
def test_bad_registrations_of_a_living_rm(arena: Arena, registration: BadRegistration) -> None:
    async def example() -> None:
        before = arena.state(VICTIM)
        code, story = await arena.register(registration.raw)
        assert code.name in registration.statuses, story
        assert registration.says in story
        assert SECRET not in story
        await arena.serve(WITNESS)
        assert arena.state(VICTIM) == before
        assert len(arena.machine.rms) == 3

    arena.run(example())


@pytest.mark.parametrize("twice", [allocation(allocationKey=RUNS), old_ask(allocationKey=RUNS, maxAllocations=1)])
def test_a_running_allocation_asked_for_twice_in_one_message(
    arena: Arena, twice: si.Allocation | si.AllocationAsk
) -> None:
    """Both say what was said before, in either generation's words: the second is an update that changes nothing."""

    async def example() -> None:
        before = arena.state(VICTIM)
        message = si.AllocationRequest(rmID=VICTIM, allocations=[allocation(allocationKey=RUNS)])
        (message.asks if isinstance(twice, si.AllocationAsk) else message.allocations).append(twice)
        assert await arena.rejections(ALLOCATION, message, 0) == []
        await arena.serve(VICTIM)
        await arena.serve(WITNESS)
        await _is_as_before(arena, before)

    arena.run(example())


# ---- past the gateway --------------------------------------------------------------------------------------------

_BODIES = ("register", "allocation", "application", "node", "configuration", "callback_answers")


def _no_message(body: str, raw: bytes) -> bytes:
    """Such bytes that they are no message of any kind: a length that goes beyond the end."""
    return b"\x0a\xff\x01" + raw[:50]


envelopes = st.one_of(
    # not an envelope
    st.binary(max_size=200).map(lambda raw: b"\x0a\xff\x01" + raw),
    st.just(b""),
    # of nobody, or of somebody who is not registered
    st.builds(
        lambda rm_id, body: pb.RequestEnvelope(rm_id=rm_id, **{body: b""}).SerializeToString(),
        st.sampled_from(["", "ghost"]),
        st.sampled_from(_BODIES[1:]),
    ),
    # no body, and the body of a newer gateway: field 100, with bytes
    st.just(pb.RequestEnvelope(rm_id=VICTIM).SerializeToString()),
    st.binary(max_size=100).map(
        lambda raw: pb.RequestEnvelope(rm_id=VICTIM).SerializeToString() + b"\xa2\x06" + bytes([len(raw)]) + raw
    ),
    # a body that is no message
    st.builds(
        lambda body, raw: pb.RequestEnvelope(rm_id=VICTIM, **{body: _no_message(body, raw)}).SerializeToString(),
        st.sampled_from(_BODIES),
        st.binary(max_size=50) | st.just(SECRET.encode()),
    ),
    # a life that is none
    st.integers(5, 2**31 - 1).map(
        lambda state: pb.RequestEnvelope(
            rm_id=VICTIM,
            lifecycle=pb.RmLifecycle(state=state),  # type: ignore[arg-type]
        ).SerializeToString()
    ),
)


@generated
@given(value=envelopes)
def test_records_of_a_hostile_or_newer_gateway_go_to_the_dead_letters(arena: Arena, value: bytes) -> None:
    async def example() -> None:
        before, dead = arena.state(VICTIM), len(await arena.dead_letters())
        await arena.append(value)
        await arena.serve(WITNESS)
        await arena.serve(VICTIM)
        await _is_as_before(arena, before)
        assert len(arena.machine.rms) == 3
        letters = await arena.dead_letters()
        assert len(letters) == dead + 1
        kept, why = letters[-1].value, dict(letters[-1].headers)[HEADER_ERROR]
        assert why
        assert SECRET.encode() not in why
        if b"is left out" in why:  # it may hold secrets
            assert SECRET.encode() not in (kept or b"")
        else:
            assert kept == value

    arena.run(example())
