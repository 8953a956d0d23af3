"""Finds the groups of users that come without groups.

The core knows users and groups as names only. If an application has no groups, this module adds those that its
partition's resolver (``usergroupresolver.type``) finds, before the core gets the application:

* nothing: one group, with the user's name;
* ``os``: the user's groups on this machine, the primary one first;
* ``ldap``: a group with the user's name, then those that the directory's entries of the user name;
* ``test``: three users that YuniKorn's tests know.

Answers and refusals are remembered, so that one user's many applications cost one look-up. A look-up blocks the caller
for at most ``lookup_timeout_s``, even if the network hangs. A source that did not answer gets no question for a while.
So a directory that hangs costs one wait, not one for each user.
"""

from __future__ import annotations

import grp
import math
import os
import pwd
import queue
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import structlog
from muster_core.config.acl import USER_NAME
from muster_core.config.queue_config import partition_name
from muster_core.model.commands import AppItem, UpdateApplications
from muster_core.queues.placement_rules import NAME_CHARACTERS_MAX
from muster_core.scheduler import SchedulerCore
from muster_runtime.optional_packages import ExtraMissing, require

from muster_scheduler.errors import BadLdapConfig, GroupSourceUnavailable, SchedulerServiceError, UnknownUser
from muster_scheduler.settings import UserSettings

log = structlog.get_logger(__name__)

SECOND_NS = 1_000_000_000
KNOWN_NS = 300 * SECOND_NS  # validity of an answer, as in YuniKorn
UNKNOWN_NS = 30 * SECOND_NS  # validity of a refusal, and the pause of a source that did not answer
SWEEP_NS = 60 * SECOND_NS
REMEMBERED_MAX = 100_000  # users; above this the oldest are forgotten early
LOOKUPS_MAX = 4  # at the same time; each that hangs keeps a thread until the system gives up on it
SECRET_BYTES_MAX = 64 * 1024  # of one file: a wrong mount must not fill the memory

_TRUE, _FALSE = frozenset({"1", "t", "true"}), frozenset({"0", "f", "false"})
_SHOWN_MAX = 100  # characters of a name in a reason


# Returns a user's groups, the primary one first. Raises UnknownUser, SourceUnavailable, BadLdapConfig.
Source = Callable[[str], Sequence[str]]


@dataclass(frozen=True, slots=True)
class _CachedGroups:
    """``groups`` None: refused, with the reason."""

    groups: tuple[str, ...] | None
    reason: str
    until_ns: int


