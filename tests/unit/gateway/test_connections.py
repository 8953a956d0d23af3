"""The policy of connections, with counters and a clock that the test sets."""

from __future__ import annotations

import asyncio

import pytest
from muster_gateway.connection_guard import Budget
from muster_gateway.connections import Accounts, Bounds, ConnectionPolicy, Ending, Review
from muster_runtime.tcp_sockets import Counters, TcpSocket

KIB, MIB = 1 << 10, 1 << 20
INTERVAL_S = 0.2
MESSAGE_BYTES = 4 * MIB
PEER = "ipv4:10.0.0.1:1000"


class World:
    """Connections by port, each of one host."""

    def __init__(self, connections: int = 100, of_host: int = 50) -> None:
        self.accounts = Accounts(MESSAGE_BYTES)
        self.accounts.guarded = True
        self.policy = ConnectionPolicy(Bounds(connections, of_host, 256 * KIB, MESSAGE_BYTES))
        self.counters: dict[TcpSocket, Counters] = {}
        self.now_s = 100.0

    def connect(self, host: str = "10.0.0.1", port: int = 1000) -> TcpSocket:
        connection = TcpSocket(10_000 + len(self.counters), len(self.counters), host, port)
        self.counters[connection] = Counters(0, 0)
        return connection

    def send(self, connection: TcpSocket, received: int, acknowledged: int = 0) -> None:
        before = self.counters[connection]
        self.counters[connection] = Counters(before.received + received, before.acknowledged + acknowledged)

    def review(self, after_s: float = INTERVAL_S) -> Review:
        self.now_s += after_s
        review = self.policy.review(self.counters, self.accounts.statements(), self.now_s)
        for connection, _ in review.ending:
            del self.counters[connection]
        return review


def test_what_belongs_to_no_call_ends_a_connection_after_a_second() -> None:
    world = World()
    one = world.connect()
    world.send(one, 200 * KIB)
    assert not world.review(0.2).ending
    world.send(one, 100 * KIB)
    reviews = [world.review(0.25) for _ in range(5)]
    assert [len(each.ending) for each in reviews] == [0, 0, 0, 0, 1]
    assert reviews[-1].ending == [(one, Ending.FLOOD)]
    assert all(each.alarmed for each in reviews), "the next review comes soon"


def test_a_connection_over_its_bound_is_paused_until_its_first_call_is_served() -> None:
    world = World()
    one = world.connect()
    world.send(one, 2 * MIB)
    review = world.review()
    assert (review.pausing, review.ending) == ([one], [])
    assert not world.review().pausing
    calls = [world.accounts.call(PEER) for _ in range(170)]
    for each in calls:
        each.__enter__()
    assert world.review().resuming == [one]
    for each in calls:
        each.__exit__(None, None, None)
    review = world.review()
    assert [review.pausing, review.resuming, review.ending] == [[], [], []]


def test_answers_count_before_the_first_call_and_explain_after_it() -> None:
    world = World()
    one = world.connect()
    world.send(one, 40 * KIB, 40 * KIB)  # 2,400 pings
    assert world.review(0.1).pausing == [one]
    assert world.review(1.1).ending == [(one, Ending.FLOOD)]
    with_calls = world.connect(port=1000)
    with world.accounts.call(PEER):
        world.review()
    for _ in range(100):
        world.send(with_calls, 40 * KIB, 320 * KIB)
        assert not world.review(1.1).ending


def test_first_calls_may_wait_for_their_turn() -> None:
    """1,000 streams with tokens of 12 KiB come at once to a gateway that serves the first of them 0.9 s later."""
    world, number = World(), 1_000
    one = world.connect()
    world.send(one, number * 12 * KIB)
    assert not world.review(0.1).ending
    assert not world.review(0.9).ending
    calls = [world.accounts.call(PEER) for _ in range(number)]
    for each in calls:
        each.__enter__()
    for each in calls:
        each.__exit__(None, None, None)
    for _ in range(20):
        assert not world.review(0.5).ending


def test_an_rm_that_sends_much_is_served_for_ever() -> None:
    """60 MB/s for ten minutes, with a message under way at each review."""
    world = World()
    one = world.connect()
    with world.accounts.call(PEER), world.accounts.stream(PEER) as account:
        world.send(one, MESSAGE_BYTES)
        for number in range(3_000):
            for _ in range(3):
                account.message(MESSAGE_BYTES)
                world.send(one, MESSAGE_BYTES)
            assert not world.review().ending, number


@pytest.mark.parametrize("streams", [3, 100])
def test_messages_that_are_not_whole_yet_end_nothing(streams: int) -> None:
    world = World()
    one = world.connect()
    with world.accounts.call(PEER):
        for _ in range(streams):
            world.accounts.stream(PEER).__enter__()
        world.send(one, streams * MESSAGE_BYTES)
        for _ in range(50):
            assert not world.review().ending


