"""What only a collection of garbage would free: a process that decides looks for none among what is old."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Sequence


def unreachable(package: str = "muster_core") -> Counter[str]:
    """Collects. Returns how many objects of a package's classes were in circles, by class."""
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        gc.collect()
        classes = [type(each) for each in in_circles(gc.garbage)]
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.collect()  # (What was looked at is freed now.)
    return Counter(each.__qualname__ for each in classes if each.__module__.startswith(package))


def in_circles(objects: Sequence[object]) -> list[object]:
    """Returns those objects from which references lead back to themselves, through others of them."""
    by_id = {id(each): each for each in objects}
    order: dict[int, int] = {}
    lowest: dict[int, int] = {}
    path: list[int] = []
    on_path: set[int] = set()
    found: list[object] = []
    for start in by_id:
        if start in order:
            continue
        # (Tarjan's algorithm, without recursion.)
        work = [(start, iter(_referents(by_id, start)))]
        order[start] = lowest[start] = len(order)
        path.append(start)
        on_path.add(start)
        while work:
            at, following = work[-1]
            for other in following:
                if other not in order:
                    order[other] = lowest[other] = len(order)
                    path.append(other)
                    on_path.add(other)
                    work.append((other, iter(_referents(by_id, other))))
                    break
                if other in on_path:
                    lowest[at] = min(lowest[at], order[other])
            else:
                work.pop()
                if work:
                    lowest[work[-1][0]] = min(lowest[work[-1][0]], lowest[at])
                if lowest[at] == order[at]:
                    circle = path[path.index(at) :]
                    del path[path.index(at) :]
                    on_path.difference_update(circle)
                    if len(circle) > 1 or at in _referents(by_id, at):
                        found += (by_id[each] for each in circle)
    return found


def _referents(by_id: dict[int, object], number: int) -> list[int]:
    return [name for name in map(id, gc.get_referents(by_id[number])) if name in by_id]
