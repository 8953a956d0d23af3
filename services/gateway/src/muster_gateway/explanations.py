"""Explanations from the view (docs/explain.md), as JSON and as sentences."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import quote as percent_quote

from muster_gateway.admin_codec import ExplainTarget
from muster_gateway.ended import NoneEnded, explain_ended
from muster_gateway.errors import InvalidRequest, NotFound, ViewUnavailable, quote
from muster_gateway.view_client import ViewAnswer, ViewClient, path_of

_OK, _BAD_REQUEST, _NOT_FOUND = 200, 400, 404
# The JSON has all sentences; the list for people has this many.
SENTENCES_MAX = 100
# Larger answers are parsed in a thread: a megabyte takes some ten milliseconds.
_LARGE_BYTES = 256 * 1024
_NO_RM, _NO_PARTITION = "Resource manager not found", "Partition not found"
# An explanation's lists, and the key of their elements.
_LISTS = {"asks": "allocationKey", "preempted": "allocationKey", "replacements": "allocationKey"}


async def explain(view: ViewClient, history: ViewClient, target: ExplainTarget) -> tuple[bytes, list[str]]:
    """Returns the explanation as JSON, and as sentences. Raises InvalidRequest, NotFound, ViewUnavailable, OverLimit.

    :param history: asks the event publisher about what the view does not have, because it has ended.
    """
    # The view unescapes a queue's path twice, as YuniKorn does in its own paths.
    parts = (
        tuple(percent_quote(part, safe="") for part in target.path_segments)
        if target.kind == "queue"
        else target.path_segments
    )
    path = path_of("explain", target.kind, *parts)
    answer = await view.get(path, target.rm_id, {"partition": target.partition})
    if answer.status == _OK:
        large = len(answer.body) > _LARGE_BYTES
        return answer.body, await asyncio.to_thread(_sentences, answer) if large else _sentences(answer)
    message = _message(answer.body)
    if answer.status == _NOT_FOUND and not message.startswith(_NO_RM):
        more = ""
        if not message.startswith(_NO_PARTITION):  # (events name no partition, so the history cannot tell)
            try:
                return await explain_ended(history, target)
            except NoneEnded as error:
                more = f"; {error}" if str(error) else ""
        named = " ".join(quote(part) for part in target.path_segments)
        raise NotFound(f"{target.field} {named} in partition {quote(target.partition)}: {message}{more}")
    if answer.status == _BAD_REQUEST:
        raise InvalidRequest(f"{target.field}: {message}")
    raise ViewUnavailable(f"the view does not know it yet ({message or answer.status}): try again")


def _message(body: bytes) -> str:
    try:
        return str(json.loads(body)["message"])
    except (ValueError, KeyError, TypeError):
        return ""


def _sentences(answer: ViewAnswer) -> list[str]:
    explanation = answer.json()
    sentences: list[str] = []
    for sentence in _explanation_sentences(explanation):
        if len(sentences) == SENTENCES_MAX:
            sentences.append("… and more, see the JSON.")
            break
        sentences.append(sentence)
    return sentences


def _explanation_sentences(explanation: Mapping[str, Any]) -> Iterator[str]:
    yield explanation["message"]
    for name, key in _LISTS.items():
        listed = explanation.get(name)
        for member in listed if isinstance(listed, list) else ():  # in a queue's explanation, counts are in this place
            yield f"{member[key]}: {member['message']}"
    refusals = explanation.get("refusals")
    for refusal in refusals if isinstance(refusals, list) else ():  # in a node's explanation, a number is in this place
        reason = f": {refusal['reason']}" if refusal.get("reason") else ""
        yield f"The resource manager refused node {refusal['node']}{reason}."
