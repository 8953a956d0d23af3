"""The kinds of plays. Each makes a play from a seed.

A play keeps to what YuniKorn's core decides in one way only. Its order of ties is the order of Go's maps, so no two
things of a play tie: sizes differ by a few thousandths, and queues and applications begin with reported allocations.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any

from plays.play import (
    DELAY,
    Play,
    Step,
    allocations,
    application,
    applications,
    ask,
    confirm,
    elapse,
    node,
    nodes,
    releases,
    removal,
)

# An ask has 1,000 to 1,040 thousandths of a core, and a node or a max a number of slots: each ask fits into each slot.
# So what fits is always the same for all: in YuniKorn an ask that cannot fit raises the priority of its queue.
SLOT = 1_100
BASE, SPREAD = 1_000, 40


class Sizes:
    """Sizes that are all different."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._left = {name: self._shuffled() for name in ("vcore", "memory")}

    def next(self) -> dict[str, int]:
        for name, left in self._left.items():
            if not left:
                self._left[name] = self._shuffled()
        return {name: left.pop() for name, left in self._left.items()}

    def _shuffled(self) -> list[int]:
        return self._random.sample(range(BASE, BASE + SPREAD), SPREAD)


def slots(count: int) -> dict[str, int]:
    """Amounts of a node."""
    return {"vcore": count * SLOT, "memory": count * SLOT}


def slots_text(count: int) -> dict[str, str]:
    """The same as quantities of a configuration."""
    return {"vcore": f"{count * SLOT}m", "memory": str(count * SLOT)}


def _partition(random: Random, queues: Sequence[Mapping[str, Any]], **more: Any) -> dict[str, Any]:
    policy: dict[str, Any] = {"type": random.choice(("fair", "binpacking"))}
    if random.random() < 0.3:
        weights = ({"vcore": 3.0, "memory": 0.5}, {"memory": 1.0}, {"vcore": 0.0, "memory": 2.0})
        policy["resourceweights"] = random.choice(weights) if random.random() < 0.9 else {}
    root = {"name": "root", "submitacl": "*", "queues": list(queues)}
    return {"name": "default", "nodesortpolicy": policy, "queues": [root], **more}


# ---- placement -------------------------------------------------------------------------------------------------------

USERS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("ann", ("dev", "ops")),
    ("bob", ("dev",)),
    ("cat.fox", ("qa",)),
    ("dan", ()),
)
_QUEUE_NAMES = ("", "a", "root.a", "root.b", "root.b.b1", "root.b.b2", "b.b1", "root.new", "root.b.new", "root.a.below",
                "new", "root.n1.n2", "bad name", "root", "root.b.cat_dot_fox")  # fmt: skip


def placement(random: Random, seed: int) -> Play:
    """Placement rules with filters, parents and creation, and applications of several users."""
    queues = [
        {"name": "a"},
        {"name": "b", "parent": True, "queues": [{"name": "b1"}, {"name": "b2"}]},
    ]
    if random.random() < 0.4:
        queues.append({"name": "default"})
    if random.random() < 0.3:
        queues[1]["childtemplate"] = {"resources": {"max": slots_text(random.randint(1, 2))}}
    rules = [_rule(random) for _ in range(random.randint(1, 3))]
    partition = _partition(random, queues, placementrules=rules)
    steps: list[Step] = [nodes(node("n1", **slots(12)))]
    sizes = Sizes(random)
    for number in range(random.randint(6, 10)):
        user, groups = random.choice(USERS)
        tags = {"namespace": random.choice(("team", "a", "root.b.b2", "x.y"))} if random.random() < 0.6 else {}
        if tags and random.random() < 0.3:
            quota = random.randint(1, 2) * SLOT
            tags["namespace.resourcequota"] = f'{{"resources":{{"vcore":{{"value":{quota}}}}}}}'
        app = f"app{number}"
        steps.append(applications(application(app, random.choice(_QUEUE_NAMES), user, groups, tags=tags)))
        steps.append(allocations(*(ask(f"{app}-{at}", app, sizes.next()) for at in range(random.randint(1, 3)))))
    return Play("placement", seed, partition, {}, tuple(steps))


