"""The gRPC methods of the gateway, each with the right that it needs: the gRPC side of the table of rights.

docs/security-rights.md is made from this table and the routes (``scripts/route-tables``). A test holds every method of
every served service to it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from muster_runtime.identity import Right

_STREAM = "the RM that its metadata or its first message names"


@dataclass(frozen=True, slots=True)
class Method:
    """One gRPC method.

    :ivar right: the right that the gateway requires.
    :ivar rm: the path of the request's field that names the RM; "": the right is not about one RM, or the method's
        stream names it.
    :ivar why: for docs/security-rights.md.
    :ivar audited: each call has an audit entry; of other methods only refused attempts have one.
    """

    service: str
    name: str
    right: Right
    rm: str = ""
    why: str = ""
    audited: bool = False

    @property
    def path(self) -> str:
        """Its name in a call."""
        return f"/{self.service}/{self.name}"

    @property
    def action(self) -> str:
        """The word of its audit entries."""
        return _ACTIONS.get(self.name, str(self.right)) if self.audited else str(self.right)


# The words are the scheduler's, where it writes the entry of a call that succeeds.
_ACTIONS = {
    "RegisterResourceManager": "register",
    "UpdateConfiguration": "configure",
    "ValidateConfiguration": "validate",
    "ListResourceManagers": "list",
    "PauseResourceManager": "pause",
    "ResumeResourceManager": "resume",
    "ForgetResourceManager": "forget",
    "DrainNode": "drain",
    "EndApplication": "end-application",
    "DumpState": "dump",
    "Explain": "explain",
    "Read": "audit",
}


def _admin(name: str, right: Right, reason: str = "", rm: str = "rm_id") -> Method:
    return Method("muster.v1.Admin", name, right, rm, reason, audited=True)


METHODS = (
    Method(
        "si.v1.Scheduler",
        "RegisterResourceManager",
        Right.ACT,
        "rmID",
        audited=True,
    ),
    Method("si.v1.Scheduler", "UpdateAllocation", Right.ACT, why=_STREAM),
    Method("si.v1.Scheduler", "UpdateApplication", Right.ACT, why=_STREAM),
    Method("si.v1.Scheduler", "UpdateNode", Right.ACT, why=_STREAM),
    Method("muster.v1.Callbacks", "Connect", Right.ACT, why=_STREAM),
    _admin("UpdateConfiguration", Right.CONFIGURE, rm="rmID"),
    _admin(
        "ValidateConfiguration",
        Right.CONFIGURE,
        "shows how the configuration in force differs",
        "rmID",
    ),
    _admin("ListResourceManagers", Right.READ, "lists those that may be read"),
    _admin("PauseResourceManager", Right.OPERATE),
    _admin("ResumeResourceManager", Right.OPERATE),
    _admin("ForgetResourceManager", Right.OPERATE),
    _admin("DrainNode", Right.OPERATE),
    _admin("EndApplication", Right.OPERATE),
    _admin("DumpState", Right.OPERATE, "has the whole state"),
    _admin("Explain", Right.READ),
    Method("muster.v1.Audit", "Read", Right.ADMIN, why="names every caller of every RM", audited=True),
    Method("muster.v1.Metrics", "Get", Right.READ, "rm_id"),
    Method("muster.v1.Metrics", "Watch", Right.READ, "what.rm_id"),
    Method("muster.v1.Events", "Batch", Right.READ, "rm_id"),
    Method("muster.v1.Events", "Watch", Right.READ, "rm_id"),
    Method(
        "muster.v1.Health",
        "Get",
        Right.NONE,
        why="without the role read in general words; without a right to read the grade alone",
    ),
    Method("grpc.health.v1.Health", "Check", Right.NONE, why="probes have no token"),
    Method("grpc.health.v1.Health", "List", Right.NONE, why="probes have no token"),
    Method("grpc.health.v1.Health", "Watch", Right.NONE, why="probes have no token"),
    Method(
        "grpc.reflection.v1alpha.ServerReflection",
        "ServerReflectionInfo",
        Right.NONE,
        why="describes the interface; has no data",
    ),
)


def by_path(methods: Iterable[Method] = METHODS) -> dict[str, Method]:
    """Returns the methods by their names in calls."""
    return {method.path: method for method in methods}