class UserGroups:
    """Finds the groups of users, and remembers them.

    Not thread-safe: one per machine, or one that a single thread uses.

    :param sources: replace the sources above, by resolver type (for tests).
    """

    def __init__(self, settings: UserSettings | None = None, sources: Mapping[str, Source] | None = None) -> None:
        self._settings = settings or UserSettings()
        self._ldap = LdapSource(self._settings.ldap_directory, self._settings.lookup_timeout_s)
        self._sources: Mapping[str, Source] = sources or {
            "os": os_groups,
            "ldap": self._ldap,
            "test": groups_of_test_users,
        }
        self._answers: dict[tuple[str, str], _CachedGroups] = {}
        self._silent_until_ns: dict[str, int] = {}
        self._sweep_ns = 0
        self._slots = threading.BoundedSemaphore(LOOKUPS_MAX)

    def problem(self, resolver_type: str) -> str:
        """Returns why a configuration with this resolver cannot work here, or "". Called when an RM registers."""
        if resolver_type != "ldap":
            return ""
        try:
            self._ldap.config()
            require("ldap3", "resolver ldap")
        except (BadLdapConfig, ExtraMissing) as error:
            return str(error)
        return ""

    def resolve(self, user: str, groups: Sequence[str], resolver_type: str, now_ns: int) -> tuple[str, ...]:
        """Returns the user's groups: the given ones, else those that the resolver finds. Raises UnknownUser."""
        if not user:
            raise UnknownUser("empty user cannot resolve: ugi.user must name the owner")
        if groups:
            if not USER_NAME.match(user):
                raise UnknownUser(_invalid(user))
            return tuple(groups)
        source = self._sources.get(resolver_type)
        if source is None:
            return (user,)
        self._sweep(now_ns)
        answer = self._answers.get((resolver_type, user))
        if answer is None or answer.until_ns <= now_ns:
            answer = self._ask(source, resolver_type, user, now_ns)
        if answer.groups is None:
            raise UnknownUser(answer.reason)
        return answer.groups

    def _ask(self, source: Source, resolver_type: str, user: str, now_ns: int) -> _CachedGroups:
        silent = f"user {user[:_SHOWN_MAX]!r}: the resolver {resolver_type} did not answer, try again later"
        if len(user) > NAME_CHARACTERS_MAX or not user.isprintable():
            # A name that the system's library cannot handle must not count as a source that did not answer.
            return _CachedGroups(None, _invalid(user), now_ns)
        if self._silent_until_ns.get(resolver_type, 0) > now_ns:
            return _CachedGroups(None, silent, now_ns)
        try:
            answer = _CachedGroups(self._within_time(source, user), "", now_ns + KNOWN_NS)
        except UnknownUser as error:
            answer = _CachedGroups(None, error.reason, now_ns + UNKNOWN_NS)
        except (GroupSourceUnavailable, BadLdapConfig) as error:
            log.warning("users' groups cannot be looked up", resolver=resolver_type, why=str(error))
            self._silent_until_ns[resolver_type] = now_ns + UNKNOWN_NS
            return _CachedGroups(None, silent, now_ns)
        self._answers[resolver_type, user] = answer
        return answer

    def _within_time(self, source: Source, user: str) -> tuple[str, ...]:
        """Asks in a separate thread, because the system's library and name servers keep no time limit."""
        if not self._slots.acquire(blocking=False):
            raise GroupSourceUnavailable(f"{LOOKUPS_MAX} look-ups hang already")
        answers: queue.SimpleQueue[tuple[str, ...] | BaseException] = queue.SimpleQueue()

        def ask() -> None:
            try:
                answers.put(tuple(source(user)))
            except BaseException as error:
                answers.put(error)
            finally:
                self._slots.release()

        threading.Thread(target=ask, name="user-groups", daemon=True).start()
        try:
            answer = answers.get(timeout=self._settings.lookup_timeout_s)
        except queue.Empty:
            raise GroupSourceUnavailable(f"no answer within {self._settings.lookup_timeout_s} s") from None
        if isinstance(answer, SchedulerServiceError):
            raise answer
        if isinstance(answer, BaseException):
            raise GroupSourceUnavailable(f"{type(answer).__name__}") from answer
        return answer

    def _sweep(self, now_ns: int) -> None:
        """Forgets expired answers."""
        if now_ns < self._sweep_ns and len(self._answers) < REMEMBERED_MAX:
            return
        self._sweep_ns = now_ns + SWEEP_NS
        self._answers = {key: answer for key, answer in self._answers.items() if answer.until_ns > now_ns}
        spare = len(self._answers) - REMEMBERED_MAX * 9 // 10
        if spare > 0:
            for key in list(self._answers)[:spare]:
                del self._answers[key]


def _invalid(user: str) -> str:
    return f"invalid username {user[:_SHOWN_MAX]!r}, it contains invalid characters"


# ---- this machine ----------------------------------------------------------------------------------------------------


def os_groups(user: str) -> tuple[str, ...]:
    """Returns the groups of a user of this machine, by name if they have one. Raises UnknownUser."""
    try:
        primary = pwd.getpwnam(user).pw_gid
    except (KeyError, ValueError):
        raise UnknownUser(f"user {user[:_SHOWN_MAX]!r} is not known to the operating system") from None
    numbers = dict.fromkeys([primary, *os.getgrouplist(user, primary)])
    return tuple(_group_name(number) for number in numbers)