def test_a_call_that_says_nothing_does_not_explain_a_flood() -> None:
    world = World()
    one = world.connect()
    with world.accounts.call(PEER):
        assert not world.review().ending
        world.send(one, 5 * MIB)
        assert world.review().ending == [(one, Ending.FLOOD)]


def test_pings_keepalives_handshakes_and_watchers_end_nothing() -> None:
    world = World()
    pinging, watching = world.connect(port=1), world.connect(port=2)
    world.send(pinging, 10 * KIB, 6 * KIB)  # TLS with a client's certificate
    with world.accounts.call("ipv4:10.0.0.1:2"):
        for _ in range(8_640):  # a day, every ten seconds
            world.send(pinging, 17 + 29, 17 + 29)
            world.send(watching, 300 * KIB, 10 * MIB)  # updates of windows
            assert not world.review(10.0).ending


def test_a_client_that_is_refused_again_and_again_is_no_flood() -> None:
    """Three streams a second, each with a message that nobody reads any more."""
    world = World()
    one = world.connect()
    for _ in range(600):
        for _ in range(3):
            with world.accounts.call(PEER):
                pass
        world.send(one, 3 * (12 * KIB + 128 * KIB))
        for _ in range(5):
            assert not world.review().ending


def test_the_longest_idle_connection_of_a_crowded_host_ends_first() -> None:
    world = World(connections=100, of_host=3)
    called = world.connect(port=1)
    busy = world.connect(port=2)
    with world.accounts.call("ipv4:10.0.0.1:1"):
        world.review()
    with world.accounts.call("ipv4:10.0.0.1:2"):
        silent = world.connect(port=3)
        world.review()
        world.connect(port=4)
        assert world.review().ending == [(silent, Ending.TOO_MANY_OF_HOST)]
        newer = world.connect(port=5)
        assert [port for (*_, port), _ in world.review().ending] == [4]
        world.connect(port=6)
        assert world.review().ending == [(newer, Ending.TOO_MANY_OF_HOST)], "one that had calls stays longer"
        world.connect(port=7)
        world.connect(port=8)
        review = world.review()
        assert [port for (*_, port), _ in review.ending] == [6, 7]
        assert review.open == 3
        assert called in world.counters
        assert busy in world.counters, "a connection with a call never ends"


def test_over_the_limit_of_all_the_host_with_most_loses() -> None:
    world = World(connections=10, of_host=8)
    few = [world.connect("10.0.0.9", port=each) for each in range(3)]
    for each in range(7):
        world.connect("10.0.0.1", port=each)
    assert not world.review().ending
    for each in range(5):
        world.connect(f"10.0.1.{each}")
    review = world.review()
    assert len(review.ending) == 5
    assert {reason for _, reason in review.ending} == {Ending.TOO_MANY}
    hosts = [connection.host for connection, _ in review.ending]
    assert hosts.count("10.0.0.1") >= 4, hosts
    assert sum(each in world.counters for each in few) >= 2


def test_connections_with_calls_stay_even_over_the_limits() -> None:
    world = World(connections=2, of_host=1)
    peers = [f"ipv4:10.0.0.1:{each}" for each in range(5)]
    for each in range(5):
        world.connect(port=each)
    calls = [world.accounts.call(each) for each in peers]
    for each in calls:
        each.__enter__()
    assert not world.review().ending
    assert world.review().open == 5


async def test_accounts_of_connections_that_are_no_more_are_dropped() -> None:
    world = World()
    one = world.connect()
    with world.accounts.call(PEER):
        await asyncio.sleep(0)
    assert not world.review().closed
    del world.counters[one]
    assert not world.review().closed, "it may have come since the connections were listed"
    closed = world.review().closed
    assert closed == {("10.0.0.1", 1000)}
    world.accounts.drop(closed)
    assert not world.accounts.statements()


@pytest.mark.parametrize(
    ("peer", "key"),
    [
        ("ipv4:10.0.0.1:50", ("10.0.0.1", 50)),
        ("ipv6:%5B::1%5D:50", ("::1", 50)),
        ("ipv6:[fe80::1%25eth0]:50", ("fe80::1", 50)),
        ("unix:/run/x", ("unix:/run/x", 0)),
    ],
)
def test_a_peer_is_found_among_the_connections(peer: str, key: tuple[str, int]) -> None:
    accounts = Accounts(MESSAGE_BYTES)
    with accounts.call(peer):
        assert accounts.statements().keys() == {key}
    assert not accounts.statements(), "nobody guards them"


def test_reviews_use_what_was_saved_and_then_their_share() -> None:
    budget = Budget(share=0.1, saved_s=0.05, now_s=0.0)
    budget.use(0.04)
    assert budget.wait_s(0.0) == 0  # of the savings
    budget.use(0.03)
    assert budget.wait_s(0.0) == pytest.approx(0.2)
    assert budget.wait_s(0.1) == pytest.approx(0.1)
    assert budget.wait_s(0.2) == 0
    assert budget.wait_s(1_000.0) == 0
    budget.use(0.06)
    assert budget.wait_s(1_000.0) == pytest.approx(0.1)  # more than 50 ms are not saved
