"""The verdict on the text of a queue configuration, without limits of time and memory: whoever calls sets those."""

from __future__ import annotations

from muster_queue_config import config_codec
from muster_queue_config.parser_messages import ParseReply, ParseRequest
from muster_queue_config.queue_yaml import load_queue_config


def verdict_on(text: ParseRequest) -> ParseReply:
    """Reads a text. May raise MemoryError."""
    config, problems = load_queue_config(text.text, bytes_max=text.bytes_max, queues_max=text.queues_max)
    if config is None:
        return ParseReply(accepted=False, compiled=b"", problems=problems)
    return ParseReply(accepted=True, compiled=config_codec.encode(text.text, config), problems=problems)