def _rule(random: Random, *, is_parent: bool = False) -> dict[str, Any]:
    name = random.choice(("user", "fixed", "tag") if is_parent else ("provided", "user", "fixed", "tag"))
    rule: dict[str, Any] = {"name": name, "create": random.random() < 0.6}
    if name == "fixed":
        rule["value"] = random.choice(("b", "c") if is_parent else ("a", "b.b1", "c", "root.c.d", "root.b.b2"))
    if name == "tag":
        rule["value"] = "namespace"
    if random.random() < 0.4:
        who = random.choice(({"users": ["ann"]}, {"groups": ["dev"]}, {"users": ["b.*"]}, {"users": ["ann", "dan"]}))
        rule["filter"] = {"type": random.choice(("allow", "deny", "")), **who}
    if not is_parent and random.random() < 0.3 and not str(rule.get("value", "")).startswith("root"):
        rule["parent"] = _rule(random, is_parent=True)
    return rule


# ---- access lists ----------------------------------------------------------------------------------------------------

_LISTS = ("", "*", "ann", "ann,bob", " dev", "ann ops", " ops,qa", "bob dev", "* ", " *", "dan", "ann,* qa", "ann ",
          "  dev", "ann  dev", " dev qa", "cat.fox", "$bad", "nobody nogroup")  # fmt: skip


def access(random: Random, seed: int) -> Play:
    """Access lists at three levels, with users and groups."""

    def lists() -> dict[str, str]:
        found = {}
        for key, chance in (("submitacl", 0.7), ("adminacl", 0.4)):
            if random.random() < chance:
                # (A list with more than one space refuses the whole configuration: a few plays have one.)
                found[key] = random.choice(_LISTS if random.random() < 0.04 else [x for x in _LISTS if not _wide(x)])
        return found

    queues = [{"name": f"q{number}", **lists()} for number in range(2)]
    queues.append(
        {"name": "p", "parent": True, **lists(), "queues": [{"name": f"l{at}", **lists()} for at in range(2)]}
    )
    partition = {"name": "default", "queues": [{"name": "root", **lists(), "queues": queues}]}
    if random.random() < 0.5:
        partition["placementrules"] = [{"name": "provided", "create": True}]
    steps: list[Step] = [nodes(node("n1", **slots(8)))]
    names = ("root.q0", "root.q1", "root.p.l0", "root.p.l1", "root.p.new", "root.other")
    everybody = [(user, groups, queue) for user, groups in USERS for queue in names]
    for number, (user, groups, queue) in enumerate(random.sample(everybody, 14)):
        steps.append(applications(application(f"app{number}", queue, user, groups)))
    return Play("access", seed, partition, {}, tuple(steps))


def _wide(text: str) -> bool:
    return text.strip().count(" ") + text.startswith("  ") + (text.startswith(" ") and " " in text.strip()) > 1 or (
        "  " in text
    )


# ---- ordering --------------------------------------------------------------------------------------------------------


