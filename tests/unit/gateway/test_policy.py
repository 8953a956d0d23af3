"""The policy file: its rules, its errors, and the parts of an answer that an identity may see."""

from __future__ import annotations

from pathlib import Path

import pytest
from muster_gateway.access.policy import Policy, read_policy
from muster_gateway.authentication import Authenticator
from muster_gateway.errors import InvalidPolicy
from muster_gateway.settings import GatewaySettings
from muster_runtime.identity import LOOPBACK, Identity, Proof, Right, Rights, Role, rights_of
from muster_runtime.read_scope import EVERYTHING, NOTHING, ReadScope, matches_glob, scope_from_headers

POLICY = """
[[rule]]
identities = ["openb-?", "spiffe://prod/*"]
proofs = ["certificate"]
act = ["openb-*"]

[[rule]]
identities = ["*"]
read = [{rm = "shared", partitions = ["default", "gpu-*"]}, {rm = "public"}]

[[rule]]
identities = ["ops"]
operate = ["*"]
role = "admin"

[[rule]]
identities = ["loopback"]
role = "read"
"""
RULE = '[[rule]]\nidentities = ["a"]\n'


@pytest.fixture
def policy(tmp_path: Path) -> Policy:
    file = tmp_path / "policy.toml"
    file.write_text(POLICY)
    return Policy(read_policy(file))


def rights(policy: Policy, name: str, proof: Proof = Proof.CERTIFICATE) -> Rights:
    return policy.apply(Identity(name, rights_of(Role.ADMIN), proof)).rights


def test_rules_add_up(policy: Policy) -> None:
    tenant = rights(policy, "openb-1")
    assert tenant.may(Right.ACT, "openb-prod")
    assert not tenant.may(Right.ACT, "other")
    assert not tenant.may(Right.OPERATE, "openb-prod")
    assert tenant.may(Right.CONFIGURE, "openb-prod")
    assert tenant.may(Right.READ, "openb-prod"), "the right to act includes the right to read"
    assert tenant.may(Right.READ, "shared")
    assert not tenant.may(Right.READ, "other")
    assert not tenant.may(Right.INSPECT)
    assert rights(policy, "spiffe://prod/a/b").may(Right.ACT, "openb-x")
    assert not rights(policy, "openb-12").act
    operator = rights(policy, "ops", Proof.TOKEN)
    assert operator.may(Right.OPERATE, "any")
    assert operator.may(Right.ADMIN)
    assert not operator.may(Right.ACT, "any")


def test_a_role_of_the_settings_counts_no_more(policy: Policy) -> None:
    assert rights(policy, "somebody", Proof.TOKEN).role is Role.NONE


def test_proofs_narrow_a_rule(policy: Policy) -> None:
    assert not rights(policy, "openb-1", Proof.TOKEN).act


def test_a_star_is_not_for_those_without_credentials(policy: Policy) -> None:
    assert rights(policy, "anyone", Proof.OPEN) == Rights()
    assert policy.apply(LOOPBACK).rights == Rights(Role.READ)


def test_partitions(policy: Policy) -> None:
    reads = rights(policy, "somebody").reads
    assert reads.can_read_rm("shared")
    assert not reads.can_read_all_of("shared")
    assert reads.can_read_partition("shared", "gpu-a")
    assert not reads.can_read_partition("shared", "other")
    assert reads.can_read_all_of("public")
    assert reads.can_read_partition("public", "any")
    assert scope_from_headers(reads.header()) == reads
    assert scope_from_headers([]) == EVERYTHING
    assert scope_from_headers(NOTHING.header()) == NOTHING
    odd = ReadScope((("a/b,c %", "d?[*"),))
    assert scope_from_headers(odd.header()) == odd
    assert reads.is_subset_of(EVERYTHING)
    assert not EVERYTHING.is_subset_of(reads)


@pytest.mark.parametrize(
    ("glob", "name", "fitting"),
    [("a*", "abc", True), ("a?c", "abc", True), ("a[b]c", "abc", False), ("a[b]c", "a[b]c", True), ("A", "a", False)],
)
def test_globs_know_two_wildcards(glob: str, name: str, *, fitting: bool) -> None:
    assert matches_glob(glob, name) is fitting


def test_a_glob_of_stars_takes_no_time() -> None:
    assert not matches_glob("*a" * 100 + "b", "a" * 10_000)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "rule: Field required"),
        ("rule = 3", "rule: Input should be a valid tuple"),
        ("[[rule]]\nact = ['a']", "rule[0].identities: Field required"),
        ("[[rule]]\nidentities = []", "rule[0].identities: Tuple should have at least 1"),
        ("[[rule]]\nidentities = ['']", "rule[0].identities: '', expected a glob"),
        ('[[rule]]\nidentities = ["a\\u0007"]', "expected a glob"),
        (
            '[[rule]]\nidentities = ["a"]\nrole = "root"',
            "rule[0].role 'root': Input should be 'none', 'read' or 'admin'",
        ),
        ('[[rule]]\nidentities = ["a"]\nproofs = ["password"]', "rule[0].proofs[0] 'password'"),
        ('[[rule]]\nidentities = ["a"]\nacts = ["b"]', "rule[0].acts: Extra inputs are not permitted"),
        ('[[rule]]\nidentities = ["a"]\nread = ["b"]', "rule[0].read[0] 'b'"),
        ('[[rule]]\nidentities = ["a"]\nread = [{rm = "b", partitions = []}]', "rule[0].read[0].partitions"),
        ("[[rule]", "is no TOML"),
        ("x = " + "[" * 5000, "no TOML"),
        ("x = " + "1" * 5000, "is no TOML: Exceeds the limit"),
        (RULE + "[[quota]]\nasks = 9223372036854775808", "quota[0].asks: Input should be less than or equal to"),
        (RULE + "[[quota]]\nrequests_per_s = inf", "quota[0].requests_per_s: Input should be a finite number"),
        (RULE + "[[quota]]\nidentity_bytes_per_s = nan", "quota[0].identity_bytes_per_s: Input should be a finite"),
    ],
)
def test_what_is_wrong_is_named(text: str, said: str, tmp_path: Path) -> None:
    file = tmp_path / "policy.toml"
    file.write_text(text)
    with pytest.raises(InvalidPolicy) as raised:
        read_policy(file)
    assert str(raised.value).startswith(f"{file}: ")
    assert said in str(raised.value) or ("nested" in str(raised.value) and said == "no TOML")


def test_files_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(InvalidPolicy, match="cannot be read: No such file"):
        read_policy(tmp_path / "absent")
    file = tmp_path / "policy.toml"
    file.write_bytes(b"\xff")
    with pytest.raises(InvalidPolicy, match="is not UTF-8 text at byte 0"):
        read_policy(file)
    file.write_bytes(b"#" * (1024 * 1024 + 1))
    with pytest.raises(InvalidPolicy, match="is over 1,048,576 bytes"):
        read_policy(file)
    with pytest.raises(InvalidPolicy, match="is over"):
        Authenticator(GatewaySettings.model_validate({"policy_file": file}))
