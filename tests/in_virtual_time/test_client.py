"""RmClient against a gateway with faults on demand."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import grpc
import pytest
from muster_client import (
    Callbacks,
    ClientSettings,
    Rejection,
    RmClient,
    application,
    ask,
    node,
    previous_ask,
    release,
)
from muster_client import resumable_stream as client_stream
from muster_client.errors import (
    CallbackFailed,
    ClientClosed,
    ClientError,
    RegistrationFailed,
    RegistrationRejected,
    ReregistrationNeeded,
    StreamRefused,
    Superseded,
)
from muster_proto.si.v1 import si_pb2 as si
from structlog.testing import capture_logs
from unit.client.fake_gateway import FakeGateway
from virtual.plugin import advance

QUICK = ClientSettings(backoff_min_ms=5, backoff_max_ms=50, backoff_seed=1, register_timeout_s=60, close_timeout_s=2)


class Seen:
    """The arguments of the callbacks."""

    def __init__(self) -> None:
        self.allocated: list[str] = []
        self.released: list[str] = []
        self.rejections: list[Rejection] = []
        self.applications: list[tuple[str, str]] = []
        self.nodes: list[tuple[str, str]] = []
        self.streams: list[tuple[str, bool]] = []

    def callbacks(self, **others: Any) -> Callbacks:
        return Callbacks(
            on_allocated=lambda items: self.allocated.extend(item.allocationKey for item in items),
            on_released=lambda items: self.released.extend(item.allocationKey for item in items),
            on_rejected_allocation=self.rejections.extend,
            on_application=self._on_application,
            on_node=self._on_node,
            on_stream=lambda stream, opened: self.streams.append((stream, opened)),
            **others,
        )

    async def _on_application(self, accepted: Any, rejected: Any, updated: Any) -> None:
        self.applications += [("accepted", item.applicationID) for item in accepted]
        self.applications += [("rejected", item.applicationID) for item in rejected]
        self.applications += [(item.state, item.applicationID) for item in updated]

    def _on_node(self, accepted: Any, rejected: Any) -> None:
        self.nodes += [("accepted", item.nodeID) for item in accepted]
        self.nodes += [("rejected", item.nodeID) for item in rejected]


@pytest.fixture
async def gateway() -> AsyncIterator[FakeGateway]:
    fake = FakeGateway()
    await fake.start()
    yield fake
    await fake.stop()


@pytest.fixture
def seen() -> Seen:
    return Seen()


def asks(*keys: str) -> list[si.Allocation]:
    return [ask(key, "a1", {"vcore": 1}) for key in keys]


async def test_registers_with_all_parameters_and_names_itself_on_each_stream(gateway: FakeGateway) -> None:
    rm = RmClient(
        gateway.address,
        "r1",
        config="partitions: []",
        version="1",
        policy_group="queues",
        build_info={"buildVersion": "7"},
        extra_config={"log.level": "info"},
        metadata=(("authorization", "Bearer x"),),
        settings=QUICK,
    )
    async with rm:
        await rm.register()
        await advance()
        assert len(gateway.metadata) == 3, "three streams"
    request = gateway.registrations[0]
    assert (request.rmID, request.version, request.policyGroup, request.config) == (
        "r1",
        "1",
        "queues",
        "partitions: []",
    )
    assert dict(request.buildInfo) == {"buildVersion": "7"}
    assert dict(request.extraConfig) == {"log.level": "info"}
    for opened in gateway.metadata.values():
        assert opened[0]["muster-rm-id"] == "r1"
        assert opened[0]["authorization"] == "Bearer x"
        assert "muster-resume-after" not in opened[0], "after a registration the gateway knows where to begin"


async def test_asks_that_the_scheduler_gave_up_reach_their_callbacks_and_wait_for_no_answer(seen: Seen) -> None:
    gateway = FakeGateway(lambda kind, request: [])  # it allocates nothing by itself
    await gateway.start()
    dropped: list[si.AllocationAskRelease] = []
    callbacks = seen.callbacks(on_released_asks=dropped.extend)
    try:
        async with RmClient(gateway.address, "r1", callbacks=callbacks, settings=QUICK) as rm:
            await rm.register()
            await rm.send_asks([*asks("k1", "k2"), previous_ask("k3", "a1", {"vcore": 1})])
            await advance()
            assert len(gateway.items("allocation")) == 3, "the asks"
            assert rm.unanswered_asks() == 3
            now = si.AllocationRelease(applicationID="a1", allocationKey="k1", terminationType=si.TIMEOUT)
            then = si.AllocationAskRelease(applicationID="a1", allocationKey="k3", terminationType=si.TIMEOUT)
            await gateway.emit("allocation", si.AllocationResponse(released=[now], releasedAsks=[then]))
            await advance()
            assert dropped == [then], "the ask in the previous generation's words"
            assert seen.released == ["k1"]
            assert rm.unanswered_asks() == 1
    finally:
        await gateway.stop()


async def test_nodes_applications_asks_and_releases_reach_their_callbacks(gateway: FakeGateway, seen: Seen) -> None:
    async with RmClient(gateway.address, "r1", callbacks=seen.callbacks(), settings=QUICK) as rm:
        await rm.register()
        await rm.send_nodes([node("n1", {"vcore": 10})])
        await rm.nodes_answered()
        await rm.send_applications([application("a1", "root.a")])
        await rm.applications_answered()
        await rm.send_asks([*asks("k1"), previous_ask("k2", "a1", {"vcore": 1})])
        await rm.send_releases([release("a1", "k1")])
        await advance()
        assert seen.released == ["k1"], "the release"
        assert rm.unanswered_asks() == 0
    assert seen.nodes == [("accepted", "n1")]
    assert seen.applications == [("accepted", "a1")]
    assert sorted(seen.allocated) == ["k1", "k2"]
    assert {name for name, opened in seen.streams if opened} == {"node", "application", "allocation"}


async def test_rejections_of_both_generations_come_through_one_callback(gateway: FakeGateway, seen: Seen) -> None:
    def refuse(kind: str, request: Any) -> list[Any]:
        return [
            si.AllocationResponse(
                rejected=[si.RejectedAllocationAsk(allocationKey="k2", applicationID="a1", reason="old")],
                rejectedAllocations=[si.RejectedAllocation(allocationKey="k1", applicationID="a1", reason="new")],
            )
        ]

    gateway.answer = refuse
    async with RmClient(gateway.address, "r1", callbacks=seen.callbacks(), settings=QUICK) as rm:
        await rm.register()
        await rm.send_asks([*asks("k1"), previous_ask("k2", "a1", {"vcore": 1})])
        await advance()
        assert len(seen.rejections) == 2, "two rejections"
        assert rm.unanswered_asks() == 0
    assert seen.rejections == [Rejection("k2", "a1", "old", True), Rejection("k1", "a1", "new", False)]


async def test_messages_lost_with_their_stream_are_sent_again_in_order(gateway: FakeGateway, seen: Seen) -> None:
    gateway.lose_before["allocation"] = 2
    gateway.answer = lambda kind, request: []  # there is no proof that the gateway took any message
    async with RmClient(gateway.address, "r1", callbacks=seen.callbacks(), settings=QUICK) as rm:
        await rm.register()
        for number in range(5):
            await rm.send_asks(asks(f"k{number}"))
        await advance()
        assert gateway.items("allocation")[-5:] == [f"k{n}" for n in range(5)], "all five, in order"
        assert rm.metrics.messages_sent_again >= 2


async def test_messages_proven_as_taken_are_not_sent_again(gateway: FakeGateway, seen: Seen) -> None:
    def answer_only_the_third(kind: str, request: Any) -> list[Any]:
        keys = [item.allocationKey for item in request.allocations]
        new = [si.Allocation(allocationKey="k2", applicationID="a1")] if keys == ["k2"] else []
        return [si.AllocationResponse(new=new)] if new else []

    gateway.answer = answer_only_the_third
    async with RmClient(gateway.address, "r1", callbacks=seen.callbacks(), settings=QUICK) as rm:
        await rm.register()
        for number in range(3):
            await rm.send_asks(asks(f"k{number}"))
        await advance()
        assert seen.allocated == ["k2"], "the answer"
        gateway.lose_before["allocation"] = 0
        await rm.send_asks(asks("k3"))
        await advance()
        assert "k3" in gateway.items("allocation"), "the ask after the loss"
    assert gateway.items("allocation") == ["k0", "k1", "k2", "k3"], "k0 and k1 were before k2 on the same stream"


async def test_resumes_after_the_last_response_that_the_callbacks_took(gateway: FakeGateway, seen: Seen) -> None:
    async with RmClient(gateway.address, "r1", callbacks=seen.callbacks(), settings=QUICK) as rm:
        await rm.register()
        await rm.send_asks(asks("k1"))
        await advance()
        assert seen.allocated == ["k1"], "the first"
        last = rm.last_sequence("allocation")
        gateway.lose_after["allocation"] = 0
        await rm.send_asks(asks("k2"))  # the gateway takes and answers it; the answer is lost with the stream
        await advance()
        assert "k2" in seen.allocated, "the answer to k2, after resuming"
        assert gateway.metadata["allocation"][1]["muster-resume-after"] == str(last)


async def test_a_stream_lost_before_its_first_response_resumes_from_the_beginning(
    gateway: FakeGateway, seen: Seen
) -> None:
    gateway.lose_after["node"] = 0
    async with RmClient(gateway.address, "r1", callbacks=seen.callbacks(), settings=QUICK) as rm:
        await rm.register()
        await rm.send_nodes([node("n1", {"vcore": 1})])
        await rm.nodes_answered()
        assert gateway.metadata["node"][1]["muster-resume-after"] == "0"
    assert seen.nodes == [("accepted", "n1")]


async def test_responses_delivered_twice_are_dropped(gateway: FakeGateway, seen: Seen) -> None:
    async with RmClient(gateway.address, "r1", callbacks=seen.callbacks(), settings=QUICK) as rm:
        await rm.register()
        await rm.send_asks(asks("k1"))
        await rm.send_asks(asks("k2"))
        await advance()
        assert len(seen.allocated) == 2, "both"
        gateway.redeliver = 100
        gateway.lose_before["allocation"] = 0
        await rm.send_asks(asks("k3"))
        await advance()
        assert "k3" in seen.allocated, "the third"
        assert rm.metrics.responses_dropped_as_duplicate >= 2
    assert seen.allocated == ["k1", "k2", "k3"]


async def test_the_second_answer_to_a_node_that_was_sent_twice_stays_inside(gateway: FakeGateway, seen: Seen) -> None:
    known: set[str] = set()

    def accept_once(kind: str, request: Any) -> list[Any]:
        response = si.NodeResponse()
        for item in request.nodes:
            if item.nodeID in known:
                response.rejected.add(nodeID=item.nodeID, reason="node exists")
            else:
                response.accepted.add(nodeID=item.nodeID)
            known.add(item.nodeID)
        return [response]

    gateway.answer = accept_once
    gateway.lose_after["node"] = 0
    async with RmClient(gateway.address, "r1", callbacks=seen.callbacks(), settings=QUICK) as rm:
        await rm.register()
        await rm.send_nodes([node("n1", {"vcore": 1})])
        await rm.nodes_answered()
        if gateway.items("node") == ["n1", "n1"]:  # it was sent again before the first answer came
            await advance()
            assert rm.metrics.answers_dropped_as_repeated == 1, "the second answer"
        await rm.send_nodes([node("n1", {"vcore": 1})])  # a mistake of the RM itself is reported
        await rm.nodes_answered()
    assert seen.nodes == [("accepted", "n1"), ("rejected", "n1")]


async def test_the_repeated_creation_of_a_node_differs_from_its_update(gateway: FakeGateway, seen: Seen) -> None:
    update = si.NodeInfo.UPDATE
    async with RmClient(gateway.address, "r1", callbacks=seen.callbacks(), settings=QUICK) as rm:
        gateway.answer = lambda kind, request: []
        await rm.register()
        gateway.lose_after["node"] = 0
        await rm.send_nodes([node("n1", {"vcore": 1})])
        await advance()
        assert len(gateway.taken) == 2, "it is sent again"
        await rm.send_nodes([node("n1", {"vcore": 2}, action=update)])
        await advance()
        assert len(gateway.taken) == 3, "the update"
        accepted = si.NodeResponse(accepted=[si.AcceptedNode(nodeID="n1")])
        await gateway.emit("node", accepted)
        await gateway.emit("node", si.NodeResponse(rejected=[si.RejectedNode(nodeID="n1", reason="node exists")]))
        await advance()
        assert rm.metrics.answers_dropped_as_repeated == 1, "the second answer"
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(rm.nodes_answered(), 0.02)
        await gateway.emit("node", si.NodeResponse(accepted=[si.AcceptedNode(nodeID="n1")]))
        await rm.nodes_answered()
    assert seen.nodes == [("accepted", "n1"), ("accepted", "n1")]


@pytest.mark.parametrize("action", [si.NodeInfo.UPDATE, si.NodeInfo.DRAIN_NODE, si.NodeInfo.DECOMISSION])
async def test_each_item_of_a_node_is_waited_for(gateway: FakeGateway, seen: Seen, action: Any) -> None:
    async with RmClient(gateway.address, "r1", callbacks=seen.callbacks(), settings=QUICK) as rm:
        await rm.register()
        gateway.answer = lambda kind, request: []
        await rm.send_nodes([node("n1", {"vcore": 1}), node("n1", {}, action=action)])
        waiting = asyncio.create_task(rm.nodes_answered())
        await advance()
        assert len(gateway.taken) == 1, "the message"
        for number in range(2):
            await advance()
            assert len(seen.nodes) == number, "the answers so far"
            await asyncio.sleep(0.01)
            assert not waiting.done()
            await gateway.emit("node", si.NodeResponse(accepted=[si.AcceptedNode(nodeID="n1")]))
        await waiting
        await rm.send_nodes([node("n1", {}, action=action)])
        rejected = si.NodeResponse(rejected=[si.RejectedNode(nodeID="n1", reason="bad")])
        await gateway.emit("node", rejected, numbered=False)
        await rm.nodes_answered()
    assert seen.nodes == [("accepted", "n1"), ("accepted", "n1"), ("rejected", "n1")]


async def test_warnings_about_a_registration_are_logged_and_returned(gateway: FakeGateway) -> None:
    gateway.warnings = ["extraConfig: 'muster.callbacks.timeout': 'zehn'", "ü"]
    async with RmClient(gateway.address, "r1", settings=QUICK) as rm:
        assert rm.warnings == ()
        with capture_logs() as logged:
            await rm.register()
        assert rm.warnings == tuple(gateway.warnings)
        assert [(each["log_level"], each["warning"]) for each in logged if "warning" in each] == [
            ("warning", text) for text in gateway.warnings
        ]
        gateway.warnings = []
        await rm.register()
        assert rm.warnings == ()


@pytest.mark.parametrize("rm_id", ["clüster", "a\nb", "鍵"])
def test_an_rm_id_that_no_call_can_carry_is_refused_before_any(rm_id: str) -> None:
    with pytest.raises(ClientError, match=r"rm_id: .*expected printable ASCII"):
        RmClient("127.0.0.1:1", rm_id)


async def test_finds_a_gateway_that_comes_back(gateway: FakeGateway, seen: Seen) -> None:
    async with RmClient(gateway.address, "r1", callbacks=seen.callbacks(), settings=QUICK) as rm:
        await rm.register()
        await rm.send_asks(asks("k1"))
        await advance()
        assert seen.allocated == ["k1"], "the first"
        await gateway.stop()
        await rm.send_asks(asks("k2"))
        await advance()
        assert rm.metrics.streams_lost >= 6, "tries"
        await gateway.restart()
        await advance()
        assert "k2" in seen.allocated, "the second"
        assert len(gateway.registrations) == 1
    assert seen.allocated == ["k1", "k2"]
    assert ("allocation", False) in seen.streams


async def test_a_stream_is_open_when_the_gateway_says_so(
    gateway: FakeGateway, seen: Seen, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_stream, "_OPEN_AFTER_S", 3600.0)  # the headers alone count
    async with RmClient(gateway.address, "r1", callbacks=seen.callbacks(), settings=QUICK) as rm:
        await rm.register()
        await advance()
        assert len([name for name, opened in seen.streams if opened]) == 3, "three open streams"


async def test_a_stream_counts_as_open_though_the_gateway_has_nothing_to_say(gateway: FakeGateway, seen: Seen) -> None:
    gateway.greets = False
    async with RmClient(gateway.address, "r1", callbacks=seen.callbacks(), settings=QUICK) as rm:
        await rm.register()
        await advance()
        assert len([stream for stream, opened in seen.streams if opened]) == 3, "three open streams"


async def test_an_indicator_that_raises_harms_nothing(gateway: FakeGateway) -> None:
    def break_down(stream: str, opened: bool) -> None:
        raise ValueError(stream)

    async with RmClient(gateway.address, "r1", callbacks=Callbacks(on_stream=break_down), settings=QUICK) as rm:
        await rm.register()
        await rm.send_nodes([node("n1", {"vcore": 1})])
        await rm.nodes_answered()


async def test_waits_for_a_gateway_that_starts_later(gateway: FakeGateway) -> None:
    await gateway.stop()
    async with RmClient(gateway.address, "r1", settings=QUICK) as rm:
        registering = asyncio.create_task(rm.register())
        await asyncio.sleep(0.1)
        await gateway.restart()
        await registering
    assert len(gateway.registrations) == 1


async def test_gives_up_registering_in_time(gateway: FakeGateway) -> None:
    await gateway.stop()
    settings = replace(QUICK, register_timeout_s=0.3)
    async with RmClient(gateway.address, "r1", settings=settings) as rm:
        with pytest.raises(RegistrationFailed, match=r"0\.3 s"):
            await rm.register()


async def test_a_refused_registration_says_why_and_is_not_tried_again(gateway: FakeGateway) -> None:
    gateway.refuse_registration = (grpc.StatusCode.INVALID_ARGUMENT, "config line 3, column 5: unknown key")
    async with RmClient(gateway.address, "r1", settings=QUICK) as rm:
        with pytest.raises(RegistrationRejected, match="line 3, column 5") as caught:
            await rm.register()
    assert caught.value.code is grpc.StatusCode.INVALID_ARGUMENT


async def test_a_refused_stream_ends_the_client_with_the_gateways_words(gateway: FakeGateway) -> None:
    gateway.refuse_streams = (grpc.StatusCode.PERMISSION_DENIED, "this token is for another rmID")
    async with RmClient(gateway.address, "r1", settings=QUICK) as rm:
        await rm.register()
        with pytest.raises(StreamRefused, match="another rmID"):
            await rm.wait()
        with pytest.raises(StreamRefused):
            await rm.send_asks(asks("k1"))


async def test_a_status_that_may_pass_is_tried_a_bounded_number_of_times(gateway: FakeGateway) -> None:
    gateway.refuse_streams = (grpc.StatusCode.RESOURCE_EXHAUSTED, "message of 5000000 bytes, at most 4194304")
    async with RmClient(gateway.address, "r1", settings=replace(QUICK, fruitless_attempts=3)) as rm:
        await rm.register()
        with pytest.raises(StreamRefused, match="4194304"):
            await rm.wait()
    assert max(len(opened) for opened in gateway.metadata.values()) == 3


async def test_a_stream_that_breaks_while_it_is_written_to_is_not_refused(gateway: FakeGateway) -> None:
    gateway.refuse_streams = (grpc.StatusCode.INTERNAL, "Internal error from Core")  # gRPC's own client says so
    async with RmClient(gateway.address, "r1", settings=replace(QUICK, fruitless_attempts=3)) as rm:
        await rm.register()
        async with asyncio.timeout(60):
            while min(len(gateway.metadata[kind]) for kind in ("allocation", "application", "node")) < 5:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        gateway.refuse_streams = None
        await rm.send_asks(asks("k1"))
        async with asyncio.timeout(60):
            while "k1" not in gateway.items("allocation"):  # noqa: ASYNC110
                await asyncio.sleep(0.01)


async def test_two_connections_of_one_rm_do_not_fight_for_ever(gateway: FakeGateway) -> None:
    gateway.refuse_streams = (grpc.StatusCode.ABORTED, "superseded by a newer stream")
    async with RmClient(gateway.address, "r1", settings=QUICK) as rm:
        await rm.register()
        with pytest.raises(Superseded, match="newer stream"):
            await asyncio.wait_for(rm.wait(), 60)


async def test_lost_responses_need_a_new_registration(gateway: FakeGateway) -> None:
    gateway.refuse_streams = (grpc.StatusCode.DATA_LOSS, "responses 5 to 7 are gone")
    async with RmClient(gateway.address, "r1", settings=QUICK) as rm:
        await rm.register()
        with pytest.raises(ReregistrationNeeded, match="5 to 7"):
            await asyncio.wait_for(rm.wait(), 60)


async def test_an_unknown_rm_is_notified_and_may_register_again(gateway: FakeGateway, seen: Seen) -> None:
    told: list[str] = []

    async def report_again(words: str) -> None:
        told.append(words)
        await rm.register()
        await rm.send_asks(asks("k1", "k2"))

    rm = RmClient(gateway.address, "r1", callbacks=seen.callbacks(on_reregister_needed=report_again), settings=QUICK)
    async with rm:
        await rm.register()
        await rm.send_asks(asks("k1"))
        await advance()
        assert seen.allocated == ["k1"], "the first"
        await gateway.stop()
        gateway.known = False
        await gateway.restart()
        await advance()
        assert len(seen.allocated) == 3, "both after the second registration"
    assert told == ["rmID r1 is not registered"]
    assert len(gateway.registrations) == 2
    assert gateway.items("allocation") == ["k1", "k1", "k2"], "nothing of before the registration is sent again"


async def test_registers_again_by_itself_if_the_setting_says_so(gateway: FakeGateway, seen: Seen) -> None:
    registered = asyncio.Event()
    settings = replace(QUICK, reregister="automatic")
    callbacks = seen.callbacks(on_registered=registered.set)
    async with RmClient(gateway.address, "r1", callbacks=callbacks, settings=settings) as rm:
        await rm.register()
        await gateway.stop()
        gateway.known = False
        await gateway.restart()
        await asyncio.wait_for(registered.wait(), 60)
        await rm.send_asks(asks("k1"))
        await advance()
        assert seen.allocated == ["k1"], "an allocation after it"


async def test_without_a_callback_an_unknown_rm_ends_the_client(gateway: FakeGateway) -> None:
    async with RmClient(gateway.address, "r1", settings=QUICK) as rm:
        await rm.attach()  # never registered
        with pytest.raises(ReregistrationNeeded, match="not registered"):
            await rm.wait()
        with pytest.raises(ReregistrationNeeded):
            await rm.send_asks(asks("k1"))


async def test_attach_goes_on_without_registering(gateway: FakeGateway, seen: Seen) -> None:
    gateway.known = True
    async with RmClient(gateway.address, "r1", callbacks=seen.callbacks(), settings=QUICK) as rm:
        await rm.attach()
        await rm.send_asks(asks("k1"))
        await advance()
        assert seen.allocated == ["k1"], "an allocation"
    assert gateway.registrations == []


async def test_send_waits_while_the_gateway_does_not_read(gateway: FakeGateway) -> None:
    gateway.paused.clear()
    settings = replace(QUICK, unsent_messages=4)
    big = [ask(f"k{number}", "a1", {"vcore": 1}, tags={"t": "x" * 1_000}) for number in range(300)]
    async with RmClient(gateway.address, "r1", settings=settings) as rm:
        await rm.register()
        sent = 0

        async def send_on() -> None:
            nonlocal sent
            while True:
                await rm.send_asks(big)
                sent += 1

        with pytest.raises(TimeoutError):
            await asyncio.wait_for(send_on(), 1)
        assert sent < 200, "300 KB each: most of them would be gigabytes in memory"
        gateway.paused.set()
        async with asyncio.timeout(60):
            await rm.send_asks(asks("k-last"))


async def test_send_waits_while_the_journal_is_full(gateway: FakeGateway, seen: Seen) -> None:
    gateway.answer = lambda kind, request: []
    settings = replace(QUICK, journal_messages=3)
    async with RmClient(gateway.address, "r1", callbacks=seen.callbacks(), settings=settings) as rm:
        await rm.register()
        for number in range(3):
            await rm.send_asks(asks(f"k{number}"))
        await advance()
        assert len(gateway.items("allocation")) == 3, "three taken"
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(rm.send_asks(asks("k3")), 0.2)
        third = si.Allocation(allocationKey="k2", applicationID="a1")
        await gateway.emit("allocation", si.AllocationResponse(new=[third]))
        async with asyncio.timeout(60):
            await rm.send_asks(asks("k3"))


async def test_a_gap_in_the_numbers_is_seen(gateway: FakeGateway, seen: Seen) -> None:
    async with RmClient(gateway.address, "r1", callbacks=seen.callbacks(), settings=QUICK) as rm:
        await rm.register()
        await rm.send_nodes([node("n1", {"vcore": 1})])
        await rm.nodes_answered()
        assert rm.missing_sequences() == []
        gateway.skip_number()
        await rm.send_asks(asks("k1"))
        await advance()
        assert seen.allocated == ["k1"], "the allocation"
        assert rm.missing_sequences() == [rm.last_sequence("allocation") - 1]


async def test_a_callback_that_raises_ends_the_client_and_its_response_is_not_processed(gateway: FakeGateway) -> None:
    def break_down(items: Any) -> None:
        raise ValueError("no room")

    async with RmClient(gateway.address, "r1", callbacks=Callbacks(on_allocated=break_down), settings=QUICK) as rm:
        await rm.register()
        await rm.send_asks(asks("k1"))
        with pytest.raises(CallbackFailed) as caught:
            await rm.wait()
        assert isinstance(caught.value.__cause__, ValueError)
        assert rm.last_sequence("allocation") == 0


async def test_register_from_a_stream_callback_is_refused_rather_than_a_deadlock(gateway: FakeGateway) -> None:
    async def register_again(items: Any) -> None:
        await rm.register()

    async with RmClient(gateway.address, "r1", callbacks=Callbacks(on_allocated=register_again), settings=QUICK) as rm:
        await rm.register()
        await rm.send_asks(asks("k1"))
        with pytest.raises(CallbackFailed) as caught:
            await rm.wait()
        assert "on_reregister_needed" in str(caught.value.__cause__)


async def test_close_writes_what_waits_and_half_closes_every_stream(gateway: FakeGateway) -> None:
    rm = RmClient(gateway.address, "r1", settings=replace(QUICK, close_timeout_s=60.0, linger_s=60.0))
    await rm.register()
    for number in range(50):
        await rm.send_asks(asks(f"k{number}"))
    await rm.close()
    await rm.close()
    assert gateway.items("allocation") == [f"k{n}" for n in range(50)]
    await advance()
    assert sorted(gateway.ended_by_client) == ["allocation", "application", "node"], "three ends"
    await rm.wait()
    for use in (rm.register(), rm.attach(), rm.send_asks(asks("k1"))):
        with pytest.raises(ClientClosed):
            await use


async def test_close_does_not_linger_when_everything_is_known_to_be_taken(gateway: FakeGateway, seen: Seen) -> None:
    settings = replace(QUICK, close_timeout_s=60.0, linger_s=600.0)
    rm = RmClient(gateway.address, "r1", callbacks=seen.callbacks(), settings=settings)
    await rm.register()
    await rm.send_asks(asks("k1"))
    await rm.send_releases([release("a1", "k1")])
    async with asyncio.timeout(150):
        await rm.close()
    assert seen.released == ["k1"]


async def test_close_without_a_gateway_is_bounded(gateway: FakeGateway) -> None:
    rm = RmClient(gateway.address, "r1", settings=QUICK)
    await rm.register()
    await gateway.stop()
    async with asyncio.timeout(QUICK.close_timeout_s + 60):
        await rm.close()


async def test_sending_before_register_is_refused(gateway: FakeGateway) -> None:
    async with RmClient(gateway.address, "r1", settings=QUICK) as rm:
        with pytest.raises(ClientClosed, match=r"register\(\)"):
            await rm.send_asks(asks("k1"))


async def test_waiting_callers_get_the_error_when_the_rm_becomes_unknown(gateway: FakeGateway) -> None:
    gateway.answer = lambda kind, request: []
    async with RmClient(gateway.address, "r1", settings=QUICK) as rm:
        await rm.register()
        await rm.send_nodes([node("n1", {"vcore": 1})])
        waiting = asyncio.create_task(rm.nodes_answered())
        await advance()
        assert gateway.items("node") == ["n1"], "the node"
        await gateway.stop()
        gateway.known = False
        await gateway.restart()
        with pytest.raises(ReregistrationNeeded):
            await asyncio.wait_for(waiting, 60)
