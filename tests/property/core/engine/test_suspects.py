"""The ledger of deaths beside a fleet in miniature: whatever kills is set aside, and whatever does not is done."""

from hypothesis import given
from hypothesis import strategies as st

from headway.core.engine.suspects import MOST_DEATHS, RecordId, RunningAttempt, Suspect, Suspects, decide
from headway.core.retry import Again, GiveUp, Retries, fixed_backoff
from headway.errors import RetriableError

RECORDS = st.integers(1, 25)


def record(number: int) -> RecordId:
    return RecordId("orders", number % 3, number, 0)


class Fleet:
    """Runs records in companies of up to so many until each is done or a dead letter; suspects run alone."""

    def __init__(self, count: int, killers: set[int], company: int, retries: Retries, data: st.DataObject) -> None:
        self.killers = {record(number) for number in killers}
        self.left = [record(number) for number in range(count)]
        self.done: set[RecordId] = set()
        self.letters: dict[RecordId, Suspect] = {}
        self.deaths = 0
        self._company = company
        self._retries = retries
        self._data = data
        self._ledger = Suspects()
        self._uncommitted: list[RecordId] = []

    def run(self) -> None:
        while self.left:
            running = self._pick()
            if self.killers & set(running):
                self._die(running)
            else:
                for each in running:
                    self.left.remove(each)
                    self.done.add(each)
                    self._uncommitted.append(each)

    def _pick(self) -> list[RecordId]:
        known = {suspect.record for suspect in self._ledger.all()}
        first = self._data.draw(st.sampled_from(self.left))
        if first in known:
            return [first]
        size = self._data.draw(st.integers(1, self._company))
        return [first, *(each for each in self.left if each not in known | {first})][:size]

    def _die(self, running: list[RecordId]) -> None:
        self.deaths += 1
        known = {suspect.record: suspect for suspect in self._ledger.all()}
        attempts = [RunningAttempt(each, known[each].attempts + 1 if each in known else 1) for each in running]
        for suspect in self._ledger.died(attempts, "was ended by signal 9 (SIGKILL)", float(self.deaths)):
            verdict = decide(self._retries, None, suspect.attempts, suspect.error(), now=0.0, random_number=0.0)
            if isinstance(verdict, GiveUp):
                self.left.remove(suspect.record)
                self.letters[suspect.record] = suspect
        # What was done and is not committed comes again.
        again = self._data.draw(st.sets(st.sampled_from(self._uncommitted))) if self._uncommitted else set()
        self.left += again - set(self.left)
        self._uncommitted.clear()


@given(st.data(), RECORDS, st.integers(1, 8), st.none() | st.integers(1, 5))
def test_exactly_those_that_kill_become_dead_letters_after_a_bounded_number_of_deaths(
    data: st.DataObject, count: int, company: int, max_attempts: int | None
) -> None:
    killers = data.draw(st.sets(st.integers(0, count - 1), max_size=4))
    fleet = Fleet(count, killers, company, Retries(fixed_backoff(0), max_attempts), data)
    fleet.run()

    assert fleet.letters.keys() == fleet.killers
    assert fleet.done == {record(number) for number in range(count)} - fleet.killers
    bound = max_attempts or MOST_DEATHS
    assert all(bound <= each.attempts <= max(bound, 2) for each in fleet.letters.values())
    assert fleet.deaths <= max(bound, 2) * len(killers)


@given(st.integers(1, 50), st.integers(1, 5), st.booleans())
def test_no_number_of_deaths_in_company_makes_a_dead_letter(deaths: int, max_attempts: int, fatal: bool) -> None:
    """Not even where the retries say that such an error is fatal."""
    ledger = Suspects()
    retries = Retries(fixed_backoff(0), max_attempts, fatal=(Exception,) if fatal else ())
    for _ in range(deaths):
        news = ledger.died([RunningAttempt(record(0), 1), RunningAttempt(record(1), 1)], "ended", 0.0)
        assert all(
            isinstance(decide(retries, None, each.attempts, each.error(), 0.0, 0.0), Again) and not each.alone
            for each in news
        )
    assert [each.attempts for each in ledger.all()] == [deaths] * 2  # each counts, whatever attempt a member knew of


@given(st.lists(st.sets(st.integers(0, 40), min_size=1, max_size=6), max_size=30), st.integers(6, 20))
def test_the_ledger_keeps_the_newest_and_never_more_than_it_may(companies: list[set[int]], most: int) -> None:
    ledger = Suspects(most)
    for company in companies:
        ledger.died([RunningAttempt(record(number), 1) for number in company], "ended", 0.0)
        known = {suspect.record for suspect in ledger.all()}
        assert len(known) <= most
        assert known >= {record(number) for number in company}


@given(st.lists(st.sampled_from("ab"), max_size=20))
def test_ledgers_that_hear_of_each_other_agree(deaths: list[str]) -> None:
    ledgers = {name: Suspects() for name in "ab"}
    for at, name in enumerate(deaths):
        news = ledgers[name].died([RunningAttempt(record(0), 1)], "ended", float(at))
        other = ledgers["b" if name == "a" else "a"]
        assert other.note(news) == news
        assert other.note(news) == []
    assert ledgers["a"].all() == ledgers["b"].all()


def test_attempts_that_do_not_count_do_not_make_a_dead_letter_sooner() -> None:
    ledger = Suspects()
    [suspect] = ledger.died([RunningAttempt(record(0), number=3, untried=2)], "ended", 0.0)
    retries = Retries(fixed_backoff(0), max_attempts=2)
    assert isinstance(decide(retries, None, 3, suspect.error(), 0.0, 0.0, untried=suspect.untried), Again)
    failure = suspect.failure(0.0)
    assert failure is not None
    assert (failure.attempts, failure.untried) == (2, 2)


def test_an_error_that_asks_for_another_attempt_is_none_of_ours() -> None:
    assert isinstance(Retries().decide(None, 100, RetriableError(), 0.0, 0.0), Again)
