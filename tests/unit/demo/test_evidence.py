"""What the demo makes of what its consumer saw."""

from typing import Any, NamedTuple

from demo.evidence import Evidence, Order, Part, Promise, percentile, promises


class Seen(NamedTuple):
    """A consumed record, as far as the evidence looks at it."""

    number: int
    level: int = 0
    partition: int = 0
    offset: int = 0
    raw_key: bytes | None = b"N14228"
    timestamp: int = 1_000

    @property
    def headers(self) -> list[tuple[str, Any]]:
        return [("number", str(self.number).encode())]


BACKLOG = 10_000  # more than enough


def evidence_of(*records: Seen, backlog: int = 0, capacity: int = 10, now_ms: int = 1_000) -> Evidence:
    evidence = Evidence(levels=2, records=100, capacity=capacity)
    evidence.note_poll(records, backlog, at=1.0, now_ms=now_ms)
    return evidence


def in_polls(*polls: list[Seen], backlog: int = BACKLOG, now_ms: int = 1_000) -> Evidence:
    """Evidence of these polls, one after the other, with as many waiting before each."""
    evidence = Evidence(levels=2, records=100, capacity=20)
    for poll in polls:
        evidence.note_poll(poll, backlog, at=1.0, now_ms=now_ms)
    return evidence


# Of 40 flights every second one is urgent, and all are sent in the order of their numbers.
ORDINARY = [Seen(number, level=0, offset=number) for number in range(0, 40, 2)]
URGENT = [Seen(number, level=1, offset=number) for number in range(1, 40, 2)]


def broken(evidence: Evidence, sent: list[int], *, conserves_work: bool = True) -> list[str]:
    return [each.promised for each in promises(evidence, sent, conserves_work=conserves_work) if each.kept is False]


def kept_run() -> Evidence:
    evidence = evidence_of(Seen(0, 0, offset=0), Seen(1, 0, offset=1), backlog=9, capacity=2, now_ms=5_000)
    evidence.note_poll([Seen(2, level=1)], backlog=0, at=2.0, now_ms=1_005)
    return evidence


def test_a_run_as_promised_breaks_no_promise() -> None:
    assert broken(kept_run(), [2, 1]) == []


def test_a_record_that_never_came_breaks_the_first_promise() -> None:
    assert broken(kept_run(), [3, 1]) == ["every flight once, at its level"]
    assert promises(kept_run(), [3, 1], conserves_work=True)[0].seen == "1 + 2 of 3"


def test_a_record_that_came_twice_instead_of_another_breaks_the_first_promise() -> None:
    evidence = evidence_of(Seen(0, offset=0), Seen(0, offset=1, raw_key=None), Seen(2, 1))
    assert evidence.repeated == 1
    assert "every flight once, at its level" in broken(evidence, [2, 1])


def test_an_offset_that_goes_back_is_a_violation_in_its_partition_only() -> None:
    evidence = evidence_of(Seen(0, offset=5), Seen(1, partition=1, offset=3), Seen(2, offset=4))
    assert (evidence.partitions.violations, len(evidence.partitions)) == (1, 2)
    assert "each partition in order of its offsets" in broken(evidence, [3, 0])


def test_flights_of_an_aeroplane_may_pass_each_other_at_different_levels_only() -> None:
    assert evidence_of(Seen(3, level=1, offset=0), Seen(1, level=0, offset=0)).keys.violations == 0
    assert evidence_of(Seen(3, offset=0), Seen(1, offset=1)).keys.violations == 1


def test_records_without_a_key_have_no_order_among_partitions() -> None:
    evidence = evidence_of(Seen(3, partition=1, raw_key=None), Seen(1, partition=2, raw_key=None))
    assert (evidence.keys.violations, len(evidence.keys)) == (0, 0)


def test_the_wait_is_from_the_timestamp_to_the_return_and_never_below_zero() -> None:
    evidence = evidence_of(Seen(0, timestamp=990), Seen(1, offset=1, timestamp=1_001), now_ms=1_000)
    assert list(evidence.waits_ms[0]) == [10, 0]
    assert list(evidence.returned_s[0]) == [1.0, 1.0]


def test_urgent_flights_that_pass_those_sent_before_them_keep_the_promise_however_slow_all_is() -> None:
    evidence = in_polls(URGENT, ORDINARY, now_ms=3_600_000)
    assert evidence.ahead == Part(20, 20)
    assert "urgent flights pass those on time" not in broken(evidence, [20, 20])


def test_urgent_flights_in_the_order_of_sending_break_the_promise_however_fast_all_is() -> None:
    first, second = (sorted(ORDINARY[half] + URGENT[half]) for half in (slice(10), slice(10, 20)))
    evidence = in_polls(first, second, now_ms=1_000)
    assert evidence.ahead == Part(0, 20)
    assert "urgent flights pass those on time" in broken(evidence, [20, 20])


def test_urgent_flights_after_the_others_break_the_promise() -> None:
    assert "urgent flights pass those on time" in broken(in_polls(ORDINARY, URGENT), [20, 20])


def test_without_a_backlog_the_run_cannot_tell_and_says_so() -> None:
    evidence = in_polls(ORDINARY, URGENT, backlog=20)
    untold = {each.promised: each.seen for each in promises(evidence, [20, 20], conserves_work=True) if not each.kept}
    assert untold == {
        "urgent flights pass those on time": "not shown: only 0 met a backlog",
        "over 95% of capacity used in a backlog": "not shown: there was no backlog",
    }
    assert broken(evidence, [20, 20]) == []


def test_a_poll_above_the_capacity_breaks_the_promise() -> None:
    evidence = evidence_of(Seen(0, offset=0), Seen(1, offset=1), capacity=1)
    assert "no poll above max.poll.records" in broken(evidence, [2, 0])


def test_only_polls_under_backlog_count_for_the_capacity_used() -> None:
    evidence = evidence_of(Seen(0), backlog=20, capacity=2)
    evidence.note_poll([], backlog=19, at=2.0, now_ms=1_000)
    assert evidence.capacity_used == Part(1, 2)
    assert Evidence(1, 1, 1).capacity_used.share == 1.0


def test_capacity_that_idles_is_no_broken_promise_of_a_policy_that_does_not_promise_it() -> None:
    evidence = in_polls(*([Seen(number)] for number in range(20)))
    assert any("capacity" in promised for promised in broken(evidence, [20, 0]))
    unpromised = promises(evidence, [20, 0], conserves_work=False)[-1]
    assert unpromised == Promise("over 95% of capacity used in a backlog", "5.0%, as this policy may", None)


def test_order_counts_each_step_back() -> None:
    order = Order()
    for number in (0, 2, 1, 3, 3):
        order.note("lane", number)
    assert (order.violations, len(order)) == (2, 1)


def test_percentiles_are_values_that_occurred() -> None:
    assert [percentile(range(1, 101), percent) for percent in (0, 50, 99, 100)] == [1, 51, 100, 100]
