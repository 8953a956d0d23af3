"""Accepted connections as the kernel shows them: counters, and the end of one whose descriptor is somebody else's."""

from __future__ import annotations

import contextlib
import os
import resource
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from muster_runtime.tcp_sockets import AcceptedSockets, Counters, TcpSocket, has_counters

pytestmark = pytest.mark.skipif(not has_counters(), reason="this system has no counters of sockets")


class Server:
    def __init__(self, family: int = socket.AF_INET, address: str = "127.0.0.1") -> None:
        self.listener = socket.create_server((address, 0), family=family)
        self.port = self.listener.getsockname()[1]
        self.sockets = AcceptedSockets([self.port])

    def accept(self, host: str = "127.0.0.1") -> tuple[socket.socket, socket.socket, TcpSocket]:
        """A client's end, the server's end, and what is listed of it."""
        client = socket.create_connection((host, self.port), timeout=60)
        accepted, _ = self.listener.accept()
        (listed,) = (each for each in self.sockets.connections() if each.port == client.getsockname()[1])
        return client, accepted, listed


@pytest.fixture
def server() -> Iterator[Server]:
    one = Server()
    yield one
    one.sockets.close()
    one.listener.close()


def test_connections_are_listed_with_their_counters(server: Server) -> None:
    assert server.sockets.connections() == {}, "the listener is none"
    first, first_end, listed = server.accept()
    second, second_end, _ = server.accept()
    with first, first_end, second, second_end:
        first.sendall(b"x" * 700)
        assert len(first_end.recv(700, socket.MSG_WAITALL)) == 700
        second_end.sendall(b"y" * 30)
        assert second.recv(100)
        connections = server.sockets.connections()
        assert len(connections) == 2
        assert connections[listed] == Counters(700, 0)
        assert (listed.host, listed.port) == first.getsockname()
        assert listed.descriptor == first_end.fileno()
    assert server.sockets.connections() == {}


def test_a_connection_that_is_not_accepted_yet_waits(server: Server) -> None:
    server.sockets.connections()
    assert not server.sockets.has_waiting()
    with socket.create_connection(("127.0.0.1", server.port), timeout=60):
        assert server.sockets.has_waiting()
        assert server.sockets.connections() == {}
        accepted, _ = server.listener.accept()
        with accepted:
            assert not server.sockets.has_waiting()
            assert len(server.sockets.connections()) == 1


def test_a_connection_is_reset_with_what_waits_to_be_read(server: Server) -> None:
    client, accepted, listed = server.accept()
    with client, accepted:
        client.sendall(b"x" * 1000)
        assert server.sockets.end(listed)
        with pytest.raises(ConnectionResetError):
            client.recv(100)
        with contextlib.suppress(OSError):  # (which one depends on the kernel)
            assert accepted.recv(100) == b"", "its owner reads no more"


def test_a_paused_connection_is_read_again_after_its_pause(server: Server) -> None:
    client, accepted, listed = server.accept()
    with client, accepted:
        server.sockets.pause(listed)
        client.sendall(b"x" * 1000)
        accepted.setblocking(False)
        with pytest.raises(BlockingIOError):
            accepted.recv(100)
        assert server.sockets.connections()[listed].received == 0
        server.sockets.resume(listed)
        accepted.settimeout(60)
        assert len(accepted.recv(1000, socket.MSG_WAITALL)) == 1000, "the kernel sent it again"


def test_a_descriptor_that_belongs_to_another_connection_by_now_is_left_alone(server: Server) -> None:
    client, accepted, listed = server.accept()
    other, other_end, other_listed = server.accept()
    with client, other, other_end:
        os.dup2(other_end.fileno(), listed.descriptor)
        assert not server.sockets.end(listed)
        assert server.sockets.end(other_listed)
        accepted.close()
    assert not server.sockets.end(listed), "nothing is there"


def test_it_works_without_a_free_descriptor(server: Server) -> None:
    client, accepted, listed = server.accept()
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    with client, accepted:
        more: list[int] = []
        resource.setrlimit(
            resource.RLIMIT_NOFILE, (max(int(each.name) for each in Path("/proc/self/fd").iterdir()) + 8, before[1])
        )
        try:
            with contextlib.suppress(OSError):
                while True:
                    more.append(os.dup(client.fileno()))
            assert list(server.sockets.connections()) == [listed]
            ended = server.sockets.end(listed)
        finally:
            for each in more:
                os.close(each)
            resource.setrlimit(resource.RLIMIT_NOFILE, before)
        assert ended
        with pytest.raises(ConnectionResetError):
            client.recv(1)


def test_addresses_have_one_form() -> None:
    if not socket.has_dualstack_ipv6():
        pytest.skip("no IPv6 here")
    listener = socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True)
    sockets = AcceptedSockets([listener.getsockname()[1]])
    with contextlib.closing(listener), contextlib.closing(sockets):
        for host in ("127.0.0.1", "::1"):
            with socket.create_connection((host, listener.getsockname()[1])), listener.accept()[0]:
                assert [each.host for each in sockets.connections()] == [host]


def test_a_long_list_is_read_in_pieces(server: Server) -> None:
    pauses = []
    sockets = AcceptedSockets([server.port], lambda: pauses.append(1))
    with contextlib.closing(sockets), contextlib.ExitStack() as stack:
        for _ in range(300):
            stack.enter_context(socket.create_connection(("127.0.0.1", server.port)))
            stack.enter_context(server.listener.accept()[0])
        assert len(sockets.connections()) == 300
    assert len(pauses) >= 3
