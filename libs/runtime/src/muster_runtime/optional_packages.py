"""Extras: the packages that only some installations need (pyproject.toml, ``project.optional-dependencies``).

Modules that import them are imported where they are used. Without the package, the error names the extra.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec

# Import package → extra. A test holds it to pyproject.toml.
EXTRAS = {
    "aiokafka": "kafka",
    "asyncpg": "postgres",
    "faust": "faust",
    "ldap3": "ldap",
    "matplotlib": "plot",
    "mode": "faust",
    "redis": "redis",
}


class ExtraMissing(ImportError):
    """A package of an extra is not installed. The text says what needs it, and how it is installed."""


def require(package: str, needed_by: str) -> None:
    """Raises ExtraMissing if the package of an extra is not installed.

    :param package: one of EXTRAS.
    :param needed_by: for the message, such as "log.backend = kafka".
    """
    if not _is_there(package):
        raise ExtraMissing(f"{needed_by} needs {_how(package)}", name=package)


def _is_there(package: str) -> bool:
    # (A loaded package that takes its own place, as faust does, has no spec that find_spec accepts.)
    return sys.modules.get(package) is not None or find_spec(package) is not None


def with_install_hint(error: ImportError) -> str:
    """Returns the error's text, and for a package of an extra how it is installed."""
    package = (error.name or "").partition(".")[0]
    if isinstance(error, ExtraMissing) or package not in EXTRAS or _is_there(package):
        return str(error)
    return f"this needs {_how(package)}"


def is_extra(error: ImportError) -> bool:
    """Tells whether the error is the lack of an extra's package."""
    return isinstance(error, ExtraMissing) or with_install_hint(error) != str(error)


def _how(package: str) -> str:
    return f"the package {package}, which is not installed: pip install 'muster[{EXTRAS[package]}]'"
