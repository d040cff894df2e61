from headway.core.levels.level_buffer import LevelBuffer


def buffer_of(*batches: tuple[float, list[int]]) -> LevelBuffer[int]:
    buffer: LevelBuffer[int] = LevelBuffer()
    for arrived, records in batches:
        buffer.put(records, arrived)
    return buffer


def test_records_leave_in_order_across_batches() -> None:
    buffer = buffer_of((0.0, [1, 2, 3]), (1.0, [4, 5]))
    assert buffer.take(2) == [1, 2]
    assert buffer.take(2) == [3, 4]
    assert buffer.take(9) == [5]
    assert buffer.take(9) == []
    assert len(buffer) == 0


def test_a_batch_that_was_put_is_not_changed_by_taking() -> None:
    first, second = [1], [2]
    buffer = buffer_of((0.0, first), (0.0, second))
    assert buffer.take(2) == [1, 2]
    assert (first, second) == ([1], [2])


def test_the_age_of_what_is_left_of_a_batch_is_the_batchs() -> None:
    buffer = buffer_of((1.0, [1, 2]), (5.0, [3]))
    buffer.take(1)
    assert buffer.oldest() == 1.0
    assert buffer.count_from_before(5.0) == 1
    assert buffer.count_from_before(5.1) == 2
    assert buffer_of().oldest() is None


def test_discarding_keeps_the_rest_in_order_and_counts_it() -> None:
    buffer = buffer_of((0.0, [1, 2]), (1.0, [2, 2]), (2.0, [3, 2]))
    buffer.discard(lambda record: record == 2)
    assert list(buffer) == [1, 3]
    assert len(buffer) == 2
    assert buffer.take(5) == [1, 3]
