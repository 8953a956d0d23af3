"""The commands of `muster config`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter
from muster_runtime.terminal import Screen

from muster_cli import numbers
from muster_cli.flags import (
    DEFAULT_GATEWAY,
    NO_ACCESS_FLAGS,
    OPERATE,
    AccessFlags,
    GatewayAddress,
    InputFile,
    RmId,
    SettingsFlags,
)

config_app = App(name="config", help="Show settings; check, compare and apply queue configurations.", group=OPERATE)
_COMMON = SettingsFlags()


@config_app.command(name="check")
def config_check(file: InputFile) -> int:
    """Checks a queue configuration (YAML): prints its errors with line and column, or each queue's settings.

    Of a policy file (TOML) it prints the errors, or the rules.

    :param file: the queue configuration, or the policy file (.toml); "-": a queue configuration from standard input.
    """
    from muster_cli import config_check as queue_config
    from muster_cli import policy

    check = policy.check if file.suffix.lower() == policy.SUFFIX else queue_config.check
    return 0 if check(file, Screen()) else 1


@config_app.command(name="diff")
def config_diff(old: InputFile, new: InputFile) -> int:
    """Compares two queue configurations: new and removed queues, keys, rules and limits.

    :param old: the present queue configuration.
    :param new: the new one.
    """
    from muster_cli.config_check import compare

    compare(old, new, Screen())
    return 0


@config_app.command(name="apply")
def config_apply(
    file: Path,
    *,
    rm: RmId = "",
    gateway: GatewayAddress = DEFAULT_GATEWAY,
    timeout_s: numbers.TimeoutS = 15.0,
    flags: AccessFlags = NO_ACCESS_FLAGS,
) -> int:
    """Replaces the queue configuration (YAML) of a registered RM while it runs, as a whole or not at all.

    Prints the changes, or the errors with line and column. Exit code 0: the configuration is in force.

    :param file: the queue configuration.
    :param rm: the RM's id [the only one].
    :param gateway: gRPC address of a gateway.
    :param timeout_s: how long to wait for the answer.
    """
    from muster_cli.config_apply import apply

    return 0 if apply(file, gateway, rm, timeout_s, Screen(), flags) else 1


@config_app.command(name="show")
def config_show(
    *,
    data_dir: Path | None = None,
    json: Annotated[bool, Parameter(negative="")] = False,
    changed: Annotated[bool, Parameter(negative="")] = False,
    common: SettingsFlags = _COMMON,
) -> int:
    """Prints the effective settings and where each comes from; secrets are masked.

    :param data_dir: show the settings of `muster up --data-dir`.
    :param json: print JSON.
    :param changed: only settings that differ from their default.
    """
    from muster_cli.config_show import show_settings

    return show_settings(common.settings, common.set, data_dir, as_json=json, changed=changed)