def ordering(random: Random, seed: int) -> Play:
    """Orders of queues, applications and asks: room comes slot by slot, so that each choice shows."""
    sizes = Sizes(random)
    leaves: list[str] = []
    # (In YuniKorn an ask over a max raises the priority of the queues above it, too.)
    has_maxima = random.random() < 0.4
    priorities = (0,) if has_maxima else (0, 0, 0, 3, 7, -2)

    def properties(*, leaf: bool) -> dict[str, str]:
        found: dict[str, str] = {}
        if random.random() < 0.3:
            found["priority.offset"] = str(random.randint(-5, 5))
        if random.random() < 0.2:
            found["priority.policy"] = "fence"
        if random.random() < 0.3:
            found["application.sort.priority"] = random.choice(("enabled", "disabled"))
        if leaf:
            found["application.sort.policy"] = random.choice(("fifo", "fair"))
        return found

    def queue(path: str, name: str, depth: int) -> dict[str, Any]:
        is_leaf = depth == 2 or random.random() < 0.5
        it: dict[str, Any] = {"name": name, "properties": properties(leaf=is_leaf), "resources": {}}
        if not is_leaf:
            it["queues"] = children(f"{path}.{name}", depth + 1)
        else:
            leaves.append(f"{path}.{name}")
            it["resources"]["guaranteed"] = {"vcore": f"{random.randint(900, 4000)}m", "memory": "2000"}
            if has_maxima and random.random() < 0.5:
                it["resources"]["max"] = slots_text(random.randint(3, 6))
        return it

    def children(path: str, depth: int) -> list[dict[str, Any]]:
        # (Of three queues without a guarantee, YuniKorn takes the max of another one: it sorts queues, not maxima.)
        return [queue(path, name, depth) for name in random.sample("abcdef", 2)]

    partition = _partition(random, children("root", 1))
    apps = [(f"app{number}", random.choice(leaves)) for number in range(random.randint(3, 6))]
    apps += [(f"one{number}", leaf) for number, leaf in enumerate(leaves)]
    random.shuffle(apps)
    steps: list[Step] = [applications(application(app, leaf)) for app, leaf in apps]
    steps.append(nodes(node("n0", **slots(len(apps)))))
    # Each application, so each queue, uses an amount of its own: no shares are equal.
    steps.append(allocations(*(ask(f"{app}-first", app, sizes.next(), nodeID="n0") for app, _ in apps)))
    count = 0
    # Asks of one size wait together in Muster. (Sums differ all the same, by the allocations that are reported first.)
    alike = random.random() < 0.6
    # (No queue and no two applications lose all that they use: empty ones tie.)
    ends = [app for app, _ in apps if app.startswith("app")][:1]

    def asks() -> Step:
        nonlocal count
        items = []
        for _ in range(random.randint(1, 3)):
            app = random.choice(apps)[0]
            count += 1
            size = {"vcore": BASE, "memory": BASE} if alike else sizes.next()
            items.append(ask(f"ask{count}", app, size, priority=random.choice(priorities)))
        return allocations(*items)

    steps += [asks() for _ in range(random.randint(3, 6))]
    for number in range(1, random.randint(6, 10)):
        roll = random.random()
        if roll < 0.6:
            steps.append(nodes(node(f"n{number}", **slots(random.choice((1, 1, 2, 3))))))
        elif roll < 0.85:
            steps.append(asks())
        elif ends:
            app = ends.pop()
            steps.append(releases((app, f"{app}-first")))
    return Play("ordering", seed, partition, {}, tuple(steps))


# ---- limits ----------------------------------------------------------------------------------------------------------


