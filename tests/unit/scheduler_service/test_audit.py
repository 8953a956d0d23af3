"""The scheduler's audit entries: one for each audited request, in the transaction of its outcome, without secrets."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import pytest
from muster_proto.muster.bus.v1 import envelope_pb2 as pb
from muster_proto.muster.v1.audit_pb2 import AuditEntry
from muster_proto.si.v1 import si_pb2 as si

from tests.unit.scheduler_service import rig as make
from tests.unit.scheduler_service.rig import CONFIG, RM, Rig

ACCEPTED, REFUSED, FAILED = AuditEntry.ACCEPTED, AuditEntry.REFUSED, AuditEntry.FAILED
CALLER = pb.RequestCaller(identity="ops", proof="token", peer="10.0.0.7", door="grpc", method="/muster.v1.Admin/X")
SECRET = "hunter2-Very-Secret-1"


@pytest.fixture
def rig() -> Rig:
    return Rig()


def asked(body: str, value: Any, request_id: str = "gw/1") -> bytes:
    envelope = pb.RequestEnvelope(rm_id=RM, request_id=request_id, gateway_id="gw", caller=CALLER)
    if isinstance(value, bytes):
        setattr(envelope, body, value)
    else:
        getattr(envelope, body).CopyFrom(value)
    return envelope.SerializeToString()


def registration(config: str = CONFIG, **extra: str) -> bytes:
    return si.RegisterResourceManagerRequest(rmID=RM, config=config, version="9", extraConfig=extra).SerializeToString()


def update(config: str) -> bytes:
    return si.UpdateConfigurationRequest(rmID=RM, config=config).SerializeToString()


BAD = "partitions: [{name: default, queues: [{name: a, submitacl: 7, password: hunter2-Very-Secret-1}]}]"
DRAIN = pb.AdminCommand(drain_node=pb.AdminCommand.DrainNode(node_id="n1"))
END = pb.AdminCommand(end_application=pb.AdminCommand.EndApplication(application_id="x", reason="stuck"))
FORGET = pb.AdminCommand(forget=pb.AdminCommand.Forget(force=True))

CASES: dict[str, tuple[str, Any, str, int]] = {
    "registration": ("register", registration(), "register", ACCEPTED),
    "refused registration": ("register", registration("nonsense"), "register", REFUSED),
    "configuration": ("configuration", update(CONFIG), "configure", ACCEPTED),
    "refused configuration": ("configuration", update("nonsense"), "configure", REFUSED),
    "unreadable configuration": ("configuration", b"\xff\xff", "configure", FAILED),
    "pause": ("admin", pb.AdminCommand(pause="by hand"), "pause", ACCEPTED),
    "resume": ("admin", pb.AdminCommand(resume=True), "resume", ACCEPTED),
    "drain of no node": ("admin", DRAIN, "drain", REFUSED),
    "end of no application": ("admin", END, "end-application", REFUSED),
    "validate": ("admin", pb.AdminCommand(validate=update(CONFIG)), "validate", ACCEPTED),
    "refused validate": ("admin", pb.AdminCommand(validate=update("nonsense")), "validate", REFUSED),
    "refused forget": ("admin", pb.AdminCommand(forget=pb.AdminCommand.Forget()), "forget", REFUSED),
    "forget": ("admin", FORGET, "forget", ACCEPTED),
    "stop": ("lifecycle", pb.RmLifecycle(state=pb.RmLifecycle.STOPPED, reason="shut down"), "stop", ACCEPTED),
}


@pytest.mark.parametrize("name", CASES)
def test_each_audited_request_has_one_entry(name: str, rig: Rig) -> None:
    rig.register()
    rig.audit.clear()
    body, value, action, result = CASES[name]
    written = rig.send(asked(body, value))
    (entry,) = rig.audit
    assert [record.topic for record in written].count(rig.topics.audit) == 1, "in the outcome's transaction"
    assert (entry.identity, entry.proof, entry.peer, entry.door) == ("ops", "token", "10.0.0.7", "grpc")
    assert (entry.action, entry.result, entry.rm_id, entry.request_id) == (action, result, RM, "gw/1")
    assert (entry.request_partition, entry.id) == (0, f"0-{entry.request_offset}")
    assert bool(entry.reason) == (result != ACCEPTED or body == "lifecycle")
    assert entry.recorded_ns > 0


def test_every_command_is_a_case() -> None:
    commands = {field.name for field in pb.AdminCommand.DESCRIPTOR.oneofs_by_name["command"].fields}
    covered = {value.WhichOneof("command") for _, value, _, _ in CASES.values() if isinstance(value, pb.AdminCommand)}
    assert commands - covered == {"dump_rm_state"}, "the gateway audits the whole dump"


def test_what_an_rm_says_often_is_not_audited(rig: Rig) -> None:
    rig.register()
    rig.audit.clear()
    rig.send(
        make.node("n1", vcore=4), make.application("app", "root.a"), make.asks(make.allocation("app", "k", vcore=1))
    )
    rig.send(asked("admin", pb.AdminCommand(dump_rm_state=True)))
    rig.send(asked("lifecycle", pb.RmLifecycle(state=pb.RmLifecycle.DISCONNECTED)))
    assert not rig.audit


def test_a_repeated_note_of_a_stop_has_no_second_entry(rig: Rig) -> None:
    rig.register()
    rig.audit.clear()
    stop = asked("lifecycle", pb.RmLifecycle(state=pb.RmLifecycle.STOPPED, reason="shut down"))
    rig.send(stop)
    rig.send(stop)
    assert [entry.action for entry in rig.audit] == ["stop"]


def test_a_batch_tells_the_results_apart(rig: Rig) -> None:
    rig.register()
    rig.audit.clear()
    rig.send(
        asked("admin", pb.AdminCommand(pause="x"), "gw/1"),
        asked("admin", DRAIN, "gw/2"),
        b"\xff",
        asked("configuration", update(CONFIG), "gw/3"),
    )
    assert [(entry.request_id, entry.result) for entry in rig.audit] == [
        ("gw/1", ACCEPTED),
        ("gw/2", REFUSED),
        ("gw/3", ACCEPTED),
    ]


@pytest.mark.parametrize(
    "value",
    [
        lambda: asked("register", registration(BAD, **{"ldap.password": SECRET})),
        lambda: asked("configuration", update(BAD)),
        lambda: asked("admin", pb.AdminCommand(pause=f"password={SECRET}")),
        lambda: asked("lifecycle", pb.RmLifecycle(state=pb.RmLifecycle.STOPPED, reason=f"Bearer {SECRET}")),
    ],
)
def test_no_secret_is_in_an_entry(value: Callable[[], bytes], rig: Rig) -> None:
    rig.register()
    rig.audit.clear()
    written = rig.send(value())
    (entry,) = rig.audit
    (record,) = (record for record in written if record.topic == rig.topics.audit)
    assert SECRET.encode() not in (record.value or b""), entry


def test_a_configuration_is_named_by_its_digest(rig: Rig) -> None:
    rig.send(asked("register", registration(**{"ldap.password": "x", "log.level": "INFO"})))
    (entry,) = rig.audit
    assert entry.objects["config_sha256"] == hashlib.sha256(CONFIG.encode()).hexdigest()
    assert entry.objects["extra_config"] == "ldap.password,log.level"
