"""Generated bad input for operators' calls, figures and callback streams, against the whole of Muster.

As in test_generated_bad_input.py: a clear answer each, the RM's whole state is what it was, and another RM of the same
partition gets its next allocation on streams that were open all along.
"""

from __future__ import annotations

import os
from contextlib import suppress

import pytest
from e2e.arena import Arena
from e2e.spoilt import BREAKER, SECRET, VICTIM, WITNESS
from e2e.spoilt_calls import (
    BAD_ADMIN_CALLS,
    BAD_EVENTS_CALLS,
    BAD_METRICS_CALLS,
    HELLO,
    BadCall,
    BadUpdate,
    BrokenCallbacks,
    bad_updates,
    broken_callbacks,
    unasked_answers,
)
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from muster_proto.muster.v1 import admin_pb2, callbacks_pb2
from waiting import eventually

EXAMPLES = int(os.environ.get("MUSTER_BAD_INPUT_EXAMPLES", "40"))
generated = settings(
    max_examples=EXAMPLES,
    derandomize=True,
    database=None,
    phases=(Phase.generate,),
    suppress_health_check=list(HealthCheck),
)
RMS = (VICTIM, WITNESS, BREAKER)


async def _unharmed(arena: Arena, before: dict[str, dict[bytes, bytes]]) -> None:
    await arena.serve(WITNESS)
    await arena.serve(VICTIM)
    # (A decision's last steps may come behind its answer.)
    with suppress(AssertionError):
        await eventually(lambda: arena.states() == before)
    states = arena.states()
    differing = {
        rm: {key for key in {**before[rm], **states[rm]} if before[rm].get(key) != states[rm].get(key)} for rm in before
    }
    assert states == before, differing


async def _refused(arena: Arena, bad: BadCall) -> None:
    before = arena.states()
    code, story, answer = await arena.call(bad.method, bad.raw, answers_many=bad.answers_many)
    assert code in bad.statuses, (story, answer)
    if code == "OK":
        said = admin_pb2.UpdateConfigurationResponse.FromString(answer)
        assert not said.accepted
        errors = [each for each in said.problems if each.severity == admin_pb2.ConfigurationProblem.ERROR]
        assert errors
        assert all(each.line and each.column for each in errors)
    else:
        assert bad.says in story
        assert SECRET not in story
    await _unharmed(arena, before)


@pytest.mark.parametrize("way", range(len(BAD_ADMIN_CALLS)))
def test_bad_calls_of_operators(arena: Arena, way: int) -> None:
    _every_one_refused(arena, BAD_ADMIN_CALLS[way])


@pytest.mark.parametrize("way", range(len(BAD_METRICS_CALLS)))
def test_bad_questions_for_figures(arena: Arena, way: int) -> None:
    _every_one_refused(arena, BAD_METRICS_CALLS[way])


@pytest.mark.parametrize("way", range(len(BAD_EVENTS_CALLS)))
def test_bad_calls_for_events(arena: Arena, way: int) -> None:
    _every_one_refused(arena, BAD_EVENTS_CALLS[way])


def _every_one_refused(arena: Arena, calls: st.SearchStrategy[BadCall]) -> None:
    @settings(generated, max_examples=max(3, EXAMPLES // 10))
    @given(bad=calls)
    def each(bad: BadCall) -> None:
        arena.run(_refused(arena, bad))

    each()


@generated
@given(broken=broken_callbacks)
def test_messages_that_end_their_callback_stream_end_no_other(arena: Arena, broken: BrokenCallbacks) -> None:
    async def example() -> None:
        before = arena.states()
        stream = arena.callbacks()
        code, story = await arena.ended(stream, broken.messages)
        assert code in broken.statuses, story
        assert broken.says in story
        await _unharmed(arena, before)

    arena.run(example())


@generated
@given(message=unasked_answers)
def test_answers_without_a_question_have_no_effect(arena: Arena, message: callbacks_pb2.FromResourceManager) -> None:
    async def example() -> None:
        before = arena.states()
        stream = arena.callbacks()
        await stream.send(HELLO.SerializeToString())
        assert (await arena.heard(stream)).HasField("welcome")
        await stream.send(message.SerializeToString())
        # The stream goes on: what stands behind is answered.
        last = callbacks_pb2.ConfigurationUpdate(id="last")
        await stream.send(callbacks_pb2.FromResourceManager(configurations=[last]).SerializeToString())
        (result,) = (await arena.heard(stream)).configurations
        assert result.id == "last"
        assert "request.rmID" in result.error
        await _unharmed(arena, before)
        stream.cancel()

    arena.run(example())


@generated
@given(bad=bad_updates)
def test_bad_configurations_over_a_callback_stream(arena: Arena, bad: BadUpdate) -> None:
    async def example() -> None:
        before = arena.states()
        stream = arena.callbacks()
        await stream.send(
            callbacks_pb2.FromResourceManager(hello=callbacks_pb2.Hello(rm_id=VICTIM)).SerializeToString()
        )
        assert (await arena.heard(stream)).HasField("welcome")
        await stream.send(callbacks_pb2.FromResourceManager(configurations=[bad.update]).SerializeToString())
        (result,) = (await arena.heard(stream)).configurations
        assert result.id == bad.update.id
        if result.error:
            assert bad.says in result.error
        else:
            assert not result.response.accepted
            assert result.response.problems
        await _unharmed(arena, before)
        stream.cancel()

    arena.run(example())
