"""The quotas of identities and RMs: settings, overrides, policy, counts and notes."""

from __future__ import annotations

import itertools
import re
import tomllib
from dataclasses import fields
from typing import Any

import documents
import pytest
from manual_clock import ManualClock
from muster_core.model.quotas import QuotaKind, QuotaLimits
from muster_gateway.access.policy import PolicyFile
from muster_gateway.errors import LogDown
from muster_gateway.quota_settings import QuotaRule, QuotaSettings, RmQuotaSettings
from muster_gateway.quotas import QuotaBook, QuotaNotifier, RateLimit, RmCounts, RmLimits
from muster_gateway.rm_lifecycle import RmLifecycleState
from muster_gateway.sessions.contract import NOWHERE, Session
from muster_gateway.sessions.memory import MemorySessions
from muster_proto.muster.bus.v1 import envelope_pb2
from muster_runtime.identity import LOOPBACK, Identity, Proof, Role, rights_of
from pydantic import ValidationError

TEAM = Identity("team-a", rights_of(Role.NONE), Proof.TOKEN)


def book(*more: dict[str, Any], **settings: Any) -> QuotaBook:
    rules = tuple(QuotaRule.model_validate(each) for each in more)
    return QuotaBook(QuotaSettings.model_validate(settings), lambda: rules)


def test_the_same_quotas_stand_in_settings_gateway_log_and_core() -> None:
    names = {each.name for each in fields(QuotaLimits)}
    assert names == set(QuotaKind)
    assert names == {each.name for each in fields(RmLimits)}
    assert names <= set(envelope_pb2.Quotas.DESCRIPTOR.fields_by_name)
    assert names | {"requests_per_s", "bytes_per_s"} == set(RmQuotaSettings.model_fields)
    assert names < set(QuotaRule.model_fields)


def test_the_page_names_every_quota_with_its_default_and_a_reason() -> None:
    page = documents.page("security-limits.md")
    rows = {row[0]: (row[1], row[3]) for row in _quota_rows(page, "gateway.quotas.rm.…")}
    assert {name: default for name, (default, _) in rows.items()} == {
        f"`{name}`": f"`{value}`" for name, value in RmQuotaSettings()
    }
    assert all(reason for _, reason in rows.values())
    whole = QuotaSettings()
    expected = {
        "`all_resource_managers`": f"`{whole.all_resource_managers}`",
        "`burst_s`": f"`{whole.burst_s}`",
        **{f"`identity.{name}`": f"`{value}`" for name, value in whole.identity},
    }
    assert {row[0]: row[1] for row in _quota_rows(page, "gateway.quotas.…")} == expected


def _quota_rows(page: str, heading: str) -> list[list[str]]:
    lines = page[page.index(f"| setting (`{heading}`)") :].splitlines()[2:]
    return [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in itertools.takewhile(lambda line: line.startswith("|"), lines)
    ]


def test_the_policy_on_the_page_is_one() -> None:
    (text,) = re.findall(r"```toml\n(\[\[quota\]\].*?)```", documents.page("security-limits.md"), re.DOTALL)
    file = PolicyFile.model_validate({"rule": [{"identities": ["a"]}], **tomllib.loads(text)})
    assert [each.identity_resource_managers for each in file.quota] == [None, 20]


def test_the_last_override_that_fits_counts() -> None:
    rules = book(
        {"identities": ["team-*"], "nodes": 5},
        {"rms": ["prod-*"], "nodes": 7, "asks": 0},
        overrides=[{"nodes": 1, "queues": 2}],
    )
    assert rules.rm(TEAM, "prod-1").nodes == 7
    assert rules.rm(TEAM, "prod-1").asks == 0
    assert rules.rm(TEAM, "test-1").nodes == 5
    other = Identity("other", rights_of(Role.NONE), Proof.TOKEN)
    assert (rules.rm(other, "test-1").nodes, rules.rm(other, "test-1").queues) == (1, 2)
    assert rules.rm(other, "test-1").users == RmQuotaSettings().users