def _group_name(number: int) -> str:
    try:
        return grp.getgrgid(number).gr_name
    except KeyError:
        return str(number)


# YuniKorn's: user 2's primary group has no name.
_TEST_USERS = {
    "testuser1": ("group1000", "group1001"),
    "testuser2": ("100", "group1001", "group1002"),
    "testuser3": ("group1001", "group1002", "group1003", "group1004"),
}


def groups_of_test_users(user: str) -> tuple[str, ...]:
    """Returns the groups of one of the three test users. Raises UnknownUser."""
    groups = _TEST_USERS.get(user)
    if groups is None:
        raise UnknownUser(f"lookup failed for user: {user[:_SHOWN_MAX]}")
    return groups


# ---- LDAP ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LdapConfig:
    """The address and parameters of a directory; the secrets directory has one file for each.

    :param filter: of a search, with %s for the user's name.
    :param group_attribute: read beside memberOf, if the directory returns it.
    :param insecure: accepts any certificate.
    """

    host: str
    port: int
    base_dn: str
    filter: str
    group_attribute: str
    return_attributes: tuple[str, ...]
    bind_user: str
    bind_password: str = field(repr=False)
    insecure: bool = False
    ssl: bool = False


def read_ldap_config(directory: Path) -> LdapConfig:
    """Reads the secrets directory. Raises BadLdapConfig with all problems."""
    if not directory.is_dir():
        raise BadLdapConfig(f"resolver ldap: {directory} is not there: expected a directory with {', '.join(_NEEDED)}")
    problems: list[str] = []
    texts = {name: _secret(directory / name, problems) for name in (*_NEEDED, *_DEFAULTS)}
    problems += [f"{name} is missing" for name in _NEEDED if not texts[name]]
    texts = {name: text or _DEFAULTS.get(name, "") for name, text in texts.items()}
    insecure, ssl = (_flag(name, texts[name], problems) for name in ("Insecure", "SSL"))
    port = texts["Port"] or ("636" if ssl else "389")
    if not re.fullmatch("[0-9]{1,5}", port) or not 0 < int(port) < 1 << 16:
        problems.append("Port: expected a number from 1 to 65535")
    if texts["Filter"] and "%s" not in texts["Filter"]:
        problems.append("Filter: expected %s where the user's name goes")
    if problems:
        raise BadLdapConfig(f"resolver ldap: {directory}: {'; '.join(problems)}")
    return LdapConfig(
        texts["Host"],
        int(port),
        texts["BaseDN"],
        texts["Filter"],
        texts["GroupAttr"],
        tuple(name.strip() for name in texts["ReturnAttr"].split(",") if name.strip()),
        texts["BindUser"],
        texts["BindPassword"],
        insecure,
        ssl,
    )


_NEEDED = ("Host", "BaseDN", "Filter", "BindUser", "BindPassword")
_DEFAULTS = {"Port": "", "GroupAttr": "memberOf", "ReturnAttr": "memberOf", "Insecure": "false", "SSL": "false"}


def _secret(path: Path, problems: list[str]) -> str:
    try:
        with path.open("rb") as file:
            value = file.read(SECRET_BYTES_MAX + 1)
        if len(value) > SECRET_BYTES_MAX:
            raise ValueError
        return value.decode().strip()
    except FileNotFoundError:
        return ""
    except (OSError, ValueError):
        problems.append(f"{path.name} cannot be read: expected a short UTF-8 text")
        return ""


def _flag(name: str, text: str, problems: list[str]) -> bool:
    if text.lower() not in _TRUE | _FALSE:
        problems.append(f"{name}: expected true or false")
    return text.lower() in _TRUE


