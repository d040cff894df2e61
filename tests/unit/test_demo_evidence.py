"""What the demo makes of what its consumer saw."""

from typing import Any, NamedTuple

from demo.evidence import Evidence, Order, Promise, percentile, promises


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


def evidence_of(*records: Seen, backlog: int = 0, capacity: int = 10, now_ms: int = 1_000) -> Evidence:
    evidence = Evidence(levels=2, records=10, capacity=capacity)
    evidence.note_poll(records, backlog, at=1.0, now_ms=now_ms)
    return evidence


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
    assert "each partition in the order of its offsets" in broken(evidence, [3, 0])


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


def test_urgent_records_that_wait_as_long_as_the_others_break_the_promise() -> None:
    evidence = evidence_of(Seen(0), Seen(1, level=1), now_ms=2_000)
    assert "what is urgent does not wait for what is not" in broken(evidence, [1, 1])


def test_a_poll_above_the_capacity_breaks_the_promise() -> None:
    evidence = evidence_of(Seen(0, offset=0), Seen(1, offset=1), capacity=1)
    assert "no poll returns more than max.poll.records" in broken(evidence, [2, 0])


def test_only_polls_under_backlog_count_for_the_capacity_used() -> None:
    evidence = evidence_of(Seen(0), backlog=2, capacity=2)
    evidence.note_poll([], backlog=1, at=2.0, now_ms=1_000)
    assert evidence.capacity_used == 0.5
    assert Evidence(1, 1, 1).capacity_used == 1.0


def test_capacity_that_idles_is_no_broken_promise_of_a_policy_that_does_not_promise_it() -> None:
    evidence = evidence_of(Seen(0), backlog=10)
    assert any("capacity" in promised for promised in broken(evidence, [1, 0]))
    unpromised = promises(evidence, [1, 0], conserves_work=False)[-1]
    assert unpromised == Promise("over 95% of the capacity used under backlog", "10.0%", None)


def test_order_counts_each_step_back() -> None:
    order = Order()
    for number in (0, 2, 1, 3, 3):
        order.note("lane", number)
    assert (order.violations, len(order)) == (2, 1)


def test_percentiles_are_values_that_occurred() -> None:
    assert [percentile(range(1, 101), percent) for percent in (0, 50, 99, 100)] == [1, 51, 100, 100]
