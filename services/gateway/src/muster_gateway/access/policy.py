"""The policy file: which identity may act as, operate and read which RMs, and its role (docs/security.md).

::

    [[rule]]
    identities = ["openb-*"]          # globs of names
    proofs = ["certificate", "jwt"]   # only identities that were proven so; absent: any proof
    act = ["openb-*"]                 # globs of rmIDs
    operate = []
    role = "none"                     # none, read or admin

    [[rule.read]]
    rm = "shared"
    partitions = ["default"]          # globs; absent: all

    [[quota]]
    identities = ["batch-*"]          # globs; absent: all
    rms = ["batch-*"]                 # globs of rmIDs; absent: all
    applications = 500                # the names are those of gateway.quotas

An identity has the rights of all rules that match it. The rights to act as an RM and to operate it include the right to
read it. An identity without a rule has no rights.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Literal

from muster_runtime.identity import RESERVED_NAMES, Identity, Rights, Role
from muster_runtime.read_scope import ANY, ReadScope, matches_glob
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from muster_gateway.errors import InvalidPolicy, quote
from muster_gateway.quota_settings import QuotaRule

POLICY_BYTES_MAX = 1024 * 1024
_GLOB_CHARS_MAX = 256


class ReadRule(BaseModel):
    """What a rule lets its identities read."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    rm: str = Field(description="Glob of rmIDs.")
    partitions: tuple[str, ...] = Field((ANY,), min_length=1, description="Globs of partitions.")

    @field_validator("rm", "partitions")
    @classmethod
    def _are_globs(cls, value: str | tuple[str, ...]) -> str | tuple[str, ...]:
        _check_globs((value,) if isinstance(value, str) else value)
        return value


class PolicyRule(BaseModel):
    """One rule."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    identities: tuple[str, ...] = Field(min_length=1, description="Globs of names.")
    proofs: tuple[Literal["token", "certificate", "jwt", "loopback", "open"], ...] = Field(
        (), description="Only identities that were proven so; none: any proof."
    )
    act: tuple[str, ...] = Field((), description="Globs of the rmIDs to act as.")
    operate: tuple[str, ...] = Field((), description="Globs of the rmIDs to operate.")
    read: tuple[ReadRule, ...] = Field((), description="What may be read beside these.")
    role: Literal["none", "read", "admin"] = Field("none", description="The rights to the process.")

    @field_validator("identities", "act", "operate")
    @classmethod
    def _are_globs(cls, globs: tuple[str, ...]) -> tuple[str, ...]:
        _check_globs(globs)
        return globs

    def matches(self, identity: Identity) -> bool:
        """Tells whether the rule is for an identity. The names of those without credentials must be written out."""
        if self.proofs and identity.proof not in self.proofs:
            return False
        if identity.name in RESERVED_NAMES:
            return identity.name in self.identities
        return any(matches_glob(glob, identity.name) for glob in self.identities)


class PolicyFile(BaseModel):
    """The file's content."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    rule: tuple[PolicyRule, ...] = Field(min_length=1)
    quota: tuple[QuotaRule, ...] = Field((), description="Other quotas for some identities or RMs; the last counts.")


class Policy:
    """The rules in force.

    :param file: None: no policy; identities keep the rights of their roles.
    """

    def __init__(self, file: PolicyFile | None) -> None:
        self._rules = file.rule if file is not None else None
        self.quotas = file.quota if file is not None else ()

    def apply(self, identity: Identity) -> Identity:
        """Returns the identity with the rights that the policy gives it."""
        if self._rules is None:
            return identity
        rules = [rule for rule in self._rules if rule.matches(identity)]
        act = tuple(dict.fromkeys(glob for rule in rules for glob in rule.act))
        operate = tuple(dict.fromkeys(glob for rule in rules for glob in rule.operate))
        reads = [(glob, ANY) for glob in (*act, *operate)]
        reads += [(grant.rm, partition) for rule in rules for grant in rule.read for partition in grant.partitions]
        role = max((Role(rule.role) for rule in rules), key=lambda role: role.rank, default=Role.NONE)
        rights = Rights(role, act, operate, ReadScope(tuple(dict.fromkeys(reads))))
        return Identity(identity.name, rights, identity.proof)


def read_policy(path: Path) -> PolicyFile:
    """Reads and checks a policy file. Raises InvalidPolicy with every problem."""
    try:
        with path.open("rb") as file:
            content = file.read(POLICY_BYTES_MAX + 1)
    except OSError as error:
        raise InvalidPolicy(f"{path}: cannot be read: {error.strerror}") from None
    if len(content) > POLICY_BYTES_MAX:
        raise InvalidPolicy(f"{path}: is over {POLICY_BYTES_MAX:,} bytes")
    try:
        return PolicyFile.model_validate(tomllib.loads(content.decode("utf-8")))
    except UnicodeDecodeError as error:
        raise InvalidPolicy(f"{path}: is not UTF-8 text at byte {error.start}") from None
    except tomllib.TOMLDecodeError as error:
        raise InvalidPolicy(f"{path}: is no TOML: {error}") from None
    except RecursionError:
        raise InvalidPolicy(f"{path}: is nested too deeply") from None
    except ValidationError as error:
        raise InvalidPolicy("\n".join(f"{path}: {line}" for line in _problems(error))) from None
    except ValueError as error:  # a number of more digits than Python reads
        raise InvalidPolicy(f"{path}: is no TOML: {error}") from None


def _problems(error: ValidationError) -> list[str]:
    lines = []
    for detail in error.errors():
        path = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in detail["loc"]).lstrip(".")
        raw = detail.get("input")
        value = f" {quote(raw)}" if isinstance(raw, str) else ""
        lines.append(f"{path or 'the file'}{value}: {detail['msg'].removeprefix('Value error, ')}")
    return lines


def _check_globs(globs: tuple[str, ...]) -> None:
    for glob in globs:
        if not 0 < len(glob) <= _GLOB_CHARS_MAX or not glob.isprintable():
            raise ValueError(f"{quote(glob)}, expected a glob of 1 to {_GLOB_CHARS_MAX} printable characters")