def limits(random: Random, seed: int) -> Play:
    """Limits of users and groups, maxima of queues and of running applications."""
    sizes = Sizes(random)

    def some_limits(ceiling: int) -> list[dict[str, Any]]:
        named = ({"users": ["ann"]}, {"users": ["bob"]}, {"groups": ["dev"]}, {"groups": ["qa"]})
        found: list[dict[str, Any]] = [{"limit": "named", **who} for who in random.sample(named, 2)]
        if random.random() < 0.4:
            found.append({"limit": "others", "users": ["*"]})
        for each in found:
            if random.random() < 0.8:
                each["maxresources"] = slots_text(random.randint(1, ceiling))
            if "maxresources" not in each or random.random() < 0.3:
                each["maxapplications"] = random.randint(1, 2)
        return found

    queues = []
    for name in ("a", "b"):
        it: dict[str, Any] = {"name": name, "properties": {"application.sort.policy": "fifo"}}
        if random.random() < 0.6:
            it["limits"] = some_limits(3)
        if random.random() < 0.4:
            it["resources"] = {"max": slots_text(random.randint(3, 6))}
        if random.random() < 0.4:
            it["maxapplications"] = random.randint(2, 4)
            for each in it.get("limits", ()):
                each.pop("maxapplications", None)
                each.setdefault("maxresources", slots_text(2))
        queues.append(it)
    partition = _partition(random, queues)
    if random.random() < 0.4 and not any("limits" in it for it in queues):
        partition["queues"][0]["limits"] = some_limits(5)
    users = [each for each in USERS if each[1]]
    apps: list[str] = []
    steps: list[Step] = [nodes(node("n1", **slots(10)), node("n2", **slots(7)))]
    running: list[tuple[str, str]] = []
    count = 0
    for _ in range(random.randint(10, 16)):
        roll = random.random()
        if roll < 0.35 or not apps:
            user, groups = random.choice(users)
            apps.append(f"app{len(apps)}")
            steps.append(applications(application(apps[-1], f"root.{random.choice('ab')}", user, groups)))
        if roll < 0.75:
            app = random.choice(apps)
            items = []
            for _ in range(random.randint(1, 3)):
                count += 1
                items.append(ask(f"ask{count}", app, sizes.next()))
                running.append((app, f"ask{count}"))
            steps.append(allocations(*items))
        elif roll < 0.95 and running:
            steps.append(releases(running.pop(random.randrange(len(running)))))
        elif len(apps) > 1:
            gone = apps.pop(random.randrange(len(apps)))
            running = [each for each in running if each[0] != gone]
            steps.append(removal(gone))
    return Play("limits", seed, partition, {}, tuple(steps))


# ---- preemption ------------------------------------------------------------------------------------------------------


def preemption(random: Random, seed: int) -> Play:
    """A queue below its guarantee preempts in others, whose own asks wait, too.

    All sizes are equal, and guarantees are multiples of them. (YuniKorn takes victims of at least the ask's size,
    whatever is free; and the last one may take its queue below its guarantee.)
    """
    one = {"vcore": BASE, "memory": BASE}

    def units(count: int) -> dict[str, str]:
        return {"vcore": f"{count * BASE}m", "memory": str(count * BASE)}

    def leaf(name: str, guaranteed: int) -> dict[str, Any]:
        it: dict[str, Any] = {
            "name": name,
            "properties": {"preemption.delay": DELAY, "preemption.priority": "disabled"},
        }
        return {**it, "resources": {"guaranteed": units(guaranteed)}} if guaranteed else it

    def with_priorities(it: dict[str, Any]) -> dict[str, Any]:
        found = it.setdefault("properties", {})
        if random.random() < 0.2:
            found["priority.offset"] = str(random.randint(-3, 3))
        if random.random() < 0.1:
            found["priority.policy"] = "fence"
        return it

    # (On several nodes, YuniKorn prefers the node with the lower name, Muster the younger victims.)
    whole = random.randint(2, 9)
    guaranteed = random.randint(1, min(whole, 6))
    victims = random.choice((1, 1, 2))
    # (Of three queues without a guarantee: see ordering.)
    lower = [leaf(f"v{number}", random.randint(victims > 1, 2)) for number in range(victims)]
    for it in lower:
        with_priorities(it)
        if random.random() < 0.15:
            it["properties"]["preemption.policy"] = "disabled"
    upper = with_priorities(leaf("a", guaranteed))
    paths = {"pre": "root.a", **{f"vic{number}": f"root.v{number}" for number in range(victims)}}
    if random.random() < 0.4:
        # (The preemptor's parents have no guarantee: YuniKorn takes it for one between the children, too.)
        parent = {"name": "p", "properties": {"preemption.policy": random.choice(("default", "default", "fence"))}}
        inside = random.random() < 0.3
        other = with_priorities({"name": "q", "queues": lower[:-1] if inside else lower})
        for number, it in enumerate(lower):
            paths[f"vic{number}"] = f"root.{'p' if inside and it is lower[-1] else 'q'}.v{number}"
        queues = [{**parent, "queues": [upper, *(lower[-1:] if inside else ())]}]
        if other["queues"]:
            queues.append(other)
        paths["pre"] = "root.p.a"
    else:
        queues = [upper, *lower]
    partition = _partition(random, queues)
    steps: list[Step] = [
        nodes(node("n0", vcore=whole * BASE, memory=whole * BASE)),
        *(applications(application(app, path)) for app, path in paths.items()),
    ]
    # One after the other, so that each has an age of its own. (Muster prefers victims of lower priority.)
    priority = random.choice((0, 0, 2))
    for number in range(whole):
        app = f"vic{random.randrange(victims)}"
        more: dict[str, Any] = {"priority": priority}
        roll = random.random()
        if roll < 0.15:
            more["preemptionPolicy"] = {"allowPreemptSelf": False, "allowPreemptOther": True}
        elif roll < 0.25:
            more["originator"] = True
        steps.append(allocations(ask(f"low{number}", app, one, **more)))
    waits = f"vic{random.randrange(victims)}"
    steps += [
        allocations(ask(f"wait{number}", waits, one, priority=priority)) for number in range(random.randint(0, 3))
    ]
    wanted = random.randint(1, guaranteed)
    steps += [
        allocations(ask(f"high{number}", "pre", one, priority=random.choice((-1, 0, 5, 100))))
        for number in range(wanted)
    ]
    steps.append(elapse())
    if random.random() < 0.5:
        steps += [releases(("pre", "high0")), elapse()]
    return Play("preemption", seed, partition, {"preemption": {"optout": "last"}}, tuple(steps))


