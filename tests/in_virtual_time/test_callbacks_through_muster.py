"""A resource manager with callbacks, over the whole of Muster: where its asks land, and which messages it gets (the
scheduler interface)."""

from __future__ import annotations

import asyncio
import json
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

from e2e.gang_rig import E, Muster, Rm
from muster_client import AdminClient, ask
from muster_proto.muster.v1 import callbacks_pb2 as pb
from muster_proto.si.v1 import si_pb2 as si
from waiting import eventually

QUEUES = """
partitions:
  - name: default
    preemption: {enabled: true}
    queues:
      - name: root
        submitacl: '*'
        queues:
          - {name: batch}
          - {name: poor, resources: {guaranteed: {vcore: 2}}, properties: {preemption.delay: 1s}}
"""
DOCS = Path(__file__).parents[2] / "docs" / "callbacks.md"
# What each node has; an ask's key begins with what it needs.
LABELS = {"n1": "gpu", "n2": "", "n3": "ssd", "n4": "gpu ssd", "n5": "", "n6": "ssd"}


class Labels:
    """A predicate like a kubelet's: a node must have the label that the ask's key begins with.

    :ivar asked: the nodes that were asked about, for each key.
    """

    def __init__(self) -> None:
        self.asked: dict[str, list[str]] = defaultdict(list)

    async def __call__(self, question: pb.PredicatesQuestion) -> bool | str:
        key, node_id = question.args.allocationKey, question.args.nodeID
        assert question.application_id, question
        assert question.deadline_ns, question
        self.asked[key].append(node_id)
        await asyncio.sleep(0)
        needs = key.split("-")[0]
        return needs == "any" or needs in LABELS[node_id].split() or f"{node_id} has no {needs}"


def rm_of(muster: Muster, **callbacks: Any) -> Rm:
    return Rm(muster.gateway, muster.http, "rm", QUEUES, **callbacks)


async def test_everything_lands_where_the_rm_lets_it(muster: Muster) -> None:
    labels = Labels()
    async with rm_of(muster, predicates=labels) as rm:
        await rm.nodes(**dict.fromkeys(LABELS, 10_000))
        await rm.application("app", "root.batch")
        keys = [f"{needs}-{number}" for number in range(10) for needs in ("gpu", "ssd", "any", "nvme")]
        await rm.client.send_asks([ask(key, "app", {"vcore": 1_000}) for key in keys])
        placed = [key for key in keys if not key.startswith("nvme")]
        await rm.runs_these(*placed)
        for key in placed:
            node_id = rm.runs[key].nodeID
            assert key.startswith("any") or key.split("-")[0] in LABELS[node_id].split(), (key, node_id)
            assert node_id in labels.asked[key], "an ask was placed without the RM's answer"
        # what no node has waits, and the RM's own words say why
        await eventually(lambda: set(labels.asked["nvme-0"]) == set(LABELS), "it was asked about every node")
        said = await rm.shows(f"{E}/ask/app/nvme-0", lambda said: "has no nvme" in json.dumps(said))
        assert {each["reason"] for each in said["refusals"]} <= {f"{node} has no nvme" for node in LABELS}
        assert not any(key.startswith("nvme") for key in rm.runs)


async def test_a_refusal_is_forgotten_after_a_while(muster: Muster) -> None:
    allowed: set[str] = set()
    asked: list[str] = []

    def predicates(question: pb.PredicatesQuestion) -> bool:
        asked.append(question.args.nodeID)
        return question.args.nodeID in allowed

    async with rm_of(muster, predicates=predicates) as rm:
        await rm.nodes(n1=10_000, n2=10_000)
        await rm.application("app", "root.batch")
        await rm.client.send_asks([ask("a", "app", {"vcore": 1_000})])
        await eventually(lambda: {"n1", "n2"} <= set(asked), "both are refused")
        await rm.barrier()
        assert not rm.runs
        allowed.add("n2")
        muster.clock.forward(11)
        await rm.runs_these("a")
        assert rm.runs["a"].nodeID == "n2"


