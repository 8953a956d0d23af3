"""The placement rules of a partition, as ``/placementrules`` shows them."""

from __future__ import annotations

from muster_core.config.queue_config import RECOVERY_PATH, ROOT, FilterConfig, PlacementRuleConfig, is_expression
from muster_core.partition import Partition
from muster_rest.shapes.configuration import FilterDao, RuleDao


def rules(partition: Partition) -> list[RuleDao]:
    """In the order in which they are tried; the last one is recovery, which no configuration names."""
    recovery = RuleDao(name="recovery", parameters={"queue": RECOVERY_PATH})
    return [*map(_rule, partition.config.placement_rules), recovery]


def _rule(rule: PlacementRuleConfig) -> RuleDao:
    parameters = {"create": _text(rule.create)}
    match rule.name:
        case "fixed":
            value = rule.value.lower()
            qualified = value == ROOT or value.startswith(f"{ROOT}.")
            parameters |= {"queue": value, "qualified": _text(qualified)}
        case "tag":
            parameters["tagName"] = rule.value.lower()
    return RuleDao(
        name=rule.name,
        parameters=parameters,
        filter=_filter(rule.filter) if rule.filter is not None else None,
        parent_rule=_rule(rule.parent) if rule.parent is not None else None,
    )


def _filter(config: FilterConfig) -> FilterDao | None:
    if not (config.users or config.groups or config.deny):
        return None  # it admits everybody, like a rule without a filter
    filter_dao = FilterDao(type="deny" if config.deny else "allow")
    if is_expression(config.users):
        filter_dao.user_exp = config.users[0]
    else:
        filter_dao.user_list = list(config.users)
    if is_expression(config.groups):
        filter_dao.group_exp = config.groups[0]
    else:
        filter_dao.group_list = list(config.groups)
    return filter_dao


def _text(flag: bool) -> str:
    return "true" if flag else "false"