# ---- gangs -----------------------------------------------------------------------------------------------------------


def gangs(random: Random, seed: int) -> Play:
    """Gangs whose placeholders are replaced, and which lose nodes meanwhile."""
    sizes = Sizes(random)
    count = random.randint(2, 4)
    queues = [{"name": "a", "properties": {"application.sort.policy": "fifo", "gang.start": "incremental"}}]
    partition = _partition(random, queues)
    # YuniKorn replaces the first of a Go map: so a task group has one placeholder, or all of them are on one node, and
    # are told apart by nobody (``compare.py``).
    alike = random.random() < 0.4
    if alike:
        count = 1
    capacity = [random.randint(5, 8) if alike else random.randint(2, 3) for _ in range(count)]
    steps: list[Step] = [nodes(*(node(f"n{at}", **slots(size)) for at, size in enumerate(capacity)))]
    groups: list[tuple[str, str]] = []
    for number in range(random.randint(1, 2)):
        app = f"gang{number}"
        members = []
        for at in range(random.randint(1, 2) if alike else random.randint(2, 4)):
            size = sizes.next()
            members += [(f"{app}-g{at}", number, size) for number in range(random.randint(2, 3) if alike else 1)]
        total = {name: sum(amounts[name] for *_, amounts in members) for name in ("vcore", "memory")}
        style = random.choice(("Soft", "Hard"))
        steps.append(applications(application(app, "root.a", placeholderAsk=total, gangSchedulingStyle=style)))
        asked = [
            ask(f"{group}-p{at}", app, amounts, taskGroupName=group, placeholder=True) for group, at, amounts in members
        ]
        steps.append(allocations(*asked))
        groups += dict.fromkeys((app, group) for group, *_ in members)
    left = [f"n{at}" for at in range(count)]
    fresh, real = count, 0
    # Until the RM confirms, a task group gets no further ask, and none is withdrawn. (In YuniKorn the one waits for the
    # confirmation, and the other is allocated all the same.)
    replacing: dict[str, tuple[str, str]] = {}
    running: list[tuple[str, str]] = []
    for _ in range(random.randint(6, 10)):
        roll = random.random()
        if roll < 0.4:
            app, group = random.choice(groups)
            if group not in replacing:
                real += 1
                key = f"real{real}"
                size = {"vcore": BASE - 100, "memory": BASE - 100}
                steps.append(allocations(ask(key, app, size, taskGroupName=group)))
                replacing[group] = (app, key)
        elif roll < 0.6 and left:
            steps.append(nodes(node(left.pop(random.randrange(len(left))), "DECOMISSION")))
        elif roll < 0.7 and left:
            action = random.choice(("DRAIN_NODE", "DRAIN_TO_SCHEDULABLE"))
            steps.append(nodes(node(random.choice(left), action)))
        elif roll < 0.8:
            left.append(f"n{fresh}")
            steps.append(nodes(node(left[-1], **slots(random.randint(1, 2)))))
            fresh += 1
        elif roll < 0.9 and running:
            steps.append(releases(running.pop(random.randrange(len(running)))))
        if random.random() < 0.6:
            steps.append(confirm())
            running += replacing.values()
            replacing.clear()
    steps.append(confirm())
    return Play("gangs", seed, partition, {}, tuple(steps))


