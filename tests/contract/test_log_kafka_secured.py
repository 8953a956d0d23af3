"""The log's contract on a Kafka that wants SASL and TLS, and grants no more than docs/security.md says."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator

import pytest
import secured_servers
from contract.log_contract import LogContract
from contract.test_log_kafka import KafkaBench
from muster_bus.settings import LogSettings
from muster_bus.topics import Topics
from secured_servers import Secured

pytestmark = pytest.mark.kafka


class SecuredBench(KafkaBench):
    def __init__(self, secured: Secured, mechanism: str) -> None:
        super().__init__(secured.kafka)
        self.settings = LogSettings.model_validate(
            {
                "backend": "kafka",
                "partitions": 2,
                "kafka_start_timeout_s": 60,  # a busy machine's handshakes take a while
                "topic_prefix": f"contract-{uuid.uuid4().hex[:12]}.",
                "kafka_bootstrap_servers": secured.kafka,
                "kafka_security_protocol": "SASL_SSL",
                "kafka_sasl_mechanism": mechanism,
                "kafka_sasl_username": "muster",
                "kafka_sasl_password_file": secured.file("kafka-muster.password"),
                "kafka_ca_file": secured.file("ca.crt"),
            }
        )


@pytest.fixture
async def bench(secured: Secured, request: pytest.FixtureRequest) -> AsyncIterator[SecuredBench]:
    bench = SecuredBench(secured, request.cls.mechanism)
    await secured_servers.allow(secured, bench.settings.topic_prefix)
    yield bench
    for log in bench.logs:
        await log.close()


class TestSecuredKafkaLog:
    """The cases in which another client is made, or another right is needed; the others are about the log alone."""

    mechanism = "SCRAM-SHA-512"

    @pytest.fixture
    def topics(self, bench: SecuredBench) -> Topics:
        return bench.settings.topics()

    bus = LogContract.bus
    test_records_come_back_as_written = LogContract.test_records_come_back_as_written
    test_a_transaction_carries_records_and_position = LogContract.test_a_transaction_carries_records_and_position
    test_a_large_transaction_is_one_transaction = LogContract.test_a_large_transaction_is_one_transaction
    test_the_old_owner_is_fenced_and_what_it_staged_is_never_seen = (
        LogContract.test_the_old_owner_is_fenced_and_what_it_staged_is_never_seen
    )
    test_all_is_there_after_reopening = LogContract.test_all_is_there_after_reopening


class TestScramSha256:
    mechanism = "SCRAM-SHA-256"
    topics = TestSecuredKafkaLog.topics
    bus = LogContract.bus
    test_records_come_back_as_written = LogContract.test_records_come_back_as_written
