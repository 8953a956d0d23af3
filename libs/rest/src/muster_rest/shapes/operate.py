"""The caller's identity, and operators' actions over HTTP (docs/admin-http.md)."""

from __future__ import annotations

from muster_rest.shapes.base import Count, MusterShape


class WhoamiDao(MusterShape, kw_only=True):
    """The caller of the request. ``identity``: "nobody" without credentials. ``proof``: none, open, loopback, token,
    certificate or jwt. ``actAs`` and ``operates``: globs of RMs. ``mayOperate``: the caller may
    operate the RM that the request names; ``mayConfigure``: it may replace its queue configuration. ``tokens``: the
    gateway takes tokens.
    """

    identity: str
    proof: str
    role: str
    act_as: list[str]
    operates: list[str]
    may_operate: bool
    may_configure: bool
    tokens: bool


class ProblemDao(MusterShape, kw_only=True):
    """A problem in a queue configuration. ``severity``: error or warning. ``path``: of the key; "": of the whole text.
    ``line``, ``column``: from 1; 0: it has no place in the text.
    """

    severity: str
    path: str
    line: Count
    column: Count
    message: str


class ConfiguredDao(MusterShape, kw_only=True):
    """The scheduler's verdict on a queue configuration, as ``muster.v1.UpdateConfigurationResponse``. ``accepted``: it
    is in force, or would be. ``changes``: what it changes, a line each, at most 1,000. ``position``: of the change, for
    ``Muster-After`` (docs/consistency.md); "": nothing was to change.
    """

    accepted: bool
    problems: list[ProblemDao]
    changes: list[str]
    position: str


class OperatedDao(MusterShape, kw_only=True):
    """The result of an action. ``changed`` is false if it was so already. ``allocations``: those on the node, those
    that the forgotten RM had, or those that the RM has to end. ``description``: the RM's or the application's state in
    words; "" for actions that do not answer with it. ``position``: as in ConfiguredDao.
    """

    changed: bool
    allocations: Count
    description: str
    position: str
