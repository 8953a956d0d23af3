"""A real directory for tests, OpenLDAP's."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ldap3
from ldap3.core.exceptions import LDAPException
from muster_replay.local_process import free_ports
from unpacked import cache_of, program, serving

# (``ismemberof`` and ``mail`` may have any text here. ``memberOf`` is slapd's own, set by groups.)
_CONFIG = """
include {root}/etc/ldap/schema/core.schema
attributetype ( 1.3.6.1.4.1.99999.1 NAME 'isMemberOf' EQUALITY caseIgnoreMatch SYNTAX 1.3.6.1.4.1.1466.115.121.1.15 )
objectclass ( 1.3.6.1.4.1.99999.2 NAME 'member' SUP top AUXILIARY MAY ( uid $ isMemberOf ) )
modulepath {root}/usr/lib/ldap
moduleload back_mdb
moduleload memberof
{tls}
access to attrs=userPassword by anonymous auth
access to * by users read
database mdb
suffix "{base}"
rootdn "{user}"
rootpw "{password}"
directory {data}
overlay memberof
"""


@dataclass(frozen=True, slots=True)
class Directory:
    """A directory that answers.

    :ivar port: of plain LDAP, and of TLS if there are certificates.
    """

    base_dn: str
    user: str
    password: str
    port: int
    tls_port: int


@contextmanager
def directory_of(
    groups: Mapping[str, list[str]], work: Path, certificate: Path | None = None, key: Path | None = None
) -> Iterator[Directory]:
    """A directory with people in groups. Raises NoServer.

    :param groups: names of people by name of their group.
    """
    start, cache = program("slapd", "usr/sbin/slapd"), cache_of("slapd")
    root = cache if start.is_relative_to(cache) else Path("/")
    base, user, password = "dc=example,dc=com", "cn=reader,dc=example,dc=com", "correct horse"
    (work / "data").mkdir(parents=True)
    tls = f"TLSCertificateFile {certificate}\nTLSCertificateKeyFile {key}" if certificate else ""
    config = _CONFIG.format(root=root, tls=tls, base=base, user=user, password=password, data=work / "data")
    (work / "slapd.conf").write_text(config)
    port, tls_port = free_ports(2)
    listen = f"ldap://127.0.0.1:{port}/" + (f" ldaps://127.0.0.1:{tls_port}/" if certificate else "")
    libraries = os.pathsep.join(str(each) for each in root.glob("usr/lib/*-linux-gnu"))
    command = [str(start), "-d", "0", "-f", str(work / "slapd.conf"), "-h", listen]
    server = ldap3.Server("127.0.0.1", port)

    def ask() -> ldap3.Connection:
        return ldap3.Connection(server, user, password, auto_bind=True, raise_exceptions=True)

    with serving(command, work / "slapd.log", ask, (LDAPException,), {"LD_LIBRARY_PATH": libraries}) as connection:
        _fill(connection, base, groups)
        yield Directory(base, user, password, port, tls_port)


def _fill(connection: Any, base: str, groups: Mapping[str, list[str]]) -> None:
    with connection:
        connection.add(base, ["dcObject", "organization"], {"dc": "example", "o": "example"})
        for name in sorted({each for people in groups.values() for each in people}):
            more = {"uid": name, "isMemberOf": f"cn=of {name},{base}"}
            connection.add(f"cn={name},{base}", ["person", "member"], {"sn": name, **more})
        for group, people in groups.items():
            connection.add(f"cn={group},{base}", "groupOfNames", {"member": [f"cn={each},{base}" for each in people]})
