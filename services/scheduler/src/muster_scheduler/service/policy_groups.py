"""Policy groups (seed 000): RMs whose static configuration is identical name the same one when they register.

An RM that brings no configuration gets that of its group: from a file of the group's name, else (where the operator
wants it) from another RM of the group, else the default. One that brings another than the others of its group is
taken as it is, with a warning: a rollout goes from one RM to the next.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from muster_proto.muster.bus.v1 import envelope_pb2 as pb

from muster_scheduler.follower import RmInfo, RmState
from muster_scheduler.queue_yaml import checksum

_FILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}", re.ASCII)
_FILE_BYTES_MAX = 1 << 20  # as a registration's
_NAMED_MAX = 5
_FIELD = "policyGroup"


class PolicyGroups:
    """Finds configurations.

    :param default_config: for those for whom nothing else is found.
    :param directory: of files ``<policyGroup>.yaml``; None: there are none.
    :param shared: an RM may get the configuration of another one of its group.
    """

    def __init__(self, default_config: str = "", directory: Path | None = None, *, shared: bool = False) -> None:
        self._default_config = default_config
        self._directory = directory
        self._shared = shared

    def text_for(
        self, config: str, group: str, rm_id: str, rms: Mapping[str, RmState]
    ) -> tuple[str, list[pb.ConfigProblem]]:
        """The configuration of an RM that sends ``config``, and what is wrong with the group's file."""
        if config:
            return config, []
        text, problem = self._file(group)
        if text or problem:
            return text, [_problem(pb.ConfigProblem.ERROR, problem)] if problem else []
        others = self._others(group, rm_id, rms) if self._shared else []
        return (others[-1].config if others else self._default_config), []

    def warnings(self, text: str, group: str, rm_id: str, rms: Mapping[str, RmState]) -> list[pb.ConfigProblem]:
        """That others of the group have another configuration; by name where RMs of a group may know of each other."""
        mine = checksum(text)
        # (Mostly the very same text: then hundreds of RMs cost no checksum each.)
        others = sorted(
            other.rm_id
            for other in self._others(group, rm_id, rms)
            if other.config != text and checksum(other.config) != mine
        )
        if not others:
            return []
        # (Without sharing a group's name may be in use by chance: ids of other clusters are nobody's business then.)
        named = _named(others) if self._shared else f"{len(others)} other resource manager{'s' * (len(others) > 1)}"
        why = f"{group!r}: {named} of this group registered with another configuration, expected identical ones"
        return [_problem(pb.ConfigProblem.WARNING, why)]

    def _others(self, group: str, rm_id: str, rms: Mapping[str, RmState]) -> list[RmInfo]:
        """The others of a group that are registered here, in the order of their registrations."""
        found = [
            state.info
            for state in rms.values()
            if group and state.info.policy_group == group and state.info.rm_id != rm_id and state.info.life != "STOPPED"
        ]
        return sorted(found, key=lambda info: (info.registered_ns, info.rm_id))

    def _file(self, group: str) -> tuple[str, str]:
        """(text, why it cannot be read); ("", ""): there is no such file."""
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


def _named(rm_ids: Sequence[str]) -> str:
    more = len(rm_ids) - _NAMED_MAX
    return ", ".join(rm_ids[:_NAMED_MAX]) + (f" and {more} more" if more > 0 else "")


def other_group(said: str, registered: str) -> list[pb.ConfigProblem]:
    """That a configuration update names another group than the registration."""
    if not said or said == registered:
        return []
    why = f"{said!r}, but the resource manager registered with {registered!r}: that stays"
    return [_problem(pb.ConfigProblem.WARNING, why)]


def _problem(severity: pb.ConfigProblem.Severity.ValueType, message: str) -> pb.ConfigProblem:
    return pb.ConfigProblem(severity=severity, path=_FIELD, message=message)
