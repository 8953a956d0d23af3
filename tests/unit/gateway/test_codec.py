"""The records of the log, decoded: each answer belongs to its request."""

from __future__ import annotations

import pytest
from muster_bus.errors import CodecError
from muster_bus.log import Record
from muster_bus.topics import Topics
from muster_gateway.codec import (
    ConfigProblem,
    ConfigurationAnswer,
    RegistrationAnswer,
    RequestCodec,
    encode_configuration_answer,
    read_response,
)
from muster_gateway.stream_kind import StreamKind
from muster_proto.muster.bus.v1 import envelope_pb2
from muster_proto.muster.v1 import admin_pb2

TOPICS = Topics(partitions=3)


def answered(request_id: str, **fields: object) -> Record:
    result = envelope_pb2.RegistrationResult(request_id=request_id, **fields)  # type: ignore[arg-type]
    envelope = envelope_pb2.ResponseEnvelope(rm_id="rm", registration=result)
    return Record(TOPICS.responses, 0, 0, 0, b"rm", envelope.SerializeToString())


@pytest.mark.parametrize("gateway_id", ["g", "g/1", "host/configuration-7", "configuration-7"])
def test_an_answer_is_recognised_by_the_id_of_its_request(gateway_id: str) -> None:
    codec = RequestCodec(TOPICS, gateway_id)
    registration = read_response(answered(codec.new_request_id(), accepted=True))
    assert isinstance(registration.answer, RegistrationAnswer)
    assert registration.configuration is None
    configuration = read_response(answered(codec.new_configuration_id(), accepted=True, changes=["a", "b"]))
    assert isinstance(configuration.answer, ConfigurationAnswer)
    assert configuration.answer.changes == ("a", "b")
    assert configuration.registration is None


def test_ids_are_given_once() -> None:
    codec = RequestCodec(TOPICS, "g")
    ids = [codec.new_request_id(), codec.new_configuration_id(), codec.new_request_id(), codec.new_configuration_id()]
    assert len(set(ids)) == len(ids)


def test_a_response_of_a_stream_is_no_answer() -> None:
    envelope = envelope_pb2.ResponseEnvelope(rm_id="rm", sequence=4, stream=int(StreamKind.NODE), response=b"x")  # type: ignore[arg-type]
    response = read_response(Record(TOPICS.responses, 0, 0, 0, b"rm", envelope.SerializeToString()))
    assert (response.kind, response.sequence, response.payload, response.answer) == (StreamKind.NODE, 4, b"x", None)


def test_an_unreadable_envelope_is_an_error() -> None:
    with pytest.raises(CodecError, match="is no ResponseEnvelope"):
        read_response(Record(TOPICS.responses, 0, 7, 0, b"rm", b"\xff\xff"))


def test_a_configuration_travels_as_it_came() -> None:
    codec = RequestCodec(TOPICS, "g")
    record = codec.configuration("rm", codec.new_configuration_id(), b"raw", 5)
    envelope = envelope_pb2.RequestEnvelope.FromString(record.value or b"")
    assert (record.topic, record.partition, record.key) == (TOPICS.requests, TOPICS.partition_of("rm"), b"rm")
    assert (envelope.configuration, envelope.rm_id, envelope.admitted_ns) == (b"raw", "rm", 5)
    assert envelope.WhichOneof("body") == "configuration"


def test_an_answer_for_the_operator() -> None:
    problems = (ConfigProblem("error", "a.b", 2, 3, "bad"), ConfigProblem("warning", "c", 0, 0, "odd"))
    answer = admin_pb2.UpdateConfigurationResponse.FromString(
        encode_configuration_answer(ConfigurationAnswer("g/configuration-1", False, problems, ()))
    )
    assert [(p.severity, p.path, p.line, p.column, p.message) for p in answer.problems] == [
        (admin_pb2.ConfigurationProblem.ERROR, "a.b", 2, 3, "bad"),
        (admin_pb2.ConfigurationProblem.WARNING, "c", 0, 0, "odd"),
    ]
