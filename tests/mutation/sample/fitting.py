"""What test_mutation.py makes mutants of: its tests notice all."""

from __future__ import annotations


def fits(wanted: int, free: int) -> bool:
    return wanted <= free


def steps_to(end: int) -> int:
    """Goes up to ``end``, at least one step. (Some mutants never come there.)"""
    at = 0
    while at < end:
        at += 1
    return at
