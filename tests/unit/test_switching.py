import sys
from contextlib import ExitStack

import pytest

from headway.parallel.switching import one_thread_more


def test_many_threads_switch_less_often_and_the_interval_is_the_users_own_again_when_they_have_ended() -> None:
    users = sys.getswitchinterval()
    with ExitStack() as hundred:
        for _ in range(100):
            hundred.enter_context(one_thread_more())
        assert sys.getswitchinterval() == users
        with ExitStack() as more:
            for _ in range(900):
                more.enter_context(one_thread_more())
            assert sys.getswitchinterval() == pytest.approx(0.05)
        assert sys.getswitchinterval() == users
    assert sys.getswitchinterval() == users
