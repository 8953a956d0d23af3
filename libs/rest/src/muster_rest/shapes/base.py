"""The rules for writing shapes as JSON.

A field with a default is left out when it has that value (Go's omitempty); a field without a default is always there.
The order of fields is that of YuniKorn's core, or the order in which a reader needs them.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Annotated, Any

from msgspec import NODEFAULT, Meta, Struct, defstruct, field, structs

Quantities = dict[str, int]
Count = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
Amount = Annotated[int, Meta(ge=-(1 << 63), le=(1 << 63) - 1)]
Time = Annotated[int, Meta(ge=0, le=(1 << 63) - 1, description="Nanoseconds since the epoch; 0: none.")]
Name = Annotated[str, Meta(min_length=1)]
Code = Annotated[str, Meta(pattern="^[A-Z][A-Z_]+$")]
CodeOrEmpty = Annotated[str, Meta(pattern="^([A-Z][A-Z_]+)?$")]
Sentence = Annotated[str, Meta(pattern="^[A-Za-z0-9][^\\n]*[.]$")]


class YuniKornShape(Struct, omit_defaults=True, kw_only=True, rename="camel"):
    """A shape of YuniKorn's: zero and empty fields are left out, unless YuniKorn's core always has them."""


class MusterShape(Struct, kw_only=True, rename="camel"):
    """A shape of Muster's own: it always has all fields, so that readers need no defaults."""


class ErrorDao(Struct, kw_only=True):
    """An error of a request. Both texts are the same."""

    status_code: int
    message: str
    description: str


def many(shape: Any) -> Any:
    """A list of a shape that :func:`joined` made."""
    return list[shape]


def joined(
    name: str, about: str, head: type[Struct], lists: Mapping[str, Any], tail: type[Struct] | None = None
) -> Any:
    """The shape of an object that is sent in parts: the head's fields, lists of others, and the tail's fields.

    :param lists: the lists by their names in JSON; an empty list of YuniKorn's is left out.
    """
    left_out = issubclass(head, YuniKornShape)
    fields: list[Any] = [_field(info) for info in structs.fields(head)]
    fields += [
        (list_name, kind, field(default_factory=list)) if left_out else (list_name, kind)
        for list_name, kind in lists.items()
    ]
    fields += [_field(info) for info in structs.fields(tail)] if tail is not None else []
    shape = defstruct(name, fields, module=head.__module__, namespace={"__doc__": about}, kw_only=True)
    setattr(sys.modules[head.__module__], name, shape)
    return shape


def _field(of: structs.FieldInfo) -> tuple[Any, ...]:
    if of.required:
        return of.name, of.type, field(name=of.encode_name)
    if of.default is not NODEFAULT:
        return of.name, of.type, field(name=of.encode_name, default=of.default)
    return of.name, of.type, field(name=of.encode_name, default_factory=of.default_factory)
