"""Weights that double with each half-life, in integers, so that every machine computes the same.

A sum that decays is never multiplied again as time passes. Instead, what comes later counts more: an amount at time t
counts with the weight 2^(t / half-life). Two sums in these weights keep their order for ever. The exponent's whole part
is kept apart (:attr:`DecayTime.halves`), so the weights themselves stay between 1 and 2, in units of 2^-40.
"""

from __future__ import annotations

from functools import lru_cache
from math import isqrt, log
from typing import NamedTuple

# The unit of a weight is 2^-WEIGHT_BITS; a half-life has 2^FRACTION_BITS steps (of 0.08 s, if it is a day).
WEIGHT_BITS = 40
FRACTION_BITS = 20
ONE = 1 << WEIGHT_BITS
_HALF_BITS = FRACTION_BITS // 2
_ROOT_BITS = 120  # the precision of the roots from which the tables are made


class DecayTime(NamedTuple):
    """A time as an exponent of two.

    :ivar halves: how many whole half-lives have passed since the epoch.
    :ivar weight: the weight of the rest, from ONE to just below twice ONE.
    """

    halves: int
    weight: int

    def since(self, halves: int) -> int:
        """The weight in units of an earlier (or later) number of half-lives."""
        steps = self.halves - halves
        return self.weight << steps if steps >= 0 else self.weight >> -steps


def moment(now_ns: int, half_life_ns: int) -> DecayTime:
    """The moment of a time."""
    halves, remainder = divmod(now_ns, half_life_ns)
    step = (remainder << FRACTION_BITS) // half_life_ns
    coarse, fine = _tables()
    return DecayTime(halves, (coarse[step >> _HALF_BITS] * fine[step & ((1 << _HALF_BITS) - 1)]) >> WEIGHT_BITS)


def normal(amount: int, halves: int) -> tuple[int, int]:
    """A place in order for ``amount`` in units of these half-lives: larger for more, whatever the units."""
    bits = amount.bit_length()
    return (halves + bits, (amount << 64) >> bits) if amount > 0 else LEAST


#: The place of no use at all.
LEAST = (-(1 << 62), 0)


def seconds_of(weighted: int, at: DecayTime, halves: int, half_life_ns: int) -> float:
    """What a weighted sum (amount x weight) means at a moment: a decayed sum of amount x seconds."""
    return weighted / at.since(halves) * half_life_ns / 1e9 / log(2)


@lru_cache(maxsize=1)
def _tables() -> tuple[list[int], list[int]]:
    """The weights of the upper and of the lower half of a step's bits."""
    root, roots = 2 << _ROOT_BITS, []
    for _ in range(FRACTION_BITS):
        root = isqrt(root << _ROOT_BITS)
        roots.append(root)
    return _products(roots[:_HALF_BITS]), _products(roots[_HALF_BITS:])


def _products(roots: list[int]) -> list[int]:
    products = [1 << _ROOT_BITS]
    for root in roots:
        products = [value for product in products for value in (product, (product * root) >> _ROOT_BITS)]
    return [value >> (_ROOT_BITS - WEIGHT_BITS) for value in products]
