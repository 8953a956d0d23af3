"""Order by decayed use (``application.sort.policy: fairshare``): who used much lately waits."""

from __future__ import annotations

import math
import random

import pytest
from builders import SECOND_NS, Cluster, allocations, ask, nodes
from muster_core.config.properties import read
from muster_core.model.commands import (
    AppItem,
    NodeAction,
    ReleaseItem,
    Termination,
    UpdateAllocations,
    UpdateApplications,
)
from muster_core.model.decay import LEAST, ONE, moment, normal, seconds_of
from muster_core.model.decayed_usage import FORGOTTEN_HALVES, PERIODS, UserUsage
from muster_core.model.outcome import Outcome
from muster_core.queues import ordering

HOUR = 3600
HALF_LIFE_S = 8 * HOUR


def _cluster(more: str = "", *, half_life: str = "8h", extra: str = "") -> Cluster:
    properties = f"application.sort.policy: fairshare, application.sort.halflife: {half_life}{more}"
    return Cluster(f"{{name: root, submitacl: '*', queues: [{{name: a, properties: {{{properties}}}{extra}}}]}}")


def _apps(cluster: Cluster, *users: str) -> None:
    for user in users:
        cluster.app(user, "root.a", user=user)


def _use(cluster: Cluster, user: str) -> UserUsage:
    uses = cluster.queue("root.a").fair_uses
    assert uses is not None
    return uses.users[user]


def _used(cluster: Cluster, user: str) -> float:
    """The decayed vcore-seconds of a user, now."""
    uses = cluster.queue("root.a").fair_uses
    assert uses is not None
    now, use = uses.now(cluster.now_ns), uses.users[user]
    weighted = use.weighted(now).get(cluster.partition.types.number("vcore"), 0)
    return seconds_of(weighted, now, use.halves, uses.half_life_ns)


def _ran(cluster: Cluster, user: str, vcores: int, seconds: float) -> None:
    """The user runs something for a while on a node of its own."""
    cluster.do(nodes(NodeAction.CREATE, {"own": {"vcore": vcores}}))
    cluster.ask(user, "run", vcore=vcores)
    assert cluster.placed(user) == {"run": "own"}
    cluster.wait(seconds)
    cluster.release(user, "run")
    cluster.do(nodes(NodeAction.DECOMISSION, {"own": None}))


def _served(out: Outcome) -> list[str]:
    return [key for _, key, _ in allocations(out)]


# ---- weights ---------------------------------------------------------------------------------------------------------


def test_a_weight_doubles_with_each_half_life() -> None:
    half_life_ns = HALF_LIFE_S * SECOND_NS
    for steps in (0, 1, 17, 1 << 19, (1 << 20) - 1):
        now_ns = 3 * half_life_ns + half_life_ns * steps // (1 << 20) + 1
        at = moment(now_ns, half_life_ns)
        assert (at.halves, at.since(2)) == (3, 2 * at.weight)
        assert at.weight / ONE == pytest.approx(2 ** (now_ns / half_life_ns - 3), rel=1e-6)


def test_weights_never_fall_as_time_passes() -> None:
    weights = [moment(number * 1_000_003, 1 << 32).since(0) for number in range(9_000)]
    assert weights == sorted(weights)


def test_places_do_not_depend_on_the_units() -> None:
    assert normal(12, 5) == normal(24, 4) == normal(12 << 100, -95)
    assert LEAST == normal(0, 99) < normal(1, -50) < normal(3, 0) < normal(2, 1) < normal(2**70 + 1, 0)


# ---- use -------------------------------------------------------------------------------------------------------------


def test_use_is_amount_times_seconds_and_halves_with_each_half_life() -> None:
    cluster = _cluster()
    _apps(cluster, "ann")
    _ran(cluster, "ann", 1000, 60)
    assert _used(cluster, "ann") == pytest.approx(60_000, rel=0.002)
    cluster.wait(HALF_LIFE_S)
    assert _used(cluster, "ann") == pytest.approx(30_000, rel=0.002)
    cluster.wait(2 * HALF_LIFE_S)
    assert _used(cluster, "ann") == pytest.approx(7_500, rel=0.002)


