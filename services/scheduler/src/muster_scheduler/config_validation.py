"""Judges a queue configuration's text as the scheduler would take it on this machine."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import NamedTuple

from muster_core.config import config_diff
from muster_core.config.queue_config import ClusterConfig
from muster_core.model.steps import Steps, finish
from muster_proto.muster.bus.v1 import envelope_pb2 as pb
from muster_queue_config import config_codec
from muster_queue_config.queue_yaml import ConfigProblem, load_queue_config
from muster_runtime import event_settings
from muster_runtime.secrets import MASK, is_secret, masked_text
from muster_state.state_folder import REGISTRATION_BYTES_MAX, RmInfo, encode_registration

from muster_scheduler.group_resolution import UserGroups

# Limit of one line, so that an answer with admin_commands.CHANGES_MAX lines stays far below a record's 1 MiB.
_LINE_BYTES_MAX = 600
# Texts that were read here, for RMs that share one.
_KEPT_MAX = 16


class ConfigVerdict(NamedTuple):
    """The verdict on a text.

    :param config: None: it is refused.
    :param compiled: as of ``config_codec.encode``.
    """

    config: ClusterConfig | None
    compiled: bytes
    problems: list[pb.ConfigProblem]


class ConfigValidator:
    """Judges texts for one machine."""

    def __init__(self, groups: UserGroups) -> None:
        self._groups = groups
        self._kept: OrderedDict[bytes, ConfigVerdict] = OrderedDict()

    def validate(self, text: str, judged: pb.JudgedConfiguration | None = None, rm_id: str = "") -> ConfigVerdict:
        """Returns the verdict on a text, with all errors and warnings.

        :param rm_id: the RM whose configuration it is to be; "": of any.
        :param judged: the gateway's verdict. Without it the text is read here, which takes about a second per MiB: only
            texts of this machine's files and of older gateways come without.
        """
        verdict = self._found(text, judged)
        problems = [
            *verdict.problems,
            *_resolver_problems(self._groups, verdict.config),
            *_others(rm_id, verdict.config),
        ]
        refused = any(problem.severity == pb.ConfigProblem.ERROR for problem in problems)
        return ConfigVerdict(None if refused else verdict.config, verdict.compiled, problems)

    def _found(self, text: str, judged: pb.JudgedConfiguration | None) -> ConfigVerdict:
        if judged is not None:
            if not judged.accepted:
                return ConfigVerdict(None, b"", list(judged.problems))
            config = config_codec.decode(text, judged.compiled)
            if config is not None:
                return ConfigVerdict(config, judged.compiled, list(judged.problems))
        name = config_codec.digest(text)
        verdict = self._kept.get(name)
        if verdict is None:
            config, problems = load_queue_config(text)
            value = config_codec.encode(text, config) if config is not None and text.strip() else b""
            verdict = self._kept[name] = ConfigVerdict(config, value, [*map(_problem, problems)])
            if len(self._kept) > _KEPT_MAX:
                self._kept.popitem(last=False)
        return verdict


def changes(old: ClusterConfig, new: ClusterConfig) -> list[str]:
    """Returns one line for each change between two configurations, in order. Masks secrets among the properties."""
    lines: list[str] = []
    finish(add_changes(old, new, lines))
    return lines


def add_changes(old: ClusterConfig, new: ClusterConfig, lines: list[str]) -> Steps:
    """Adds these lines in steps."""
    for change in config_diff.differences(old, new):
        if change is None:
            yield
        else:
            lines.append(_line(_masked(change)))


def too_large(info: RmInfo) -> pb.ConfigProblem | None:
    """Returns the error if an RM's registration is too large for a record. Updates add to the registration."""
    size = len(encode_registration(info))
    if size <= REGISTRATION_BYTES_MAX:
        return None
    message = f"{size:,} bytes with the configuration, expected at most {REGISTRATION_BYTES_MAX:,}"
    return pb.ConfigProblem(severity=pb.ConfigProblem.ERROR, path="extraConfig", message=message)


def too_large_with(info: RmInfo, text: str, added: Mapping[str, str]) -> pb.ConfigProblem | None:
    """Returns the error if an update would make the registration too large, whether its text is accepted or not."""
    largest = max(text, info.config, key=lambda candidate: len(candidate.encode()))
    extra_config, _ = event_settings.merged(info.extra_config, added)
    return too_large(replace(info, config=largest, extra_config=extra_config))


def event_warnings(problems: Iterable[str]) -> list[pb.ConfigProblem]:
    """Returns warnings for event settings without effect; each problem has the form ``<key>: <reason>``."""
    warnings = []
    for problem in problems:
        key, _, reason = problem.partition(": ")
        severity = pb.ConfigProblem.WARNING
        warnings.append(pb.ConfigProblem(severity=severity, path=f"extraConfig[{key}]", message=masked_text(reason)))
    return warnings


def _line(change: config_diff.ConfigChange) -> str:
    text = str(change)
    encoded = text.encode()
    return text if len(encoded) <= _LINE_BYTES_MAX else encoded[: _LINE_BYTES_MAX - 3].decode(errors="ignore") + "…"


def _masked(change: config_diff.ConfigChange) -> config_diff.ConfigChange:
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


def _others(rm_id: str, config: ClusterConfig | None) -> list[pb.ConfigProblem]:
    """Returns the errors of partitions that are named as another RM's."""
    return [
        pb.ConfigProblem(
            severity=pb.ConfigProblem.ERROR,
            path=f"partitions[{number}].name",
            message=f"must be {partition.name} or [{rm_id}]{partition.name}, "
            f"got [{masked_text(partition.of_rm)}]{partition.name}",
        )
        for number, partition in enumerate(config.partitions if config is not None and rm_id else ())
        if partition.of_rm not in ("", rm_id)
    ]


def _problem(problem: ConfigProblem) -> pb.ConfigProblem:
    return pb.ConfigProblem(
        severity=pb.ConfigProblem.ERROR if problem.severity == "error" else pb.ConfigProblem.WARNING,
        path=problem.path,
        line=problem.line,
        column=problem.column,
        # It names the value, and a value of an unknown key may be anything.
        message=masked_text(problem.message),
    )
