"""Documents: the format of another manager's objects, and the core's objects made from them (the event handler
framework).

A document is a mapping from JSON or YAML: ``kind`` (default ``node``), ``id``, perhaps ``version``, and the fields of
its kind (:data:`FIELDS`; docs/external-documents.md has a table). The reader never guesses: an unknown field, a wrong
type or an amount out of range makes the whole document unreadable (:class:`BadDocument`), never half of it.

amount
    An integer counts in the smallest unit, as in the scheduler interface: ``vcore: 4000`` is four cores, ``memory`` is
    in bytes. A text is read as in the queue configuration: ``vcore: "4"`` is four cores, too, ``"500m"`` half a core,
    ``memory: "16Gi"``. An integer below 100 for ``vcore`` is refused: its author means 4 cores, but 4 would count as
    four thousandths of a core.

version
    An integer that grows with each change of the object. A version that is not newer than the known one is dropped, so
    repeated and late messages do no harm. Without versions, the last message counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from muster_core.config.properties import duration_text, parse_duration_ns
from muster_core.config.queue_config import InvalidQuantity, parse_quantity
from muster_core.external.errors import BadDocument
from muster_core.external.model import (
    ExternalAllocation,
    ExternalApplication,
    ExternalKind,
    ExternalNode,
    ExternalObject,
    ExternalOffer,
    ExternalPool,
    ExternalQueue,
    id_of,
    kind_of,
)
from muster_core.external.validation import (
    DURATION_NS_MAX,
    GROUPS_MAX,
    NAME_CHARACTERS_MAX,
    PRIORITY_MAX,
    QUANTITY_MAX,
    QUEUE_CHARACTERS_MAX,
    TAGS_BYTES_MAX,
    TAGS_MAX,
    TYPES_MAX,
    USUAL_TYPES,
    name_problem,
    quote,
    sanitize,
    text_problem,
)
from muster_si.constants import CPU

VERSION_MAX = 2**63 - 1

#: The field of a document that its source could not read. It holds the reason; kind and id are present if known.
UNREADABLE = "unreadable"

_COMMON = frozenset({"kind", "id", "version"})
_QUOTED_MAX = 60
_TEXT_OF_NUMBER_MAX = 64
# Thousandths of a core: a smaller integer probably means a number of cores.
_CORES_MIN = 100
_KINDS = {kind.value: kind for kind in ExternalKind}


class ObjectIdentity(NamedTuple):
    """The object of a document.

    :ivar version: None: it has none.
    """

    kind: ExternalKind
    object_id: str
    version: int | None


class DocumentContent(NamedTuple):
    """The content of a document."""

    kind: ExternalKind
    object_id: str
    version: int | None
    what: ExternalObject


class _FieldError(Exception):
    """A field's problem; the BadDocument that it becomes also names the object."""


@dataclass(frozen=True, slots=True)
class Field:
    """A field of a kind's documents.

    :ivar attribute: the attribute of the core's dataclass.
    :ivar read: makes the attribute's value from (the document's value, the field's path); raises _Wrong.
    :ivar expected: the expected form, for error messages.
    :ivar meaning: the field's meaning, in one clause.
    """

    name: str
    attribute: str
    read: Callable[[object, str], Any]
    expected: str
    meaning: str
    required: bool = False


def read_document(document: object) -> DocumentContent:
    """A document as an object of the core. Raises BadDocument for any other value of any type."""
    kind, object_id, version, raw = _identity(document)
    values: dict[str, Any] = {}
    try:
        values = _read_fields(raw.items(), _BY_NAME[kind], object_id if kind is ExternalKind.POOL else None)
        obj: ExternalObject = _TYPES[kind](object_id, **values)
    except _FieldError as problem:
        raise BadDocument(str(problem), kind.value, object_id, _node_of(kind, raw)) from None
    except TypeError:
        # The missing fields without a default; found only now, because they are rare.
        missing = next((field for field in FIELDS[kind] if field.required and field.attribute not in values), None)
        if missing is None:
            raise
        text = f"{missing.name}: missing, expected {missing.expected}"
        raise BadDocument(text, kind.value, object_id, _node_of(kind, raw)) from None
    return DocumentContent(kind, object_id, version, obj)