def test_use_equals_the_sum_over_all_pieces_of_time() -> None:
    """Against a naive integral, over sizes that change, moves and repeats."""
    dice = random.Random(5)
    cluster = _cluster()
    cluster.node("n", vcore=10**6)
    _apps(cluster, "ann")
    held: dict[str, int] = {"base": 7}  # (an application without anything completes)
    cluster.ask("ann", "base", vcore=7)
    pieces: list[tuple[int, int, int]] = []
    for number in range(60):
        before = cluster.now_ns
        cluster.wait(dice.choice([1, 60, 600, 6000, 60_000]))
        pieces.append((before, cluster.now_ns, sum(held.values())))
        if len(held) > 1 and dice.random() < 0.5:
            key = dice.choice(sorted(held.keys() - {"base"}))
            cluster.release("ann", key)
            del held[key]
        else:
            held[f"k{number}"] = amount = dice.randint(1, 5000)
            cluster.ask("ann", f"k{number}", vcore=amount)
    rate = math.log(2) / HALF_LIFE_S

    def left(since_ns: int) -> float:
        return math.exp(-rate * (cluster.now_ns - since_ns) / 1e9)

    expected = sum(amount * (left(end) - left(begin)) / rate for begin, end, amount in pieces)
    assert _used(cluster, "ann") == pytest.approx(expected, rel=1e-4)
    assert dict(_use(cluster, "ann").held) == {cluster.partition.types.number("vcore"): sum(held.values())}


def test_whoever_holds_all_of_it_for_ever_uses_it_for_a_half_life_by_ln_2() -> None:
    cluster = _cluster()
    cluster.node("n", vcore=1000)
    _apps(cluster, "ann")
    cluster.ask("ann", "k", vcore=1000)
    for _ in range(40):
        cluster.wait(HALF_LIFE_S)
    assert _used(cluster, "ann") == pytest.approx(1000 * HALF_LIFE_S / math.log(2), rel=1e-6)


# ---- order -----------------------------------------------------------------------------------------------------------


def test_who_used_much_lately_waits() -> None:
    cluster = _cluster()
    _apps(cluster, "ann", "bob")
    _ran(cluster, "ann", 1000, 600)
    cluster.do(UpdateAllocations([ask("ann", "a1", vcore=1000), ask("bob", "b1", vcore=1000)]))
    assert _served(cluster.node("n", vcore=1000)) == ["b1"]
    assert _served(cluster.release("bob", "b1")) == ["a1"]


def test_users_and_not_applications_are_compared() -> None:
    cluster = _cluster()
    _apps(cluster, "ann", "bob")
    cluster.app("fresh", "root.a", user="ann")
    _ran(cluster, "ann", 1000, 600)
    cluster.do(UpdateAllocations([ask("fresh", "f", vcore=1000), ask("bob", "b", vcore=1000)]))
    assert _served(cluster.node("n", vcore=1000)) == ["b"]


def test_the_applications_of_one_user_are_in_the_order_of_submission() -> None:
    cluster = _cluster()
    for name in ("one", "two"):
        cluster.app(name, "root.a", user="ann")
        cluster.wait(1)
    cluster.do(UpdateAllocations([ask("two", "2", vcore=1), ask("one", "1", vcore=1)]))
    assert _served(cluster.node("n", vcore=2)) == ["1", "2"]


def test_what_was_long_ago_counts_less_than_what_was_lately() -> None:
    cluster = _cluster()
    _apps(cluster, "ann")
    _ran(cluster, "ann", 1000, 600)
    cluster.wait(2 * HALF_LIFE_S)
    _apps(cluster, "bob")
    cluster.app("again", "root.a", user="ann")
    _ran(cluster, "bob", 1000, 300)
    cluster.do(UpdateAllocations([ask("again", "a", vcore=1000), ask("bob", "b", vcore=1000)]))
    assert _served(cluster.node("n", vcore=1000)) == ["a"]


