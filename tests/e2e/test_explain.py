"""Explanations from a whole Muster: true, dated, and the same after a kill."""

from __future__ import annotations

import asyncio
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

from e2e.gang_rig import QUICK, E, Muster, Rm, timeless
from muster_client import RmClient, ask
from muster_core.model.text_format import format_duration
from muster_proto.si.v1 import si_pb2 as si
from muster_si.constants import REQUIRED_NODE_TAG
from up import Up
from waiting import eventually

QUEUES = """
partitions:
  - name: default
    preemption: {enabled: true}
    queues:
      - name: root
        submitacl: '*'
        queues:
          - {name: a}
          - {name: gangs}
          - {name: small, resources: {max: {vcore: 1}}}
"""
SECOND_NS = 1_000_000_000
POLICY = si.PreemptionPolicy(allowPreemptSelf=True, allowPreemptOther=True)


class AskedRm(Rm):
    """It wants to be asked before anything is placed."""

    def _new_client(self) -> RmClient:
        extra = {"muster.callbacks.absent": "wait"}
        return RmClient(
            self._gateway,
            self.rm_id,
            config=self._queues,
            callbacks=self._callbacks,
            settings=QUICK,
            extra_config=extra,
        )


def daemon(key: str, node: str, vcore: int, **more: Any) -> si.Allocation:
    return ask(key, "app", {"vcore": vcore}, tags={REQUIRED_NODE_TAG: node}, **more)


def lasted_s(each: dict[str, Any]) -> int:
    return round((each["until"] - each["since"]) / SECOND_NS)


async def test_a_daemon_waits_for_its_node_then_for_room_on_it_then_for_a_victim(muster: Muster) -> None:
    async with Rm(muster.gateway, muster.http, "rm", QUEUES) as rm:
        await rm.nodes(n1=4_000)
        await rm.application("app", "root.a")
        await rm.client.send_asks([daemon("daemon", "n2", 2_000)])
        path = f"{E}/ask/app/daemon"
        said = await rm.shows(path, lambda said: said["reason"] == "REQUIRED_NODE_UNKNOWN")
        assert said["message"] == "It must run on node n2, which is not registered."
        assert (said["node"], said["history"]) == ("n2", [])
        muster.clock.forward(100)

        await rm.nodes(n2=1_000)
        said = await rm.shows(path, lambda said: said["reason"] == "REQUIRED_NODE_FULL")
        assert said["message"].startswith(
            "It must run on node n2 and asks for 2 cores, and that node has 1 core of its 1 core free. "
            "Waiting does not help: a larger node n2 would, or asking for less."
        )
        assert said["preemption"]["state"] == "NONE", "no preemption makes the node larger"
        (unknown,) = said["history"]
        assert (unknown["reason"], unknown["node"], unknown["until"]) == (
            "REQUIRED_NODE_UNKNOWN", "n2", said["since"],
        )  # fmt: skip
        assert lasted_s(unknown) >= 100

        await rm.client.send_asks([daemon("first", "n1", 3_000)])
        await rm.hears("new", "first")
        await rm.client.send_asks([daemon("second", "n1", 2_000)])
        said = await rm.shows(f"{E}/ask/app/second", lambda said: said["reason"] == "REQUIRED_NODE_FULL")
        assert said["message"] == (
            "It must run on node n1 and asks for 2 cores, and that node has 1 core of its 4 cores free. Preemption: "
            "no allocation may be preempted for it. Node n1 is reserved for it."
        )
        assert (said["asked"], said["free"], said["limit"], said["node"]) == (2_000, 1_000, 4_000, "n1")
        await rm.ends("first")
        await rm.client.send_asks([ask("may-go", "app", {"vcore": 2_000}, preemption_policy=POLICY)])
        await rm.hears("new", "may-go")
        await rm.client.send_asks([daemon("third", "n1", 1_000, preemption_policy=POLICY)])
        await rm.hears("released", "may-go")
        said = await rm.shows(f"{E}/ask/app/third", lambda said: said["preemption"]["state"] == "CHOSEN")
        assert [each["allocationKey"] for each in said["preemption"]["victims"]] == ["may-go"]
        assert re.search(r"1 allocation was preempted for it .+ ago and has not ended yet\.", said["message"])
        said = await rm.get(f"{E}/preemption/app/may-go")
        assert said["message"] == "It was preempted for third of application app, which requires node n1."
        said = await rm.shows(f"{E}/application/app", lambda said: said["preempted"])
        assert "has 2 allocations, 1 of which is being released, and wants 2 more" in said["sentence"]


