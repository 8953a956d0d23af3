"""Resource managers over REST: their registrations without secrets, and their states."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from muster_core.model.quotas import QuotaLimits
from muster_proto.muster.bus.v1 import envelope_pb2 as pb
from muster_runtime.secrets import MASK, is_secret, masked, masked_json, masked_text, masked_yaml
from unit.view.recorded import Bench, client_of

RMS = "/ws/v1/resource-managers"
CONFIG = "/ws/v1/resource-manager/configuration"


async def get(http: httpx.AsyncClient, path: str, status: int = 200) -> Any:
    answer = await http.get(path)
    assert answer.status_code == status, answer.text
    return answer.json()


async def test_each_with_what_it_registered_with(bench: Bench) -> None:
    first, second = bench.rm("rm1"), bench.rm("rm2")
    first.info.version, first.info.policy_group = "0.9", "queues"
    first.info.extra_config = {"log.level": "DEBUG", "db.password": "hunter2", "apiKey": "hunter3"}
    first.info.paused, first.info.paused_reason = True, "new racks"
    first.info.identity, first.info.quotas = "team", QuotaLimits(queues=1, text_bytes=9)
    first.info.quotas_reached = {"queues": 1}
    first.info.instance_uuid, first.info.generation = "uuid-1", "previous"
    first.info.callbacks = pb.CallbackStream(connected=True, predicates=True, events=True, epoch=3)
    first.info.callbacks_since_ns = 7
    await bench.write(first, second)
    async with bench.view() as view, client_of(view) as http:
        found = await get(http, RMS)
        assert [each["rmID"] for each in found] == ["rm1", "rm2"]
        assert await get(http, f"{RMS}?rm=rm1") == found[:1]
        await get(http, f"{RMS}?rm=rm3", 404)
    registered = first.info.registered_ns
    assert found[0] == {
        "rmID": "rm1", "life": "RUNNING", "lifeSince": 0, "held": True, "heldReason": "new racks", "heldSince": 0,
        "description": (
            "It is connected. An operator paused it (new racks): Muster schedules nothing for it until "
            "`muster admin resume`."
        ),
        "default": False,
        "version": "0.9", "policyGroup": "queues", "buildInfo": {"buildVersion": "1.0"},
        "extraConfig": {"log.level": "DEBUG", "db.password": MASK, "apiKey": MASK},
        "generation": "previous",
        "registered": registered, "registrations": 1, "instanceUUID": "uuid-1",
        "callbacksConnected": True, "callbacksSince": 7, "callbacks": ["predicates", "events"],
        "identity": "team",
        "counts": {"nodes": 0, "applications": 0, "asks": 0, "allocations": 0, "queues": 3, "users": 0},
        "quotas": [
            {"name": kind, "used": used, "limit": limit, "reached": kind == "queues"}
            for kind, used, limit in (
                ("nodes", 0, 0), ("queues", 3, 1), ("applications", 0, 0), ("asks", 0, 0), ("allocations", 0, 0),
                ("users", 0, 0), ("text_bytes", 0, 9),
            )
        ],
    }  # fmt: skip
    assert (found[1]["held"], found[1]["callbacksConnected"], found[1]["callbacks"]) == (False, False, [])


async def test_the_wishes_of_an_ended_stream_are_not_shown(bench: Bench) -> None:
    rm = bench.rm()
    rm.info.callbacks = pb.CallbackStream(connected=False, predicates=True, epoch=3)
    rm.info.callbacks_since_ns = 9
    await bench.write(rm)
    async with bench.view() as view, client_of(view) as http:
        (found,) = await get(http, RMS)
    assert (found["callbacksConnected"], found["callbacksSince"], found["callbacks"]) == (False, 9, [])


async def test_the_configuration_as_text(bench: Bench) -> None:
    rm = bench.rm(queues="{name: root, submitacl: '*', properties: {my.token: hunter2, priority.offset: '2'}}")
    await bench.write(rm)
    async with bench.view() as view, client_of(view) as http:
        found = await get(http, CONFIG)
    assert found["rmID"] == "rm1"
    assert found["config"].startswith("partitions: [{name: default")
    assert "hunter2" not in found["config"]
    assert f"{{my.token: {MASK}, priority.offset: '2'}}" in found["config"]


async def test_no_rm_registered(bench: Bench) -> None:
    async with bench.view() as view, client_of(view) as http:
        assert await get(http, RMS) == []
        await get(http, CONFIG, 404)


@pytest.mark.parametrize(
    "name",
    ["password", "DB_PASSWORD", "db.passwd", "adminPwd", "token", "oauth-tokens", "clientSecret", "key", "tls.key",
     "apiKey", "API_KEY", "api-key", "ssh-private-key", "credentials", "keyPassphrase",
     "authorization", "proxy-Authorization", "auth", "registry.auth", "proxyAuth", "pem", "tls.pem", "ca_pem.data",
     "caPem", "private", "api.key.id", "apikeys"],
)  # fmt: skip
def test_names_of_secrets(name: str) -> None:
    assert is_secret(name)
    assert masked({name: "hunter2", "none." + name: ""}) == {name: MASK, "none." + name: ""}


@pytest.mark.parametrize(
    "name",
    ["log.level", "queue", "keyboard", "monkey.name", "service.bypassWarnings", "pw", "", "temperature", "author"],
)
def test_names_of_no_secrets(name: str) -> None:
    assert masked({name: "shown"}) == {name: "shown"}


PEM = "-----BEGIN PRIVATE KEY-----\nhunter2\n-----END PRIVATE KEY-----"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (PEM, MASK),
        (f"before {PEM} between {PEM} after", f"before {MASK} between {MASK} after"),
        ("-----BEGIN PRIVATE KEY-----\nhunter2", MASK),
        ("see https://me:hunter2@host:80/path?x=1#y now", f"see https://me:{MASK}@host:80/path?x=1#y now"),
        ("redis://:hunt@er2@host", f"redis://:{MASK}@host"),
        ("http://host:80/a@b", "http://host:80/a@b"),
        ("host=db password=hunter2 port=1", f"host=db password={MASK} port=1"),
        ("a;AccessToken = 'hunter 2';b", f"a;AccessToken = {MASK};b"),
        ('DB_PASSWORD_FILE="hunter 2"', f"DB_PASSWORD_FILE={MASK}"),
        ("?token=hunter2&x=y", f"?token={MASK}&x=y"),
        ("token", "token"),
        ("a=b, c", "a=b, c"),
    ],
)
def test_secrets_that_show_themselves_under_any_name(text: str, shown: str) -> None:
    assert masked_text(text) == shown
    assert masked({"log.level": text}) == {"log.level": shown}
    assert masked_json([{"note": text}]) == [{"note": shown}]


def test_a_text_of_configuration_hides_them_too() -> None:
    assert masked_yaml("a: b\nurl: http://u:hunter2@h\nc: d\n") == f"a: b\nurl: http://u:{MASK}@h\nc: d\n"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a: 1\npassword: x y # z\nb: 2\n", f"a: 1\npassword: {MASK}\nb: 2\n"),
        ("{name: a, token: x, max: 1}", f"{{name: a, token: {MASK}, max: 1}}"),
        ("- secret: 'x, y'\n  name: a\n", f"- secret: {MASK}\n  name: a\n"),
        ("secret: |\n  x\n\n  y\nname: a\n", f"secret: |\n  {MASK}\n\n  {MASK}\nname: a\n"),
        ("tokens:\n  - x\n  - y\nname: a\n", f"tokens:\n  {MASK}\n  {MASK}\nname: a\n"),
        ('"api.key": "x"\n', f'"api.key": {MASK}\n'),
        ("name: tokens\nqueues: []\n", "name: tokens\nqueues: []\n"),
        ("", ""),
    ],
)
def test_a_text_shows_everything_but_secrets(text: str, shown: str) -> None:
    assert masked_yaml(text) == shown


def test_the_dump_of_an_rm_masks_secrets() -> None:
    dump = {
        "allocationKey": "a",
        "cache": [{"token": "hunter2", "tokens": 3, "deep": {"dbPassword": "hunter3"}}],
        "secrets": [{"name": "", "data": {"ca": "hunter4", "size": 5}}, ["hunter6"]],
        "after": "b",
    }
    assert masked_json(dump) == {
        "allocationKey": "a",
        "cache": [{"token": MASK, "tokens": 3, "deep": {"dbPassword": MASK}}],
        "secrets": [{"name": "", "data": {"ca": MASK, "size": 5}}, [MASK]],
        "after": "b",
    }
