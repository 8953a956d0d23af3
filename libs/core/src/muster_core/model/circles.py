"""The circles of what has ended: references with which objects would wait for a full collection of garbage.

A process that decides has no such collections (``muster_cli.gc_tuning``). So what ends gives up what refers to it.
"""

from __future__ import annotations

_PLAIN = (str, int, float)


def vacate(thing: object, blank: object) -> None:
    """Gives a thing that has ended what a blank one of its class has, so that nothing it had leads back to it.

    Texts and numbers stay: what was recorded of it may name them.
    """
    for name in _attributes(thing):
        if not isinstance(getattr(thing, name, 0), _PLAIN) and hasattr(blank, name):
            setattr(thing, name, getattr(blank, name))


def _attributes(thing: object) -> list[str]:
    """The names of a thing's attributes; of a compiled class, those that its source declares."""
    own = getattr(thing, "__dict__", None)
    if own:
        return list(own)
    return [name for cls in type(thing).__mro__ for name in getattr(cls, "__mypyc_attrs__", ()) if name != "__dict__"]
