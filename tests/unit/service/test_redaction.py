"""Secrets of any shape are masked; the rest stays. SI marks no field yet, so the test brings its own messages."""

from __future__ import annotations

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from muster_proto.si.v1 import si_pb2
from muster_runtime.secrets import printable, redacted

_STRING, _BYTES, _INT64, _MESSAGE = 9, 12, 3, 11


def _messages() -> dict[str, type]:
    """message Inner { string name = 1; string token = 2 [secret]; }
    message Outer { Inner one = 1; repeated Inner many = 2; map<string, Inner> by = 3; bytes key = 4 [secret];
                    int64 pin = 5 [secret]; repeated string words = 6 [secret]; Outer deeper = 7; string open = 8; }
    """
    file = descriptor_pb2.FileDescriptorProto(name="redaction_test.proto", package="redaction_test", syntax="proto3")
    file.dependency.append("muster_proto/si/v1/si.proto")

    def add(message: descriptor_pb2.DescriptorProto, name: str, number: int, kind: int, **more: object) -> None:
        secret, repeated = more.get("secret"), more.get("repeated")
        field = message.field.add(name=name, number=number, type=kind, label=3 if repeated else 1)
        if "of" in more:
            field.type_name = f".redaction_test.{more['of']}"
        if secret:
            field.options.Extensions[si_pb2.si_secret] = True

    inner = file.message_type.add(name="Inner")
    add(inner, "name", 1, _STRING)
    add(inner, "token", 2, _STRING, secret=True)
    outer = file.message_type.add(name="Outer")
    entry = outer.nested_type.add(name="ByEntry")
    entry.options.map_entry = True
    add(entry, "key", 1, _STRING)
    add(entry, "value", 2, _MESSAGE, of="Inner")
    add(outer, "one", 1, _MESSAGE, of="Inner")
    add(outer, "many", 2, _MESSAGE, of="Inner", repeated=True)
    add(outer, "by", 3, _MESSAGE, of="Outer.ByEntry", repeated=True)
    add(outer, "key", 4, _BYTES, secret=True)
    add(outer, "pin", 5, _INT64, secret=True)
    add(outer, "words", 6, _STRING, secret=True, repeated=True)
    add(outer, "deeper", 7, _MESSAGE, of="Outer")
    add(outer, "open", 8, _STRING)
    pool = descriptor_pool.Default()
    pool.AddSerializedFile(file.SerializeToString())
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"redaction_test.{name}"))
        for name in ("Inner", "Outer")
    }


TYPES = _messages()


def test_every_secret_is_masked_and_the_original_stays() -> None:
    inner, outer = TYPES["Inner"], TYPES["Outer"]
    secret = inner(name="seen", token="hunter2")
    message = outer(one=secret, many=[secret], key=b"hunter2", pin=4711, words=["hunter2"], open="seen")
    message.by["k"].CopyFrom(secret)
    message.deeper.one.CopyFrom(secret)
    before = message.SerializeToString()
    masked = redacted(message)
    assert b"hunter2" not in masked.SerializeToString()
    assert masked.pin == 0
    assert masked.key == b"***"
    assert masked.deeper.one.token == masked.by["k"].token == masked.many[0].token == "***"
    assert masked.one.name == masked.open == "seen"
    assert message.SerializeToString() == before
    text = printable(message)
    assert "hunter2" not in text
    assert "4711" not in text
    assert "seen" in text


def test_a_message_without_secrets_is_as_it_was() -> None:
    message = si_pb2.NodeRequest(rmID="rm", nodes=[si_pb2.NodeInfo(nodeID="n1")])
    assert redacted(message) == message
    assert redacted(message) is not message


def test_printing_is_bounded() -> None:
    assert len(printable(si_pb2.NodeRequest(rmID="x" * 100_000), limit_chars=100)) < 150
