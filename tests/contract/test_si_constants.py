"""The interface's constants: those of both generations with their values, and spelt in one module only."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import muster_si.constants
import pytest
from contract.si_generations.constants import CURRENT_CONSTANTS, PREVIOUS_CONSTANTS

ROOT = Path(__file__).parents[2]
CONSTANTS = {name: value for name, value in vars(muster_si.constants).items() if name.isupper()}
# (An example is an RM of its own: it may know the words from the interface alone.)
SOURCES = [
    path
    for where in ("apps", "libs", "services")
    for path in sorted((ROOT / where).rglob("*.py"))
    if "_pb2" not in path.name
]
# Put together from others; no names of the interface.
PUT_TOGETHER = {"REQUIRED_NODE_TAG", "K8S_CREATION_TIME_TAG", "APP_CREATION_TIME_TAG", "APP_NAMESPACE_TAG"}
# Words that also mean something else, and where they do.
ALLOWED = {
    # the log, the sessions and the history that are kept in memory; headings
    "memory": {
        "libs/bus/src/muster_bus/log_factory.py",
        "libs/bus/src/muster_bus/settings.py",
        "libs/bus/src/muster_bus/backends/memory.py",
        "apps/cli/src/muster_cli/migrate.py",
        "apps/cli/src/muster_cli/top_screen.py",
        "libs/replay/src/muster_replay/report.py",
        "services/gateway/src/muster_gateway/sessions/__init__.py",
        "services/gateway/src/muster_gateway/settings.py",
    },
    # a service's readiness; the name of an attribute (__slots__)
    "ready": {
        "apps/cli/src/muster_cli/health_app.py",
        "apps/cli/src/muster_cli/service_runner.py",
        "apps/cli/src/muster_cli/bootstrap.py",
        "libs/core/src/muster_core/model/application.py",
        "libs/core/src/muster_core/model/node.py",
        "libs/core/src/muster_core/model/queue.py",
    },
    # the name of an attribute (__slots__)
    "foreign": {"libs/core/src/muster_core/model/application.py", "libs/core/src/muster_core/model/node.py"},
}
# The name of a partition, of queues and of policies; no code compares the tag's value with it.
TOO_COMMON = "default"


def python_name(name: str) -> str:
    """``HostName`` → ``HOST_NAME``, ``DomainYuniKorn`` → ``DOMAIN_YUNIKORN``."""
    name = name.replace("YuniKorn", "Yunikorn")
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).upper()


@pytest.mark.parametrize(
    ("name", "value"), sorted({*CURRENT_CONSTANTS.items(), *PREVIOUS_CONSTANTS.items()}), ids=lambda part: str(part)
)
def test_a_constant_of_the_interface_has_its_value(name: str, value: str) -> None:
    assert CONSTANTS[python_name(name)] == value


def test_the_module_has_nothing_that_is_in_neither_generation() -> None:
    known = {python_name(name) for name in (*CURRENT_CONSTANTS, *PREVIOUS_CONSTANTS)}
    assert set(CONSTANTS) == known | PUT_TOGETHER


def test_generations_never_give_one_name_two_values() -> None:
    for name in CURRENT_CONSTANTS.keys() & PREVIOUS_CONSTANTS.keys():
        assert CURRENT_CONSTANTS[name] == PREVIOUS_CONSTANTS[name]


def texts(source: str) -> Iterator[tuple[int, str]]:
    """The line and the value of each string of a module that is no docstring."""
    tree = ast.parse(source)
    docstrings = {
        id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
            yield node.lineno, node.value


def spelt(source: str) -> list[tuple[int, str]]:
    """Constants of the interface that a module spells: the line, and the value.

    What has a "/" or a "." is recognised inside of a longer text too; words only when they are the whole of it.
    """
    values = sorted(set(CONSTANTS.values()), key=len, reverse=True)
    found = []
    for line, text in texts(source):
        inside = (value for value in values if value == text or (re.search(r"[/.]", value) and value in text))
        if hit := next(inside, None):
            found.append((line, hit))
    return found


def test_nothing_else_spells_a_constant() -> None:
    assert SOURCES
    wrong = []
    for path in SOURCES:
        name = str(path.relative_to(ROOT))
        for line, value in spelt(path.read_text()):
            if value != TOO_COMMON and name not in ALLOWED.get(value, ()):
                wrong.append(f"{name}:{line}: {value!r}: use muster_si.constants")
    assert not wrong


def test_each_exception_of_a_constant_is_used() -> None:
    for value, files in ALLOWED.items():
        for name in files:
            assert value in {hit for _, hit in spelt((ROOT / name).read_text())}, (name, value)


@pytest.mark.parametrize(
    "line",
    [
        'key = "si/arch"',
        'key = f"kubernetes.io/{name}"',
        'x = {"vcore": 1}',
        'tags.get("yunikorn.apache.org/requiredNode")',
    ],
)
def test_the_check_sees_a_constant_that_is_spelt(line: str) -> None:
    assert spelt(line)


def test_the_check_lets_docstrings_and_longer_words_through() -> None:
    assert not spelt('"""si/arch is a key."""\nname = "memory_bytes"\n')
