"""How long closing may take."""

from headway.runtime.lifecycle import time_left_of


def test_a_time_out_is_had_once() -> None:
    left = time_left_of(0.01)
    while before := left():
        assert before <= 0.01
    assert left() == 0.0


def test_no_time_out_has_no_end() -> None:
    assert time_left_of(None)() is None
