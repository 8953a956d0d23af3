from bench.kafka_path import APPENDED, COMMITTED, READ, SEEN, steps_of, times_of_asks, transactions_of

# Two requests of a partition in one transaction, and a third one in the next.
GATEWAY = {
    APPENDED: [(0, 8, 1.010, 1.012), (0, 7, 1.000, 1.002), (0, 9, 1.020, 1.022), (1, 4, 1.0, 1.1)],
    SEEN: [(0, 8, 1.032), (0, 9, 1.043)],
}
SCHEDULER = {
    READ: [(0, 7, 1.003), (0, 9, 1.023)],
    COMMITTED: [(0, 8, 1.020, 1.030), (0, 9, 1.031, 1.041)],
}


def test_a_request_has_the_times_of_the_first_notes_that_reach_its_offset() -> None:
    assert times_of_asks(GATEWAY, SCHEDULER) == [
        (1.000, 1.002, 1.003, 1.020, 1.030, 1.032),
        (1.010, 1.012, 1.023, 1.020, 1.030, 1.032),
        (1.020, 1.022, 1.023, 1.031, 1.041, 1.043),
    ]


def test_a_request_without_all_notes_is_left_out() -> None:
    assert times_of_asks(GATEWAY, {READ: [(0, 7, 1.003)], COMMITTED: SCHEDULER[COMMITTED]}) == [
        (1.000, 1.002, 1.003, 1.020, 1.030, 1.032)
    ]
    assert times_of_asks({}, {}) == []


def test_steps_and_transactions_in_milliseconds() -> None:
    steps = {step: (round(half), round(mean)) for step, half, mean in steps_of(times_of_asks(GATEWAY, SCHEDULER))}
    assert steps["its own transaction"] == (10, 10)
    assert steps["all of it"] == (23, 26)
    assert [round(each) for each in transactions_of(SCHEDULER)] == [10, 1]