# ---- nodes -----------------------------------------------------------------------------------------------------------


def machines(random: Random, seed: int) -> Play:
    """Nodes that come, drain, change and leave, below asks and allocations that change, end and are reported."""
    sizes = Sizes(random)
    partition = _partition(random, [{"name": "a", "properties": {"application.sort.policy": "fifo"}}])
    apps = [f"app{number}" for number in range(random.randint(1, 3))]
    steps: list[Step] = [applications(application(app, "root.a")) for app in apps]
    # (A node's name is not used again, and names are in the order of their nodes: empty nodes tie.)
    names = [f"n{number:02}" for number in range(30)]
    left: list[str] = []
    asked: list[tuple[str, str]] = []
    reported: list[tuple[str, str, str]] = []
    for number in range(random.randint(12, 20)):
        roll = random.random()
        if roll < 0.25 or not left:
            name = names.pop(0)
            left.append(name)
            action = random.choice(("CREATE", "CREATE", "CREATE_DRAIN"))
            steps.append(nodes(node(name, action, **slots(random.randint(1, 4)))))
        elif roll < 0.5:
            app = random.choice(apps)
            keys = [f"ask{number}-{at}" for at in range(random.randint(1, 3))]
            steps.append(allocations(*(ask(key, app, sizes.next()) for key in keys)))
            asked += [(app, key) for key in keys]
        elif roll < 0.6:
            app, key, name = random.choice(apps), f"old{number}", random.choice(left)
            steps.append(allocations(ask(key, app, sizes.next(), nodeID=name)))
            reported.append((app, key, name))
        elif roll < 0.68 and reported:
            app, key, name = random.choice(reported)
            if name in left:
                steps.append(allocations(ask(key, app, sizes.next(), nodeID=name)))
        elif roll < 0.78 and asked:
            steps.append(releases(asked.pop(random.randrange(len(asked)))))
        elif roll < 0.86:
            action = random.choice(("DRAIN_NODE", "DRAIN_TO_SCHEDULABLE"))
            steps.append(nodes(node(random.choice(left), action)))
        elif roll < 0.93:
            steps.append(nodes(node(random.choice(left), "UPDATE", **slots(random.randint(1, 5)))))
        else:
            steps.append(nodes(node(left.pop(random.randrange(len(left))), "DECOMISSION")))
    return Play("machines", seed, partition, {}, tuple(steps))


KINDS: dict[str, Callable[[Random, int], Play]] = {
    "placement": placement,
    "access": access,
    "ordering": ordering,
    "limits": limits,
    "preemption": preemption,
    "gangs": gangs,
    "machines": machines,
}


def play_of(seed: int, kind: str = "") -> Play:
    """The play of a seed: kinds take turns, unless one is named."""
    names = list(KINDS)
    name = kind or names[seed % len(names)]
    return KINDS[name](Random(f"{name} {seed}"), seed)
