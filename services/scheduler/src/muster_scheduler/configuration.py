"""Judges a queue configuration's text as the scheduler would take it on this machine."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from muster_core.config import config_diff
from muster_core.config.config import ClusterConfig
from muster_proto.muster.bus.v1 import envelope_pb2 as pb
from muster_queue_config.queue_yaml import Problem, load_queue_config
from muster_runtime import event_settings
from muster_runtime.secrets import MASK, is_secret, masked_text
from muster_state.follower import RmInfo, encode_registration

from muster_scheduler.users import UserGroups

# Limit of one line, so that an answer with admin_commands.CHANGES_MAX lines stays far below a record's 1 MiB.
_LINE_BYTES_MAX = 600


# As for a request: below the log's 1 MiB.
_REGISTRATION_BYTES_MAX = 960 * 1024


def judge(text: str, groups: UserGroups) -> tuple[ClusterConfig | None, list[pb.ConfigProblem]]:
    """Returns the text's configuration, None if it is refused, and all errors and warnings."""
    config, problems = load_queue_config(text)
    told = [*map(_problem, problems), *_resolver_problems(groups, config)]
    refused = any(problem.severity == pb.ConfigProblem.ERROR for problem in told)
    return None if refused else config, told


def changes(old: ClusterConfig, new: ClusterConfig) -> list[str]:
    """Returns one line for each change between two configurations, in order. Masks secrets among the properties."""
    return [_line(_masked(change)) for change in config_diff.diff(old, new)]


def too_large(info: RmInfo) -> pb.ConfigProblem | None:
    """Returns the error if an RM's registration is too large for a record. Updates add to the registration."""
    size = len(encode_registration(info))
    if size <= _REGISTRATION_BYTES_MAX:
        return None
    why = f"{size:,} bytes with the configuration, expected at most {_REGISTRATION_BYTES_MAX:,}"
    return pb.ConfigProblem(severity=pb.ConfigProblem.ERROR, path="extraConfig", message=why)


def too_large_with(info: RmInfo, text: str, added: Mapping[str, str]) -> pb.ConfigProblem | None:
    """Returns the error if an update would make the registration too large, whether its text is accepted or not."""
    largest = max(text, info.config, key=lambda each: len(each.encode()))
    extra_config, _ = event_settings.merged(info.extra_config, added)
    return too_large(replace(info, config=largest, extra_config=extra_config))


def event_warnings(problems: Iterable[str]) -> list[pb.ConfigProblem]:
    """Returns warnings for event settings without effect; each problem has the form ``<key>: <why>``."""
    found = []
    for problem in problems:
        key, _, why = problem.partition(": ")
        severity = pb.ConfigProblem.WARNING
        found.append(pb.ConfigProblem(severity=severity, path=f"extraConfig[{key}]", message=masked_text(why)))
    return found


def _line(change: config_diff.Change) -> str:
    text = str(change)
    encoded = text.encode()
    return text if len(encoded) <= _LINE_BYTES_MAX else encoded[: _LINE_BYTES_MAX - 3].decode(errors="ignore") + "…"


def _masked(change: config_diff.Change) -> config_diff.Change:
    _, is_property, name = change.what.partition("properties.")
    if not is_property:
        return change
    if not is_secret(name):
        return replace(change, old=masked_text(change.old), new=masked_text(change.new))
    return replace(change, old=change.old and MASK, new=change.new and MASK)


def _resolver_problems(groups: UserGroups, config: ClusterConfig | None) -> list[pb.ConfigProblem]:
    """Returns the errors of a configuration's resolvers that cannot work on this machine."""
    resolvers = {partition.user_group_resolver: None for partition in config.partitions} if config is not None else {}
    return [
        pb.ConfigProblem(severity=pb.ConfigProblem.ERROR, path="usergroupresolver.type", message=problem)
        for resolver in resolvers
        if (problem := groups.problem(resolver))
    ]


def _problem(problem: Problem) -> pb.ConfigProblem:
    return pb.ConfigProblem(
        severity=pb.ConfigProblem.ERROR if problem.severity == "error" else pb.ConfigProblem.WARNING,
        path=problem.path,
        line=problem.line,
        column=problem.column,
        # It names the value, and a value of an unknown key may be anything.
        message=masked_text(problem.message),
    )