def read_identity(document: object) -> ObjectIdentity:
    """The kind and id of a document's object; the other fields are not read. Raises BadDocument."""
    kind, object_id, version, _ = _identity(document)
    return ObjectIdentity(kind, object_id, version)


def read_durations(raw: Mapping[str, object], names: Sequence[str]) -> dict[str, int]:
    """Durations in settings, in the form of documents: ``{"idle": "30s"}`` or ``{"idle_s": 30}`` as ``{"idle_ns": …}``.

    Raises BadDocument: another key, or no duration.
    """
    fields = {field.name: field for name in names for field in _durations(name, "")}
    if unknown := next((name for name in raw if name not in fields), None):
        raise BadDocument(f"{_label(unknown)}: unknown key, expected one of {', '.join(fields)}")
    try:
        return _read_fields(raw.items(), fields)
    except _FieldError as problem:
        raise BadDocument(str(problem)) from None


def as_document(obj: ExternalObject, version: int | None = None) -> dict[str, object]:
    """The document of an object, without default values; :func:`read_document` makes the same object from it."""
    kind = kind_of(obj)
    document: dict[str, object] = {"kind": kind.value, "id": id_of(obj)}
    if version is not None:
        document["version"] = version
    for field in FIELDS[kind]:
        value = getattr(obj, field.attribute)
        if field.name.endswith("_s") or (not field.required and value == _DEFAULTS[kind][field.attribute]):
            continue  # a duration is written as a text, which is exact
        if field.attribute.endswith("_ns"):
            value = duration_text(value)
        elif isinstance(value, tuple):
            value = list(value)
        elif isinstance(value, dict):
            value = dict(value)
            if field.read is _quantities and 0 < value.get(CPU, 0) < _CORES_MIN:
                value[CPU] = f"{value[CPU]}m"
        document[field.name] = value
    return document


def fields_table() -> str:
    """Returns the fields of all kinds as a Markdown table, for docs/external-documents.md."""
    rows = ["| kind | field | form | meaning |", "|---|---|---|---|"]
    for kind in ExternalKind:
        rows.append(f"| `{kind}` | `id` | a name | {_ID_MEANINGS[kind]} |")
        rows.extend(
            f"| | `{field.name}`{' (needed)' if field.required else ''} | {field.expected} | {field.meaning} |"
            for field in FIELDS[kind]
        )
    return "\n".join(rows)


# ---- reading ------------------------------------------------------------------------------------------------------


def _read_fields(
    raw_items: Iterable[tuple[Any, object]], fields: Mapping[str, Field], resource_type: str | None = None
) -> dict[str, Any]:
    """Attributes' values. Raises _FieldError.

    :param resource_type: the resource type of all amounts, if they have one.
    """
    values: dict[str, Any] = {}
    for name, value in raw_items:
        field = fields.get(name)
        if field is None:
            if name in _COMMON:
                continue
            raise _FieldError(f"{_label(name)}: unknown field, expected one of {', '.join(fields)}")
        if value is None:
            continue  # as if absent: an empty key of YAML
        if field.attribute in values:
            raise _FieldError(f"{name}: {field.attribute} is given in two ways, expected one of them")
        values[field.attribute] = (
            field.read(value, name) if resource_type is None else _amount(value, name, resource_type)
        )
    return values


