"""The pause of the garbage collector."""

import gc

from headway.runtime.gc_pause import GcPause


def test_the_collector_runs_again_after_a_pause_that_an_interrupt_kept_from_ending() -> None:
    interrupted = GcPause()
    interrupted.__enter__()
    with GcPause():
        assert not gc.isenabled()
    assert gc.isenabled()


def test_a_collector_that_the_program_turned_off_stays_off() -> None:
    with GcPause():
        pass
    gc.disable()
    try:
        with GcPause():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()