async def test_no_answer_is_a_no_and_a_predicate_that_raises_too(muster: Muster) -> None:
    never, asked = asyncio.Event(), list[str]()

    async def predicates(question: pb.PredicatesQuestion) -> bool:
        asked.append(question.args.nodeID)
        if question.args.nodeID == "n1" and asked.count("n1") == 1:
            await never.wait()
        raise ValueError("the kubelet is away")

    async with rm_of(muster, predicates=predicates) as rm:
        await rm.nodes(n1=1_000)
        await rm.application("app", "root.batch")
        await rm.client.send_asks([ask("a", "app", {"vcore": 1_000})])
        await eventually(lambda: asked == ["n1"], "it is asked")
        muster.clock.forward(11)  # the question's deadline
        said = await rm.shows(f"{E}/ask/app/a", lambda said: said["refusals"])
        assert [(each["node"], each["unanswered"]) for each in said["refusals"]] == [("n1", True)]
        await rm.nodes(n2=1_000)
        await eventually(lambda: "n2" in asked, "it is asked about another node")
        said = await rm.shows(f"{E}/ask/app/a", lambda said: "kubelet" in json.dumps(said))
        assert ("n2", "ValueError: the kubelet is away") in [(e["node"], e["reason"]) for e in said["refusals"]]
        assert not rm.runs


async def test_an_rm_whose_stream_is_gone_is_waited_for_a_while_and_then_not_asked(muster: Muster) -> None:
    async with rm_of(muster, predicates=lambda _: False) as rm:
        await rm.nodes(n1=10_000)
        await rm.application("app", "root.batch")
        await rm.client.send_asks([ask("a", "app", {"vcore": 1_000})])
        await rm.barrier()
        rm._callbacks = replace(rm._callbacks, predicates=None)
        await rm.comes_back()  # as one that knows nothing of callbacks
        await rm.client.send_asks([ask("b", "app", {"vcore": 1_000})])
        await rm.barrier()
        assert not rm.runs, "an answering stream may come back during the grace"
        muster.clock.forward(31)
        await rm.runs_these("a", "b")


async def test_it_gets_its_events_as_rest_shows_them(muster: Muster) -> None:
    events: list[pb.Event] = []
    async with rm_of(muster, on_events=events.extend) as rm:
        await rm.nodes(n1=10_000)
        await rm.application("app", "root.batch")
        await rm.client.send_asks([ask(f"a{n}", "app", {"vcore": 1_000}) for n in range(20)])
        await rm.runs_these(*(f"a{n}" for n in range(10)))

        async def records() -> list[dict[str, Any]]:
            batch = await rm.get("/ws/v1/events/batch", count="10000")
            found = (batch or {}).get("EventRecords") or []
            return found if len(found) > 45 else []  # 20 asks, 10 allocations, and what goes with them

        def tracked() -> list[pb.Event]:
            return [event for event in events if event.HasField("id")]

        shown = await eventually(records, "events in REST")
        await eventually(lambda: tracked() and tracked()[-1].id >= len(shown) - 1, "the same here")
        first = tracked()[0].id
        assert [event.id for event in tracked()] == list(range(first, first + len(tracked())))
        heard = [(event.record.objectID, event.record.referenceID) for event in tracked()][: len(shown) - first]
        assert heard == [(each["objectID"], each.get("referenceID", "")) for each in shown[first:]]
        assert len(heard) > 20


async def test_it_gets_the_asks_that_fit_nowhere(muster: Muster) -> None:
    told: dict[str, dict[int, str]] = defaultdict(dict)

    def states(items: Sequence[si.UpdateContainerSchedulingStateRequest]) -> None:
        for item in items:
            told[item.allocationKey][item.state] = item.reason

    async with rm_of(muster, on_scheduling_states=states) as rm:
        await rm.nodes(n1=1_000)
        await rm.application("app", "root.batch")
        await rm.client.send_asks([ask("large", "app", {"vcore": 2_000})])
        state = si.UpdateContainerSchedulingStateRequest
        await eventually(lambda: state.FAILED in told["large"], f"it is told of; heard: {dict(told)}")
        # The reason is the explanation's sentence, not a fixed text.
        reason = told["large"][state.FAILED]
        assert reason.startswith("It asks for 2 cores, and the largest node has 1 core in all."), reason
        await rm.shows(f"{E}/ask/app/large", lambda said: reason in said["message"])