def test_an_allocation_counts_as_soon_as_it_is_made() -> None:
    """A burst of asks is shared out, although no time passes."""
    cluster = _cluster()
    _apps(cluster, "ann", "bob", "cat")
    cluster.do(
        UpdateAllocations([ask(user, f"{user}{n}", vcore=1) for user in ("ann", "bob", "cat") for n in range(3)])
    )
    served = _served(cluster.node("n", vcore=9))
    for turn in range(3):
        assert {key[:3] for key in served[3 * turn : 3 * turn + 3]} == {"ann", "bob", "cat"}


def test_parked_asks_of_a_user_give_way_once_the_user_has_got_something() -> None:
    cluster = _cluster()
    cluster.node("n", vcore=1)
    _apps(cluster, "ann", "bob")
    cluster.do(UpdateAllocations([ask(user, f"{user}{n}", vcore=2) for user in ("ann", "bob") for n in range(3)]))
    assert _served(cluster.node("m", vcore=8)) == ["ann0", "bob0", "ann1", "bob1"]
    assert _served(cluster.node("o", vcore=4)) == ["ann2", "bob2"]


def test_running_allocations_count_as_time_passes() -> None:
    """Ann used more once; Bob has run since and overtakes her, although nothing of either changes meanwhile."""
    cluster = _cluster()
    cluster.node("n", vcore=100)
    _apps(cluster, "ann", "bob")
    _ran(cluster, "ann", 1000, 4 * HOUR)
    cluster.ask("bob", "b", vcore=100)
    for key, user in (("a1", "ann"), ("b1", "bob")):
        cluster.ask(user, key, vcore=50)
    probe = [ask(user, f"{user}x", vcore=10) for user in ("ann", "bob")]
    assert _use(cluster, "bob").place < _use(cluster, "ann").place
    waited = 0
    while _use(cluster, "bob").place < _use(cluster, "ann").place:
        waited += 1
        assert waited < 100
        cluster.wait(HALF_LIFE_S / PERIODS)
    assert waited > 3
    assert cluster.core.next_deadline_ns() is not None
    cluster.do(UpdateAllocations(probe))
    assert _served(cluster.node("m", vcore=10)) == ["annx"]


def test_priority_comes_first_unless_it_is_off() -> None:
    for more, expected in (("", "a"), (", application.sort.priority: disabled", "b")):
        cluster = _cluster(more)
        _apps(cluster, "ann", "bob")
        _ran(cluster, "ann", 1000, 600)
        cluster.do(UpdateAllocations([ask("ann", "a", priority=5, vcore=1), ask("bob", "b", vcore=1)]))
        assert _served(cluster.node("n", vcore=1)) == [expected]


def test_the_most_used_type_decides_by_its_share_of_the_guarantee() -> None:
    cluster = _cluster(extra=", resources: {guaranteed: {vcore: 1, gpu: 1}}")  # (a vcore is 1000)
    cluster.node("n", vcore=4000, gpu=4)
    _apps(cluster, "ann", "bob")
    cluster.ask("ann", "a", vcore=1000)
    cluster.ask("bob", "b", gpu=2)
    assert _use(cluster, "ann").place < _use(cluster, "bob").place


def test_an_order_by_use_survives_a_change_of_capacity() -> None:
    cluster = _cluster()
    _apps(cluster, "ann", "bob")
    cluster.node("n", vcore=1000, gpu=8)
    cluster.ask("ann", "a", vcore=500)
    cluster.ask("bob", "b", gpu=2)
    assert _use(cluster, "bob").place < _use(cluster, "ann").place
    cluster.node("m", vcore=100_000)
    assert _use(cluster, "ann").place < _use(cluster, "bob").place


def test_gangs_are_refused_as_in_a_fair_queue() -> None:
    cluster = _cluster()
    out = cluster.do(UpdateApplications((AppItem("g", "root.a", "default", "ann", placeholder_ask={"vcore": 1}),)))
    assert any("unsupported sort type fairshare" in str(fact) for fact in out.facts)