def _identity(document: object) -> tuple[ExternalKind, str, int | None, Mapping[Any, object]]:
    if not isinstance(document, Mapping):
        raise BadDocument(f"document: {quote(document)}, expected a mapping with id, kind and the kind's fields")
    if UNREADABLE in document:
        raise _unreadable(document)
    raw_kind = document.get("kind")
    # The id first, if it can be read, so that other problems are reported for this object.
    object_id = document.get("id")
    known_id = object_id if isinstance(object_id, str) and len(object_id) <= QUEUE_CHARACTERS_MAX else ""
    kind = ExternalKind.NODE if raw_kind is None else _KINDS.get(raw_kind) if isinstance(raw_kind, str) else None
    if kind is None:
        raise BadDocument(f"kind: {quote(raw_kind)}, expected one of {', '.join(_KINDS)}", "", known_id)
    try:
        object_id = _path(object_id, "id") if kind is ExternalKind.QUEUE else _name(object_id, "id")
    except _FieldError as problem:
        raise BadDocument(str(problem), kind.value) from None
    version = document.get("version")
    if version is not None and (
        not isinstance(version, int) or isinstance(version, bool) or not 0 <= version <= VERSION_MAX
    ):
        raise BadDocument(
            f"version: {quote(version)}, expected an integer from 0 to {VERSION_MAX}",
            kind.value,
            object_id,
            _node_of(kind, document),
        )
    return kind, object_id, version, document


def _node_of(kind: ExternalKind, document: Mapping[Any, object]) -> str:
    """The node that an unreadable allocation names; "": none."""
    node_id = document.get("node_id") if kind is ExternalKind.ALLOCATION else None
    return node_id if isinstance(node_id, str) and not name_problem(node_id, "node_id") else ""


def _unreadable(document: Mapping[Any, object]) -> BadDocument:
    kind, object_id, reason = document.get("kind"), document.get("id"), document[UNREADABLE]
    is_named = isinstance(kind, str) and kind in _KINDS and isinstance(object_id, str)
    text = sanitize(reason) if isinstance(reason, str) else ""
    return BadDocument(
        text or f"the source could not read it: {quote(reason)}",
        str(kind) if is_named else "",
        str(object_id) if is_named and not name_problem(object_id, "id", QUEUE_CHARACTERS_MAX) else "",
    )


def _label(name: object) -> str:
    """Returns a key in a form for messages."""
    return name if isinstance(name, str) and len(name) <= _QUOTED_MAX and name.isidentifier() else quote(name)


def _name(value: object, path: str) -> str:
    return _named(value, path, NAME_CHARACTERS_MAX)


def _path(value: object, path: str) -> str:
    return _named(value, path, QUEUE_CHARACTERS_MAX)


def _named(value: object, path: str, limit: int) -> str:
    if not isinstance(value, str):
        raise _FieldError(f"{path}: {quote(value)}, expected a text of 1 to {limit} characters")
    if problem := name_problem(value, path, limit):
        raise _FieldError(problem)
    return value


def _text(value: object, path: str) -> str:
    if not isinstance(value, str):
        raise _FieldError(f"{path}: {quote(value)}, expected a text")
    if problem := text_problem(value, path):
        raise _FieldError(problem)
    return value


def _flag(value: object, path: str) -> bool:
    if not isinstance(value, bool):
        raise _FieldError(f"{path}: {quote(value)}, expected true or false")
    return value


def _amount(value: object, path: str, resource_type: str) -> int:
    """Returns a quantity in the smallest unit."""
    amount: object = value
    if isinstance(value, str):
        try:
            if len(value) > _TEXT_OF_NUMBER_MAX:
                raise InvalidQuantity("it is too long")
            amount = parse_quantity(resource_type, value)
        except InvalidQuantity as error:
            raise _FieldError(
                f'{path}: {quote(value)}, expected an amount such as 4000, "4" or "16Gi": {error}'
            ) from None
    elif isinstance(value, float) and value.is_integer():  # many writers of JSON write whole numbers as 1e9
        amount = int(value)
    if isinstance(amount, bool) or not isinstance(amount, int) or not 0 <= amount <= QUANTITY_MAX:
        raise _FieldError(f"{path}: {quote(value)}, expected an amount from 0 to {QUANTITY_MAX}")
    return amount


