"""Shares of a rate by demand: all together never above it, whatever happens to messages, and near it under skew."""

from hypothesis import given, settings
from hypothesis import strategies as st

from headway.core.rate_loans import LEASE, LoanMessage, Loans, Need

SMALL = 1e-9
PARTITIONS = 12


@settings(max_examples=settings().max_examples, deadline=None)
@given(st.data())
def test_members_never_have_more_than_the_whole_rate_together(data: st.DataObject) -> None:
    members = 4
    owners = data.draw(st.lists(st.integers(0, members - 1), min_size=PARTITIONS, max_size=PARTITIONS))
    books = [Loans(str(index)) for index in range(members)]
    skew = [data.draw(st.sampled_from([0.0, -500.0, 7000.0])) for _ in range(members)]  # each has a clock of its own
    under_way: list[tuple[int, LoanMessage]] = []
    now = 100.0

    def rebase(index: int) -> None:
        books[index].rebase(owners.count(index) / PARTITIONS, now + skew[index])

    for index in range(members):
        rebase(index)
    for _ in range(data.draw(st.integers(1, 60))):
        match data.draw(
            st.sampled_from(["wait", "turn", "turn", "turn", "deliver", "deliver", "deliver", "move", "die"])
        ):
            case "wait":
                now += data.draw(st.sampled_from([0.01, 0.5, LEASE / 2, LEASE, 10.0]))
            case "turn":
                index = data.draw(st.integers(0, members - 1))
                wanted = data.draw(st.sampled_from([0.0, 0.1, 0.4, 1.0]))
                needs = {name: Need(wanted / 2, wanted) for name in data.draw(st.sets(st.sampled_from(["", "a"])))}
                if message := books[index].next_message(needs, now + skew[index]):
                    under_way += [(other, message) for other in range(members)]
            case "deliver" if under_way:
                which = data.draw(st.integers(0, len(under_way) - 1))
                to, message = under_way[which]
                books[to].receive(message, now + skew[to])
                if data.draw(st.booleans()):  # or it comes again
                    under_way.pop(which)
            case "move":
                partition, owner = data.draw(st.integers(0, PARTITIONS - 1)), data.draw(st.integers(0, members - 1))
                before, owners[partition] = owners[partition], owner
                rebase(before)
                rebase(owner)
            case "die":
                index = data.draw(st.integers(0, members - 1))
                books[index] = Loans(f"{index} again {now}")  # its loans are still out
                now += LEASE  # its partitions are taken from it before it is back, by the session's time-out
                rebase(index)
        for name in ("", "a"):
            together = sum(book.share(name, now + skew[index]) for index, book in enumerate(books))
            assert together <= 1 + SMALL


def run(needs: list[dict[str, Need]], seconds: float) -> list[Loans]:
    """Members with an equal base each, whose messages come after a moment."""
    books = [Loans(str(index)) for index in range(len(needs))]
    for book in books:
        book.rebase(1 / len(needs), 0.0)
    for step in range(int(seconds * 2)):
        now = LEASE + step * 0.5
        said = [message for book, need in zip(books, needs, strict=True) if (message := book.next_message(need, now))]
        for message in said:
            for book in books:
                book.receive(message, now + 0.1)
    return books


def test_what_others_leave_goes_to_those_who_need_it() -> None:
    until = LEASE + 9.9
    books = run([{"": Need(0.25, 1.0)}, {}, {}, {}], 10)
    assert books[0].share("", until) >= 0.95
    books = run([{"": Need(0.25, 1.0)}, {"": Need(0.25, 1.0)}, {"": Need(0.1, 0.12)}, {}], 10)
    shares = [book.share("", until) for book in books]
    assert sum(shares[:2]) + 0.12 >= 0.95
    assert abs(shares[0] - shares[1]) < 0.05
    assert shares[2] >= 0.12


def test_each_name_is_lent_for_itself_and_comes_back_when_its_lender_needs_it() -> None:
    books = run([{"a": Need(0.25, 1.0)}, {"b": Need(0.25, 1.0)}], 10)
    until = LEASE + 9.9
    assert books[0].share("a", until) >= 0.95
    assert books[1].share("b", until) >= 0.95
    for step in range(6):
        books[0].next_message({"b": Need(0.0, 1.0)}, until + step * 0.5)
    assert books[0].share("b", until + 3) == 0.5


def test_a_member_without_needs_says_nothing() -> None:
    book = Loans("a")
    book.rebase(0.5, 0.0)
    assert book.next_message({"": Need(0.4, 0.5)}, LEASE) is None
    assert book.next_change(LEASE) is None