# ---- time, memory, configuration -------------------------------------------------------------------------------------


def test_users_are_forgotten_when_nothing_of_their_use_is_left() -> None:
    cluster = _cluster(half_life="1m")
    _apps(cluster, "ann")
    _ran(cluster, "ann", 10**9, 60)
    cluster.do(UpdateApplications((), (("default", "ann"),)))
    uses = cluster.queue("root.a").fair_uses
    assert uses is not None
    assert set(uses.users) == {"ann"}
    for _ in range(FORGOTTEN_HALVES + 2):
        cluster.wait(60)
    assert not uses.users
    assert cluster.core.next_deadline_ns() is None


def test_a_new_half_life_keeps_the_present_use() -> None:
    cluster = _cluster()
    _apps(cluster, "ann")
    _ran(cluster, "ann", 1000, 600)
    cluster.node("n", vcore=10)
    cluster.ask("ann", "k", vcore=10)
    cluster.wait(300)
    before = _used(cluster, "ann")
    properties = "application.sort.policy: fairshare, application.sort.halflife: 1h"
    text = f"{{name: root, submitacl: '*', queues: [{{name: a, properties: {{{properties}}}}}]}}"
    assert cluster.reload(text) == ()
    assert _used(cluster, "ann") == pytest.approx(before, rel=1e-4)
    cluster.release("ann", "k")
    cluster.wait(HOUR)
    assert _used(cluster, "ann") == pytest.approx(before / 2, rel=1e-2)


def test_another_order_forgets_and_this_order_begins_with_what_is_held() -> None:
    cluster = _cluster()
    cluster.node("n", vcore=10)
    _apps(cluster, "ann", "bob")
    cluster.ask("ann", "k", vcore=10)
    plain = "{name: root, submitacl: '*', queues: [{name: a}]}"
    shared = "{name: root, submitacl: '*', queues: [{name: a, properties: {application.sort.policy: fairshare}}]}"
    cluster.ask("bob", "b", vcore=1)
    assert cluster.reload(plain) == ()
    assert cluster.queue("root.a").fair_uses is None
    cluster.wait(60)
    assert cluster.reload(shared) == ()
    cluster.wait(60)
    assert _used(cluster, "ann") == pytest.approx(600, rel=0.02)
    cluster.ask("ann", "a", vcore=1)
    assert _served(cluster.node("m", vcore=1)) == ["b"]


def test_one_allocation_moves_one_entry_however_many_applications_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """O(changed): neither the applications nor the asks of a user are moved when its use changes."""
    cluster = _cluster()
    cluster.node("n", vcore=1)
    for number in range(200):
        cluster.app(f"a{number}", "root.a", user=f"u{number % 2}")
    cluster.do(UpdateAllocations([ask(f"a{number}", "k", vcore=2) for number in range(200)]))
    calls = 0
    real = ordering.app_key

    def counted(app: object) -> object:
        nonlocal calls
        calls += 1
        return real(app)  # type: ignore[arg-type]

    monkeypatch.setattr(ordering, "app_key", counted)
    out = cluster.node("m", vcore=20)
    assert len(_served(out)) == 10
    assert calls < 100


def test_releases_of_unknown_things_change_no_use() -> None:
    cluster = _cluster()
    _apps(cluster, "ann")
    _ran(cluster, "ann", 1000, 600)
    before = dict(_use(cluster, "ann").charged)
    cluster.do(UpdateAllocations((), [ReleaseItem("default", "ann", "no", Termination.STOPPED_BY_RM)]))
    assert dict(_use(cluster, "ann").charged) == before


@pytest.mark.parametrize("text", ["0", "59s", "-1h", "a day", ""])
def test_a_half_life_that_is_no_duration_of_a_minute_or_more_means_a_day(text: str) -> None:
    policy, wrong = read({"application.sort.policy": "fairshare", "application.sort.halflife": text})
    assert wrong == {"application.sort.halflife": "a duration of at least 1m, such as 24h"}
    assert policy.half_life_ns == 24 * HOUR * SECOND_NS