def _quantities(value: object, path: str) -> dict[str, int]:
    if not isinstance(value, Mapping):
        raise _FieldError(f"{path}: {quote(value)}, expected a mapping of resource types to amounts")
    if len(value) > TYPES_MAX:
        raise _FieldError(f"{path}: {len(value)} types, expected at most {TYPES_MAX}")
    read: dict[str, int] = {}
    for name, amount in value.items():
        if type(amount) is int and type(name) is str and 0 <= amount <= QUANTITY_MAX and name in USUAL_TYPES:
            read[name] = amount
        else:
            _name(name, f"{path}, name of a type")
            read[name] = _amount(amount, f"{path}.{_label(name)}", name)
    cores = read.get(CPU, 0)
    if 0 < cores < _CORES_MIN and not isinstance(amount := value[CPU], str):
        raise _FieldError(
            f"{path}.{CPU}: {quote(amount)}, expected thousandths of a core as an integer from {_CORES_MIN} on "
            f'({cores * 1000}), or a text with the intended amount ("{cores}" cores, "{cores}m")'
        )
    return read


def _texts(value: object, path: str) -> dict[str, str]:
    if not isinstance(value, Mapping):
        raise _FieldError(f"{path}: {quote(value)}, expected a mapping of names to texts")
    if len(value) > TAGS_MAX:
        raise _FieldError(f"{path}: {len(value)} entries, expected at most {TAGS_MAX}")
    read: dict[str, str] = {}
    size = 0
    for name, text in value.items():
        if not isinstance(name, str) or not isinstance(text, str):
            raise _FieldError(f"{path}.{_label(name)}: {quote(text)}, expected a text by name")
        if not (name.isascii() and text.isascii()):
            try:
                size += len(name.encode()) + len(text.encode())
            except UnicodeEncodeError:
                raise _FieldError(
                    f"{path}.{_label(name)}: {quote(text)} has half a character, expected text that UTF-8 can carry"
                ) from None
        else:
            size += len(name) + len(text)
        read[name] = text
    if size > TAGS_BYTES_MAX:
        raise _FieldError(f"{path}: {size} bytes, expected at most {TAGS_BYTES_MAX}")
    return read


def _groups(value: object, path: str) -> tuple[str, ...]:
    if not isinstance(value, list | tuple):
        raise _FieldError(f"{path}: {quote(value)}, expected a list of names")
    if len(value) > GROUPS_MAX:
        raise _FieldError(f"{path}: {len(value)} names, expected at most {GROUPS_MAX}")
    return tuple(_name(group, f"{path}[{number}]") for number, group in enumerate(value))