class PatientRm(Rm):
    EXTRA: ClassVar[dict[str, str]] = {"muster.callbacks.timeout": "1h"}


async def test_a_burst_of_asks_is_one_question_each_where_all_are_agreed_to(muster: Muster) -> None:
    """(Of 4,000, and of answers that are nearly late: tests/unit/core/test_questions.py, where the clock is the
    test's.)"""
    asked: Counter[tuple[str, bool]] = Counter()

    def predicates(question: pb.PredicatesQuestion) -> bool:
        asked[question.args.allocationKey, question.args.allocate] += 1
        return True

    async with PatientRm(muster.gateway, muster.http, "rm", QUEUES, predicates=predicates) as rm:
        await rm.nodes(**{f"n{number}": 100_000 for number in range(10)})
        await rm.application("app", "root.batch")
        keys = [f"k{number}" for number in range(1_000)]
        await rm.client.send_asks([ask(key, "app", {"vcore": 1_000}) for key in keys])
        await eventually(lambda: len(rm.runs) == len(keys), "all are placed")
        assert asked == Counter((key, True) for key in keys)


async def test_an_operators_dump_has_its_own_state(muster: Muster) -> None:
    async with (
        rm_of(muster, state_dump=lambda: '{"cache": {"pods": 31415}}') as rm,
        AdminClient(muster.gateway) as admin,
    ):
        await rm.nodes(n1=1_000)

        async def dumped() -> bool:
            return b"31415" in b"".join([piece async for piece in admin.dump_state("rm")])

        await eventually(dumped, "the dump has it, once the scheduler knows of the stream")


async def test_a_preemption_needs_its_consent(muster: Muster) -> None:
    asked: list[pb.PreemptionPredicatesQuestion] = []
    agrees = False

    def preemption_predicates(question: pb.PreemptionPredicatesQuestion) -> int | str:
        asked.append(question)
        return max(question.args.startIndex, 0) if agrees else "the daemon would still not fit"

    async with rm_of(muster, preemption_predicates=preemption_predicates) as rm:
        rm.confirms = True
        await rm.nodes(n1=4_000)
        await rm.application("rich", "root.batch")
        policy = si.PreemptionPolicy(allowPreemptSelf=True, allowPreemptOther=True)
        await rm.client.send_asks([ask(f"a{n}", "rich", {"vcore": 1_000}, preemption_policy=policy) for n in range(4)])
        await rm.runs_these(*(f"a{n}" for n in range(4)))
        await rm.application("needy", "root.poor")
        await rm.client.send_asks([ask("p", "needy", {"vcore": 1_000}, preemption_policy=policy)])
        await rm.barrier()
        muster.clock.forward(2)  # the queue's preemption.delay
        await eventually(lambda: asked, "it is asked")
        question = asked[0]
        assert (question.args.nodeID, question.args.allocationKey, question.application_id) == ("n1", "p", "needy")
        assert set(question.args.preemptAllocationKeys) <= {f"a{n}" for n in range(4)}
        assert set(question.preempt_application_ids) == {"rich"}
        await rm.barrier()
        assert len(rm.runs) == 4, "nothing was preempted"
        agrees = True
        for _ in range(4):  # it is asked again after a while
            muster.clock.forward(16)
            await rm.barrier()
        await rm.hears("new", "p")
        assert len(rm.runs) == 4


async def test_another_configuration_goes_over_the_stream(muster: Muster) -> None:
    async with rm_of(muster, state_dump=lambda: "{}") as rm:
        answer = await rm.client.update_configuration(
            QUEUES.replace("{name: batch}", "{name: batch}\n          - {name: night}")
        )
        assert answer.accepted, answer
        assert any("root.night" in change for change in answer.changes), answer.changes
        await rm.nodes(n1=1_000)
        assert (await rm.application("app", "root.night")).how == "accepted"
        refused = await rm.client.update_configuration("partitions: [")
        assert not refused.accepted
        assert refused.problems[0].line
