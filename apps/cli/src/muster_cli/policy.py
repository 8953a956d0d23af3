"""``muster config check`` of a policy file (docs/security.md)."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from muster_gateway.access.policy import PolicyRule, read_policy
from muster_gateway.errors import InvalidPolicy
from muster_gateway.quota_settings import QuotaRule
from muster_runtime.terminal import Screen, marked
from rich.table import Table
from rich.text import Text

SUFFIX = ".toml"


def check(file: Path, console: Screen) -> bool:
    """Prints a policy's problems, or its rules and quotas. Returns whether it can be used."""
    try:
        policy = read_policy(file)
    except InvalidPolicy as error:
        for line in str(error).splitlines():
            console.print(marked("[bold red]error[/] {}", line), soft_wrap=True)
        return False
    table = Table("rule", "identities", "proofs", "acts as", "operates", "reads", "role")
    for number, rule in enumerate(policy.rule):
        table.add_row(
            str(number),
            _listed(rule.identities),
            _listed(rule.proofs or ["any"]),
            _listed(rule.act),
            _listed(rule.operate),
            _listed(_reads(rule)),
            rule.role,
        )
    console.print(table)
    if policy.quota:
        console.print(_quotas(policy.quota))
    console.print(marked("[green]{} can be used[/]", file), soft_wrap=True)
    return True


def _quotas(rules: Iterable[QuotaRule]) -> Table:
    table = Table("quota", "identities", "rmIDs", "limits")
    for number, rule in enumerate(rules):
        named = rule.model_dump(exclude={"identities", "rms"}, exclude_none=True)
        limits = [f"{name} = {value}" if value else f"{name}: no limit" for name, value in named.items()]
        table.add_row(str(number), _listed(rule.identities or ["all"]), _listed(rule.rms or ["all"]), _listed(limits))
    return table


def _reads(rule: PolicyRule) -> Iterable[str]:
    for scope in rule.read:
        yield scope.rm if scope.partitions == ("*",) else f"{scope.rm} ({', '.join(scope.partitions)})"


def _listed(names: Iterable[str]) -> Text:
    return marked("{}", ", ".join(names))
