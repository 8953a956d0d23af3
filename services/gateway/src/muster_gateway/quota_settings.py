"""Quotas in the gateway's settings and in the policy file: what an RM and an identity may have (docs/security.md).

Why a number is what it is stands in docs/operating.md, with the memory that each thing takes.
"""

from __future__ import annotations

from typing import Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

_MIB = 1024 * 1024
COUNT_MAX = 2**63 - 1  # as much as a record of the log can carry
_GLOB_CHARS_MAX = 256


class RmQuotaSettings(BaseModel):
    """``gateway.quotas.rm``: what each RM may have; 0: no limit."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    nodes: int = Field(50_000, ge=0, le=COUNT_MAX, description="Nodes.")
    queues: int = Field(10_000, ge=0, le=COUNT_MAX, description="Queues, configured and dynamic ones.")
    applications: int = Field(
        100_000,
        ge=0,
        le=COUNT_MAX,
        description="Applications. Finished ones that are kept leave for new ones, the oldest first.",
    )
    asks: int = Field(
        1_000_000, ge=0, le=COUNT_MAX, description="Pending asks; one with repeats counts as often as it repeats."
    )
    allocations: int = Field(2_000_000, ge=0, le=COUNT_MAX, description="Allocations together with pending asks.")
    users: int = Field(20_000, ge=0, le=COUNT_MAX, description="Users of live applications, in each partition.")
    text_bytes: int = Field(
        1024 * _MIB, ge=0, le=COUNT_MAX, description="Tags and attributes of nodes, applications, asks and allocations."
    )
    requests_per_s: float = Field(
        5_000.0, ge=0, allow_inf_nan=False, description="Messages on its streams; more are read later."
    )
    bytes_per_s: float = Field(64.0 * _MIB, ge=0, allow_inf_nan=False, description="The same in bytes.")


class IdentityQuotaSettings(BaseModel):
    """``gateway.quotas.identity``: what each identity with credentials may have; 0: no limit."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    resource_managers: int = Field(
        1_000, ge=0, le=COUNT_MAX, description="RMs that it registered and nobody has forgotten."
    )
    requests_per_s: float = Field(
        20_000.0,
        ge=0,
        allow_inf_nan=False,
        description="Messages on all its streams, and calls; more messages are read later.",
    )
    bytes_per_s: float = Field(256.0 * _MIB, ge=0, allow_inf_nan=False, description="The same in bytes.")


class QuotaRule(BaseModel):
    """An entry of ``gateway.quotas.overrides``, or a ``[[quota]]`` of the policy file. What it leaves out stays."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    identities: tuple[str, ...] = Field((), description="Globs of names; none: all, also without credentials.")
    rms: tuple[str, ...] = Field((), description="Globs of rmIDs; none: all.")
    nodes: int | None = Field(None, ge=0, le=COUNT_MAX)
    queues: int | None = Field(None, ge=0, le=COUNT_MAX)
    applications: int | None = Field(None, ge=0, le=COUNT_MAX)
    asks: int | None = Field(None, ge=0, le=COUNT_MAX)
    allocations: int | None = Field(None, ge=0, le=COUNT_MAX)
    users: int | None = Field(None, ge=0, le=COUNT_MAX)
    text_bytes: int | None = Field(None, ge=0, le=COUNT_MAX)
    requests_per_s: float | None = Field(None, ge=0, allow_inf_nan=False)
    bytes_per_s: float | None = Field(None, ge=0, allow_inf_nan=False)
    identity_resource_managers: int | None = Field(None, ge=0, le=COUNT_MAX)
    identity_requests_per_s: float | None = Field(None, ge=0, allow_inf_nan=False)
    identity_bytes_per_s: float | None = Field(None, ge=0, allow_inf_nan=False)

    @model_validator(mode="after")
    def _fits(self) -> Self:
        for glob in (*self.identities, *self.rms):
            if not 0 < len(glob) <= _GLOB_CHARS_MAX or not glob.isprintable():
                raise ValueError(f"{glob[:64]!a}, expected a glob of 1 to {_GLOB_CHARS_MAX} printable characters")
        quotas = [name for name in self.model_fields_set if name not in ("identities", "rms")]
        if not quotas:
            raise ValueError("no quota, expected at least one beside identities and rms")
        if self.rms and (of_identity := [name for name in quotas if name.startswith("identity_")]):
            raise ValueError(f"{', '.join(sorted(of_identity))} with rms: expected without, for all RMs of an identity")
        return self


class QuotaSettings(BaseModel):
    """``gateway.quotas``."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    all_resource_managers: int = Field(
        3_000, ge=0, le=COUNT_MAX, description="RMs of all identities together that nobody has forgotten; 0: no limit."
    )
    rm: RmQuotaSettings = Field(RmQuotaSettings.model_validate({}), description="Of each RM.")
    identity: IdentityQuotaSettings = Field(
        IdentityQuotaSettings.model_validate({}), description="Of each identity with credentials."
    )
    overrides: tuple[QuotaRule, ...] = Field(
        (), description="Other limits for some identities or RMs (tables); those of the policy file come after them."
    )
    burst_s: float = Field(
        10.0, gt=0, le=3600, description="A caller that was quiet may send so many seconds' worth at once."
    )