async def test_a_real_ask_waits_for_its_placeholder_to_go(muster: Muster) -> None:
    async with Rm(muster.gateway, muster.http, "rm", QUEUES) as rm:
        await rm.nodes(n1=4_000)
        await rm.application("spark", "root.gangs", 2_000)
        await rm.placeholders("spark", 2, 1_000)
        await rm.hears("new", "workers-p1")
        await rm.real("spark", "real", 1_000)
        await rm.hears("released", "workers-p0", "PLACEHOLDER_REPLACED")
        muster.clock.forward(30)
        said = await rm.shows(f"{E}/ask/spark/real", lambda said: said["reason"] == "PLACEHOLDER_LEAVING")
        sentence = re.fullmatch(
            r"Ask real of application spark has waited for (?P<waited>.+) because placeholder workers-p0 on node n1 "
            r"was released for it; the resource manager has not confirmed the release\.",
            said["sentence"],
        )
        assert sentence, said["sentence"]
        # (A busy machine takes its time, too.)
        assert sentence["waited"] == format_duration(said["at"] - said["since"])
        assert said["at"] - said["since"] >= 30 * SECOND_NS
        assert (said["node"], said["gang"]["placeholder"], said["history"]) == ("n1", "workers-p0", [])
        assert said["since"] == said["waitingSince"]
        app = await rm.get(f"{E}/application/spark")
        (leaving,) = app["replacements"]
        assert (leaving["state"], leaving["since"]) == ("LEAVING", said["since"])
        assert [(each["reason"], each["asks"]) for each in app["history"]] == [("PLACEHOLDER_LEAVING", 1)]
        refused = await rm._http.get(f"{E}/preemption/spark/workers-p0")
        assert (refused.status_code, refused.json()["message"]) == (
            404, "Allocation was not preempted: it is a placeholder that was released for real",
        )  # fmt: skip
        await rm.swaps("workers-p0", "real")

        async def answer() -> str:
            refused = await rm._http.get(f"{E}/ask/spark/real")
            return str(refused.json()["message"]) if refused.status_code == 404 else ""

        assert re.fullmatch(
            r"Ask not found: it was allocated .+ ago, on node n1", await eventually(answer, "it waits no more")
        )


async def test_a_wait_for_the_rms_stream_has_its_beginning_and_end(muster: Muster) -> None:
    async with AskedRm(muster.gateway, muster.http, "rm", QUEUES) as rm:
        await rm.nodes(n1=4_000)
        await rm.application("app", "root.a")
        await rm.client.send_asks([ask("k", "app", {"vcore": 1_000})])
        path = f"{E}/ask/app/k"
        absent = await rm.shows(path, lambda said: said["reason"] == "RM_ABSENT")
        muster.clock.forward(100)
        rm._callbacks = replace(rm._callbacks, predicates=lambda question: "taint gpu-only is not tolerated")
        await rm.comes_back()
        said = await rm.shows(path, lambda said: said["reason"] == "REFUSED_BY_RM")
        assert said["message"] == "The resource manager refused node n1 for it: taint gpu-only is not tolerated."
        past = said["history"][0]
        assert (past["reason"], past["since"]) == ("RM_ABSENT", absent["since"])
        assert past["message"] == (
            "The resource manager wants predicate calls before placements, but its callback stream was closed."
        )
        assert lasted_s(past) >= 100
        assert past["until"] <= said["since"]


async def test_the_answers_are_the_same_after_a_kill(tmp_path: Path) -> None:
    up = Up(tmp_path)
    await up.start()
    paths = [  # with all lists in their order
        *(f"ask/{ask}" for ask in ("app/daemon", "app/full", "spark/real", "tight/larger")),
        *("application/app", "application/spark", "application/wrong", "queue/root", "queue/root.gangs", "node/n1"),
    ]
    try:
        async with Rm(up.grpc, up.http, "rm", QUEUES) as rm:

            async def answers() -> list[Any]:
                return [timeless(await rm.get(f"{E}/{path}")) for path in paths]

            await rm.nodes(n1=4_000)
            await rm.application("spark", "root.gangs", 2_000)
            await rm.placeholders("spark", 2, 1_000)
            await rm.hears("new", "workers-p1")
            await rm.real("spark", "real", 1_000)
            await rm.hears("released", "workers-p0", "PLACEHOLDER_REPLACED")
            await rm.application("app", "root.a")
            await rm.application("tight", "root.small")
            await rm.application("wrong", "root.nowhere")
            await rm.client.send_asks([daemon("daemon", "n2", 2_000), ask("full", "app", {"vcore": 3_000})])
            await rm.client.send_asks([ask("larger", "tight", {"vcore": 2_000})])
            await rm.shows(f"{E}/ask/tight/larger", lambda said: said["reason"] == "QUEUE_MAX")
            await asyncio.sleep(1.1)  # (what lasts for less leaves no trace)
            await rm.nodes(n2=1_000)
            said = await rm.shows(f"{E}/ask/app/daemon", lambda said: said["reason"] == "REQUIRED_NODE_FULL")
            assert [each["reason"] for each in said["history"]] == ["REQUIRED_NODE_UNKNOWN"]
            await eventually(lambda: rm.get(f"{E}/application/wrong"), "it is rejected")

            async def kept() -> bool:  # a second after they began to wait, where there is room for nobody else
                return bool((await rm.get(f"{E}/node/n1"))["keptFor"])

            await eventually(kept, "the node is kept free")
            before = await answers()
            assert None not in before
            up.process.kill()
            await up.start()
            await rm.shows(f"{E}/summary", lambda said: said["life"] == "RUNNING")

            async def same() -> bool:
                return await answers() == before

            try:
                await eventually(same, "the same is said")
            except AssertionError:
                for path, one, other in zip(paths, await answers(), before, strict=True):
                    assert (path, one) == (path, other)
                raise
    finally:
        up.process.kill()