class LdapSource:
    """Asks a directory. Reads the secrets for each look-up, so that they may change.

    :param connect: returns a bound connection of ldap3 (for tests).
    """

    def __init__(
        self, directory: Path, timeout_s: float, connect: Callable[[LdapConfig, float], Any] | None = None
    ) -> None:
        self._directory = directory
        self._timeout_s = timeout_s
        self._connect = connect or _connect

    def config(self) -> LdapConfig:
        """Returns the configuration in the secrets directory. Raises BadLdapConfig."""
        return read_ldap_config(self._directory)

    def __call__(self, user: str) -> tuple[str, ...]:
        """Returns a group with the user's name, then the directory's groups. An unknown user has the first one only."""
        from ldap3 import SUBTREE
        from ldap3.core.exceptions import LDAPException
        from ldap3.utils.conv import escape_filter_chars

        config = self.config()
        group_attributes = {"memberof", config.group_attribute.lower()}
        try:
            connection = self._connect(config, self._timeout_s)
            try:
                connection.search(
                    config.base_dn,
                    config.filter.replace("%s", escape_filter_chars(user)),
                    SUBTREE,
                    attributes=list(config.return_attributes),
                )
                names = [
                    value
                    for entry in connection.response
                    for name, values in entry.get("attributes", {}).items()
                    if name.lower() in group_attributes
                    for value in (values if isinstance(values, list) else [values])
                    if isinstance(value, str)
                ]
            finally:
                connection.unbind()
        except LDAPException as error:
            raise GroupSourceUnavailable(f"LDAP: {type(error).__name__}") from error
        group_names = (_first_value(name) for name in names)
        return tuple(dict.fromkeys([user, *(name for name in group_names if name)]))


def _connect(config: LdapConfig, timeout_s: float) -> Any:
    import ssl

    from ldap3 import NONE, Connection, Server, Tls

    tls = Tls(validate=ssl.CERT_NONE if config.insecure else ssl.CERT_REQUIRED)
    server = Server(config.host, config.port, use_ssl=config.ssl, tls=tls, connect_timeout=timeout_s, get_info=NONE)
    return Connection(
        server,
        config.bind_user,
        config.bind_password,
        auto_bind=True,
        read_only=True,
        receive_timeout=max(1, math.ceil(timeout_s)),  # whole seconds: ldap3 packs it as a C long
        raise_exceptions=True,
    )


# The first part of a distinguished name: its attribute's name, and the value up to the first unescaped comma or plus.
_FIRST_PART = re.compile(r"\s*[^=,]+=\s*((?:\\.|[^,+\\])*)", re.DOTALL)


def _first_value(name: str) -> str:
    """``CN=team-a,OU=groups,DC=x`` → ``team-a``; "" for a text that is no distinguished name."""
    match = _FIRST_PART.match(name)
    if match is None:
        return ""
    raw = re.sub(r"(?:\\[0-9A-Fa-f]{2})+", lambda escaped: _bytes(escaped[0]), match[1])
    return re.sub(r"\\(.)", r"\1", raw, flags=re.DOTALL).strip()


def _bytes(escaped: str) -> str:
    return bytes.fromhex(escaped.replace("\\", "")).decode(errors="replace")


def with_groups(
    groups: UserGroups, core: SchedulerCore, command: UpdateApplications, now_ns: int
) -> UpdateApplications:
    """Adds the groups that the partition's resolver finds for users that come without groups."""
    resolvers = {name: partition.config.user_group_resolver for name, partition in core.partitions.items()}
    if not any(resolvers.values()):
        return command  # the core gives each user a group of its own
    items: list[AppItem] = []
    for item in command.new:
        resolver = resolvers.get(partition_name(item.partition), "")
        if item.user and not item.groups and resolver:
            try:
                resolved = groups.resolve(item.user, (), resolver, now_ns)
                items.append(replace(item, groups=resolved))
            except UnknownUser as error:
                items.append(replace(item, refused=error.reason))
        else:
            items.append(item)
    return UpdateApplications(tuple(items), command.remove)
