from bench.path_trace import usual_path

HAS, WRITES, WRITTEN = "gateway: has the message", "writer: takes it", "gateway: it is written"


def ask(at_s: float, *, writer_s: float = 0.001) -> list[tuple[str, float, str]]:
    """Return the stamps of an ask; the writer's thread notes its own late."""
    return [(HAS, at_s, "loop"), (WRITTEN, at_s + 0.002, "loop"), (WRITES, at_s + writer_s, "writer")]


def test_steps_are_in_the_order_of_the_clock_with_their_medians_and_changes_of_thread() -> None:
    stamps = [*ask(1.0), *ask(2.0, writer_s=0.0005), *ask(3.0)]
    steps, changes, asks = usual_path(stamps)
    assert [(step, round(at)) for step, at in steps] == [(HAS, 0), (WRITES, 1_000), (WRITTEN, 2_000)]
    assert (changes, asks) == (2, 3)


def test_an_ask_that_another_one_delays_does_not_count() -> None:
    overtaken = [(HAS, 3.0, "loop"), (HAS, 3.1, "loop"), (WRITES, 3.2, "writer"), (WRITES, 3.3, "writer")]
    before = [(WRITTEN, 0.5, "loop")]
    steps, changes, asks = usual_path([*before, *ask(1.0), *ask(2.0), *overtaken])
    assert [step for step, _ in steps] == [HAS, WRITES, WRITTEN]
    assert (changes, asks) == (2, 2)