def _priority(value: object, path: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not -PRIORITY_MAX - 1 <= value <= PRIORITY_MAX:
        raise _FieldError(f"{path}: {quote(value)}, expected an integer from {-PRIORITY_MAX - 1} to {PRIORITY_MAX}")
    return value


def _duration(value: object, path: str) -> int:
    """Converts a text such as 30s to nanoseconds."""
    duration_ns = -1
    if isinstance(value, str) and len(value) <= _TEXT_OF_NUMBER_MAX:
        try:
            duration_ns = parse_duration_ns(value)
        except (ValueError, IndexError):
            duration_ns = -1
    if not 0 <= duration_ns <= DURATION_NS_MAX:
        raise _FieldError(f"{path}: {quote(value)}, expected a duration such as 30s or 1h30m, up to a century")
    return duration_ns


def _seconds(value: object, path: str) -> int:
    """Converts a number of seconds to nanoseconds."""
    seconds_max = DURATION_NS_MAX // 1_000_000_000
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= seconds_max:
        raise _FieldError(f"{path}: {quote(value)}, expected seconds from 0 to {seconds_max}")
    return value * 1_000_000_000 if isinstance(value, int) else min(round(value * 1e9), DURATION_NS_MAX)


# ---- the fields ---------------------------------------------------------------------------------------------------

_AMOUNTS = "amounts by resource type"
_TEXTS = "texts by name"
_FLAG = "true or false"
_NAME = "a name"


def _pool_amount(value: object, path: str) -> int:
    return _amount(value, path, "")


def _durations(name: str, meaning: str) -> tuple[Field, Field]:
    return (
        Field(name, f"{name}_ns", _duration, 'a text such as `"30s"`, `"1h30m"`', meaning),
        Field(f"{name}_s", f"{name}_ns", _seconds, "a number of seconds", f"the same as `{name}`, as a number"),
    )


_ID_MEANINGS: dict[ExternalKind, str] = {
    ExternalKind.POOL: "the resource type",
    ExternalKind.QUEUE: "the queue's full path",
    ExternalKind.NODE: "the node's id; the RM's id if it is the same machine",
    ExternalKind.OFFER: "the offer's id",
    ExternalKind.APPLICATION: "the application's id",
    ExternalKind.ALLOCATION: "the allocation's key",
}

#: By kind, in the order of the table.
FIELDS: dict[ExternalKind, tuple[Field, ...]] = {
    ExternalKind.POOL: (
        Field("quantity", "quantity", _pool_amount, "an amount", "how much exists", required=True),
        Field("occupied", "occupied", _pool_amount, "an amount", "the amount that others use; default 0"),
    ),
    ExternalKind.QUEUE: (
        Field("maximum", "maximum", _quantities, _AMOUNTS, "the quota for the types that it names", required=True),
    ),
    ExternalKind.NODE: (
        Field(
            "capacity", "capacity", _quantities, _AMOUNTS, "the node's capacity; absent: the source does not report it"
        ),
        Field("occupied", "occupied", _quantities, _AMOUNTS, "usage besides the RM's and single allocations"),
        Field("attributes", "attributes", _texts, _TEXTS, "added where the RM sets none"),
        Field("schedulable", "schedulable", _flag, _FLAG, "false: the node takes no new allocations; default true"),
        Field("whole", "whole", _flag, _FLAG, "true: a type that `capacity` does not name counts as 0"),
        Field("brings", "brings", _flag, _FLAG, "false: the source only restricts a node of the RM; default true"),
    ),
    ExternalKind.OFFER: (
        Field("node_id", "node_id", _name, _NAME, "the lending node", required=True),
        Field("quantities", "quantities", _quantities, _AMOUNTS, "the offered amounts", required=True),
        Field("attributes", "attributes", _texts, _TEXTS, "attributes of the node"),
        *_durations("idle", "returned after so long without use; absent: no automatic return"),
        Field("revoked", "revoked", _flag, _FLAG, "true: the framework wants it back"),
        *_durations("grace", "how long running allocations may continue after revocation"),
    ),
    ExternalKind.APPLICATION: (
        Field("queue", "queue", _path, "a path", "the leaf queue in which its allocations count", required=True),
        Field("user", "user", _text, "a text", "the owner"),
        Field("groups", "groups", _groups, "a list of names", "the user's groups"),
        Field("tags", "tags", _texts, _TEXTS, "the source's tags, unchanged"),
    ),
    ExternalKind.ALLOCATION: (
        Field("node_id", "node_id", _name, _NAME, "the node that it runs on", required=True),
        Field("quantities", "quantities", _quantities, _AMOUNTS, "the amounts that it uses", required=True),
        Field(
            "app_id", "app_id", _text, "a text", "an application of the same source; the allocation counts in its queue"
        ),
        Field("priority", "priority", _priority, "an integer", "default 0"),
        Field("tags", "tags", _texts, _TEXTS, "the source's tags, unchanged"),
    ),
}

_BY_NAME = {kind: {field.name: field for field in fields} for kind, fields in FIELDS.items()}
_TYPES: dict[ExternalKind, Callable[..., ExternalObject]] = {
    ExternalKind.POOL: ExternalPool,
    ExternalKind.QUEUE: ExternalQueue,
    ExternalKind.NODE: ExternalNode,
    ExternalKind.OFFER: ExternalOffer,
    ExternalKind.APPLICATION: ExternalApplication,
    ExternalKind.ALLOCATION: ExternalAllocation,
}
# The value of each attribute that a document does not name.
_DEFAULTS: dict[ExternalKind, dict[str, Any]] = {
    kind: {
        field.attribute: getattr(
            make("x", **{each.attribute: None for each in FIELDS[kind] if each.required}), field.attribute
        )
        for field in FIELDS[kind]
    }
    for kind, make in _TYPES.items()
}