def test_limits_of_identities_are_for_those_with_credentials_unless_a_rule_names_others() -> None:
    assert book().resource_managers(TEAM) == 1_000
    assert book().resource_managers(LOOPBACK) == 0
    assert book().identity_rate(LOOPBACK) == RateLimit()
    assert book({"identity_resource_managers": 3}).resource_managers(LOOPBACK) == 3
    named = book({"identities": ["team-a"], "identity_requests_per_s": 2, "identity_bytes_per_s": 9, "bytes_per_s": 8})
    assert named.identity_rate(TEAM) == RateLimit(2, 9)
    assert named.rm_rate(TEAM, "rm") == RateLimit(5_000, 8)
    assert named.identity_rate(LOOPBACK) == RateLimit()


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        ({"identities": ["a"]}, "no quota, expected at least one"),
        ({"nodes": -1}, "greater than or equal to 0"),
        ({"rms": [""], "nodes": 1}, "expected a glob of 1 to 256"),
        ({"rms": ["a"], "identity_resource_managers": 1}, "identity_resource_managers with rms: expected without"),
        ({"node": 1}, "Extra inputs are not permitted"),
    ],
)
def test_a_wrong_override_names_what_is_expected(rule: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        QuotaRule.model_validate(rule)


def test_a_policy_file_has_quotas() -> None:
    file = PolicyFile.model_validate({"rule": [{"identities": ["a"]}], "quota": [{"identities": ["a"], "nodes": 3}]})
    assert file.quota[0].nodes == 3


# ---- counts ----------------------------------------------------------------------------------------------------------


def session(rm_id: str, identity: str, state: RmLifecycleState = RmLifecycleState.RUNNING) -> Session:
    return Session(rm_id, 0, state, 0, "", state, NOWHERE, identity=identity)


async def test_rms_of_other_partitions_are_counted_by_identity() -> None:
    clock, sessions = ManualClock(), MemorySessions(ManualClock())
    await sessions.start()
    for number in range(4):
        await sessions.compare_and_set(session(f"{number}-rm", "team-a" if number < 2 else "team-b"))
    await sessions.compare_and_set(session("9-gone", "team-a", RmLifecycleState.INIT))
    counts = RmCounts(sessions, lambda rm_id: int(rm_id[0]) % 2, clock)
    assert await counts.elsewhere("0-new", "team-a") == (1, 2)
    counts.on_answered("0-new")
    assert await counts.elsewhere("5-rm", "team-a") == (1, 2)
    assert await counts.elsewhere("0-new", "team-a") == (2, 3), "an unanswered registration counts"
    counts.on_answered("5-rm")
    counts.on_answered("0-new")
    assert await counts.elsewhere("0-new", "team-a") == (1, 2)
    counts.on_registered("5-rm", "team-a")
    assert await counts.elsewhere("0-new", "team-a") == (2, 3)
    await sessions.compare_and_set(session("7-rm", "team-a"))  # another gateway's
    clock.advance(5.0)
    assert await counts.elsewhere("0-new", "team-a") == (2, 3)


async def test_an_accepted_rm_counts_while_its_session_is_not_stored_yet() -> None:
    clock, sessions = ManualClock(), MemorySessions(ManualClock())
    await sessions.start()
    counts = RmCounts(sessions, lambda rm_id: int(rm_id[0]) % 2, clock)
    await counts.elsewhere("1-rm", "team-a")
    counts.on_registered("1-rm", "team-a")
    clock.advance(5.0)
    assert await counts.elsewhere("0-new", "team-a") == (1, 1), "this call has read the sessions"
    await sessions.compare_and_set(session("1-rm", "team-a"))
    counts.on_answered("1-rm")
    assert await counts.elsewhere("0-new", "team-a") == (1, 1), "until the next read"


# ---- notes -----------------------------------------------------------------------------------------------------------


async def test_a_note_is_written_when_the_limits_are_others() -> None:
    written: list[tuple[str, int]] = []
    failing = [True]
    rules: list[QuotaRule] = []

    async def write(rm_id: str, limits: RmLimits) -> None:
        if failing.pop() if failing else False:
            raise LogDown("away")
        written.append((rm_id, limits.nodes))

    known = QuotaBook(QuotaSettings(), lambda: tuple(rules))
    notes = QuotaNotifier(known, write)
    notes.registered("rm-1", known.rm(TEAM, "rm-1"))
    both = [("rm-1", TEAM), ("rm-2", TEAM)]
    await notes.review(both)
    assert written == [], "rm-1 already has them; the log was away for the other"
    await notes.review(both)
    await notes.review(both)
    assert written == [("rm-2", 50_000)]
    rules.append(QuotaRule(rms=("rm-1",), nodes=4))
    await notes.review(both)
    assert written == [("rm-2", 50_000), ("rm-1", 4)]
