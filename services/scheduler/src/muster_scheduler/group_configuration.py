"""Policy groups (the scheduler interface): RMs with identical static configuration name the same group at registration.

An RM without a configuration gets that of its group: from a file of the group's name, else (if the operator allows it)
from another RM of the group, else the default. If an RM's configuration differs from that of its group, the scheduler
accepts it with a warning, because a rollout goes from one RM to the next.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from muster_proto.muster.bus.v1 import envelope_pb2 as pb
from muster_queue_config.queue_yaml import checksum
from muster_state.state_folder import RmEntry, RmInfo

_FILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}", re.ASCII)
_FILE_BYTES_MAX = 1 << 20  # as for a registration
_FIELD = "policyGroup"


class GroupConfigurations:
    """Finds configurations.

    :param default_config: the configuration if nothing else is found.
    :param directory: of files ``<policyGroup>.yaml``; None: there are none.
    :param shared: an RM may get the configuration of another RM of its group.
    """

    def __init__(self, default_config: str = "", directory: Path | None = None, *, shared: bool = False) -> None:
        self._default_config = default_config
        self._directory = directory
        self._shared = shared

    def text_for(
        self, config: str, group: str, rm_id: str, rms: Mapping[str, RmEntry]
    ) -> tuple[str, list[pb.ConfigProblem]]:
        """Returns the configuration of an RM that sends ``config``, and the problems of the group's file."""
        if config:
            return config, []
        text, problem = self._file(group)
        if text or problem:
            return text, [_problem(pb.ConfigProblem.ERROR, problem)] if problem else []
        others = self._others(group, rm_id, rms) if self._shared else []
        return (others[-1].config if others else self._default_config), []

    def member(self, text: str, group: str) -> pb.PolicyGroupMember | None:
        """Returns the entry for the gateway's comparison over the RMs of all partitions; None: the RM has no group.

        (Without sharing, clusters may use the same group name by chance. Then the comparison must not show their ids.)
        """
        if not group:
            return None
        return pb.PolicyGroupMember(group=group, config_checksum=checksum(text), named=self._shared)

    def _others(self, group: str, rm_id: str, rms: Mapping[str, RmEntry]) -> list[RmInfo]:
        """Returns the group's other registered RMs of this partition, in the order of their registrations."""
        infos = [
            state.info
            for state in rms.values()
            if group and state.info.policy_group == group and state.info.rm_id != rm_id and state.info.life != "STOPPED"
        ]
        return sorted(infos, key=lambda info: (info.registered_ns, info.rm_id))

    def _file(self, group: str) -> tuple[str, str]:
        """Returns the file's text and the problem of reading it; ("", "") if there is no such file."""
        if self._directory is None or not _FILE_NAME.fullmatch(group):
            return "", ""
        path = self._directory / f"{group}.yaml"
        try:
            if path.stat().st_size > _FILE_BYTES_MAX:
                return "", f"{path.name} has more than {_FILE_BYTES_MAX} bytes"
            return path.read_text(encoding="utf-8"), ""
        except FileNotFoundError:
            return "", ""
        except OSError as error:
            return "", f"{path.name} cannot be read: {error.strerror}"
        except UnicodeDecodeError:
            return "", f"{path.name} is no text in UTF-8"


def other_group(group: str, registered: str) -> list[pb.ConfigProblem]:
    """Returns a warning if a configuration update names another group than the registration."""
    if not group or group == registered:
        return []
    message = f"{group!r}, but the resource manager registered with {registered!r}: that stays"
    return [_problem(pb.ConfigProblem.WARNING, message)]


def _problem(severity: pb.ConfigProblem.Severity.ValueType, message: str) -> pb.ConfigProblem:
    return pb.ConfigProblem(severity=severity, path=_FIELD, message=message)
