"""How long closing may take."""

from headway.kafka.closing import counting_down


def test_a_time_out_is_had_once() -> None:
    left = counting_down(0.01)
    while before := left():
        assert before <= 0.01
    assert left() == 0.0


def test_no_time_out_has_no_end() -> None:
    assert counting_down(None)() is None
