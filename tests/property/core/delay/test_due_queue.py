"""What waits in memory, against a plain sorted list."""

from hypothesis import given
from hypothesis import strategies as st

from headway.core.delay.delay_topic_window import DelayTopicWindow, Fetched
from headway.core.delay.due_queue import DueQueue, Held, Mark
from headway.core.delay.ladder import MEMORY
from headway.core.delay.schedule import Schedule
from headway.core.offsets.offset_map import OffsetMap

DUES = st.integers(min_value=0, max_value=20)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), DUES),
        st.tuples(st.just("take"), DUES),
        st.tuples(st.just("remove"), st.integers(min_value=0, max_value=50)),
    ),
    max_size=60,
)


@given(STEPS)
def test_the_first_to_be_due_is_taken_next_however_they_came_and_whatever_was_removed(
    steps: list[tuple[str, int]],
) -> None:
    delay_topic = DelayTopicWindow(MEMORY, OffsetMap(0), 1_000_000)
    waiting = DueQueue(Mark(), delay_topic)
    there: list[tuple[int, int]] = []  # due and offset
    for number, (step, value) in enumerate(steps):
        if step == "add":
            schedule = Schedule(f"{number}", value, number, 0, "target")
            delay_topic.progress.receive([number])
            waiting.add(Held(schedule, Fetched(number, 0, 10, None, schedule), delay_topic))
            there.append((value, number))
        elif step == "take":
            due = [each for each in there if each[0] <= value]
            held = waiting.take(value)
            assert (held and (held.schedule.due, held.fetched.offset)) == min(due, default=None)
            if held:
                there.remove(min(due))
        elif there:
            _, offset = gone = there.pop(value % len(there))
            held = waiting.get(f"{offset}")
            assert held
            assert (held.schedule.due, held.fetched.offset) == gone
            waiting.remove(held)
        assert len(waiting) == len(there)
        assert waiting.bytes == 10 * len(there)
        assert waiting.first_due == min((due for due, _ in there), default=None)
        assert delay_topic.holds == delay_topic.progress.incomplete_count == len(there)
