"""Options of the shipped informers: the errors of bad ones, and their documentation."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from contract.informer_rigs import context
from muster_core.external.errors import InformerSettingsWrong
from muster_informers.registry import get_informer
from muster_informers.sources.empty import EmptyOptions
from muster_informers.sources.file import FileSourceOptions
from muster_informers.sources.http import HttpOptions
from muster_informers.sources.kafka import KafkaOptions
from muster_informers.sources.redis import RedisOptions
from pydantic import BaseModel

URL = {"url": "http://h/hosts"}
KAFKA = {"bootstrap_servers": "h:9092", "topic": "hosts"}
REDIS = {"url": "redis://h/0", "key": "hosts", "stream": "changes"}
SECRET = "hunter2"
MODELS: Mapping[str, type[BaseModel]] = {
    "empty": EmptyOptions,
    "file": FileSourceOptions,
    "http": HttpOptions,
    "kafka": KafkaOptions,
    "redis": RedisOptions,
}


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("empty", {}),
        ("file", {"path": "hosts.yaml", "poll_s": "2"}),
        ("file", {"directory": "hosts.d", "pattern": "*.conf", "format": "yaml"}),
        ("http", {**URL, "username": "u", "password": SECRET, "give_back_url": "https://h/offers"}),
        ("http", {"url": "https://[::1]:8443/hosts?all=1", "verify": False}),
        ("kafka", {**KAFKA, "security_protocol": "SASL_SSL", "sasl_username": "u", "sasl_password": SECRET}),
        ("redis", {**REDIS, "url": "rediss://u:p@h:6380/1", "give_back_stream": "back"}),
    ],
)
async def test_valid_options_make_a_source_without_connecting(
    kind: str, options: Mapping[str, object], tmp_path: Path
) -> None:
    source = get_informer(kind, options, context(tmp_path))
    lends = any(name.startswith("give_back_") for name in options)
    assert callable(getattr(source, "give_back", None)) == lends
    await source.close()


@pytest.mark.parametrize(
    ("kind", "options", "said"),
    [
        ("empty", {"path": "x"}, "path: there is no such option; expected one of: "),
        ("file", {}, ": expected either path or directory"),
        ("file", {"path": "a", "directory": "b"}, ": expected either path or directory"),
        ("file", {"path": "a", "pattern": "*"}, ": pattern is for a directory"),
        ("file", {"path": "a", "poll_s": "soon"}, "poll_s: 'soon': expected a valid number"),
        ("file", {"path": "a", "poll_s": float("nan")}, "poll_s: nan: expected"),
        ("file", {"path": "a", "max_bytes": 0}, "max_bytes: 0: expected greater than or equal to 1"),
        ("file", {"path": "a", "format": "xml"}, "format: 'xml': expected 'auto', 'json', 'ndjson' or 'yaml'"),
        ("file", {"path": 5}, "path: 5: expected a valid string"),
        ("http", {}, "url: is missing; expected: http:// or https:// address"),
        ("http", {"url": "ftp://h/x"}, "url: 'ftp://h/x': expected an http:// or https:// URL with a host"),
        (
            "http",
            {"url": f"http://u:{SECRET}@h/?token={SECRET}"},
            "url: 'http://h/': expected no credentials in the URL",
        ),
        ("http", {**URL, "token": f"{SECRET}\n"}, "token: expected a token of visible ASCII characters"),
        ("http", {**URL, "token": SECRET, "token_file": "t"}, ": expected only one of token, token_file and username"),
        ("http", {**URL, "password": SECRET}, ": password without username"),
        ("http", {**URL, "pasword": SECRET}, "pasword: there is no such option; expected one of: ca_file, "),
        ("http", {**URL, "ca_file": "none.pem"}, "ca_file: 'none.pem': FileNotFoundError"),
        ("http", {**URL, "client_cert_file": "none.pem"}, "client_cert_file: 'none.pem': FileNotFoundError"),
        ("kafka", {"topic": "t"}, "bootstrap_servers: is missing; expected: host:port"),
        (
            "kafka",
            {**KAFKA, "security_protocol": "SASL_SSL", "sasl_password": SECRET},
            ": security_protocol 'SASL_SSL'",
        ),
        ("kafka", {**KAFKA, "sasl_password": [SECRET]}, "sasl_password: expected a valid string"),
        ("kafka", {**KAFKA, "give_back_topic": "hosts"}, ": give_back_topic 'hosts': expected another topic"),
        ("kafka", {**KAFKA, "security_protocol": "SSL", "ca_file": "none.pem"}, "ca_file /"),
        ("kafka", {**KAFKA, "ca_file": "none.pem"}, ": ca_file or client_cert_file with security_protocol 'PLAINTEXT'"),
        ("kafka", {**KAFKA, "sasl_password": SECRET}, ": sasl_username or its password with security_protocol"),
        (
            "kafka",
            {**KAFKA, "security_protocol": "SSL", "client_key_file": "none.pem"},
            ": client_key_file without client_cert_file",
        ),
        (
            "kafka",
            {
                **KAFKA,
                "security_protocol": "SASL_SSL",
                "sasl_username": "u",
                "sasl_password": SECRET,
                "sasl_password_file": "f",
            },
            ": sasl_password and sasl_password_file: expected one of them",
        ),
        ("redis", {**REDIS, "username": "u"}, ": username without password and password_file"),
        (
            "redis",
            {**REDIS, "url": f"redis://u:{SECRET}@h/0", "password_file": "f"},
            ": url has a user or password, and username, password or password_file is set",
        ),
        ("redis", {**REDIS, "ca_file": "none.pem"}, ": ca_file or client_cert_file without TLS; expected rediss://"),
        ("redis", {**REDIS, "url": "rediss://h/0", "ca_file": "none.pem"}, "ca_file /"),
        ("redis", {**REDIS, "username": "u", "password_file": "none"}, "password_file /"),
        ("redis", {**REDIS, "url": f"http://u:{SECRET}@h"}, "url: expected redis://"),
        ("redis", {**REDIS, "url": f"redis://u:{SECRET}@h:port/0"}, "url: expected redis://"),
        ("redis", {**REDIS, "stream": "hosts"}, ": key, stream and give_back_stream: expected different names"),
        ("redis", {**REDIS, "key": ""}, "key: '': String should have at least 1 character"),
    ],
)
def test_invalid_options_are_named_with_the_expectation(
    kind: str, options: Mapping[str, object], said: str, tmp_path: Path
) -> None:
    with pytest.raises(InformerSettingsWrong) as caught:
        get_informer(kind, options, context(tmp_path))
    [problem] = caught.value.problems
    separator = "" if said.startswith(":") else "."
    assert problem.startswith(f"scheduler.external.informers.hosts{separator}{said}")
    assert SECRET not in problem


@pytest.mark.parametrize("kind", MODELS)
def test_the_documentation_has_a_row_for_each_option(kind: str) -> None:
    text = (Path(__file__).parents[3] / "docs/external-informers.md").read_text()
    section = text.partition(f"\n## `{kind}`")[2].partition("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("| `")]
    assert [row for row in rows if row in options_of(kind)] == options_of(kind)


def options_of(kind: str) -> list[str]:
    rows = []
    for name, field in MODELS[kind].model_fields.items():
        default = "(needed)" if field.is_required() else shown(field.default)
        rows.append(f"| `{name}` | {default} | {field.description} |")
    return rows


def shown(default: Any) -> str:
    match default:
        case None | "":
            return ""
        case bool():
            return f"`{str(default).lower()}`"
        case float():
            return f"`{default:g}`"
        case _:
            return f"`{default}`"


if __name__ == "__main__":
    for each in MODELS:
        print(f"\n## `{each}`\n\n| option | default | meaning |\n|---|---|---|", *options_of(each), sep="\n")
