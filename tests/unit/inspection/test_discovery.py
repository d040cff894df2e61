"""Which groups are watched."""

from headway.core.offsets.offset_map import OffsetMap, encode
from headway.inspection.discovery import Discovery
from headway.kafka.reading.groups_reader import GroupReading

WITH_MAP = GroupReading((), {("orders", 0): (5, encode(OffsetMap(5, (1, 2))).encode())})
WITHOUT = GroupReading((), {("orders", 0): (5, b"")})
OF_ANOTHER_PROGRAM = GroupReading((), {("orders", 0): (5, b"checkpoint 7")})


def test_level_groups_are_watched_and_others_if_they_have_a_map() -> None:
    found = Discovery()
    found.list_groups(
        {"billing-0", "billing-1", "mails", "plain", "other", "headway-dead-x", "headway-delay"}, ["headway-delay"]
    )
    assert found.next_groups() == ["billing-0", "billing-1", "mails", "other", "plain"]
    readings = {"billing-0": WITHOUT, "mails": WITH_MAP, "plain": WITHOUT, "other": OF_ANOTHER_PROGRAM}
    assert list(found.examine(readings)) == ["billing-0", "mails"]
    assert found.next_groups() == ["billing-0", "billing-1", "mails"]
    assert found.notes == ["2 groups without an offset map or levels are not shown. Name a group to see it."]


def test_a_group_stays_watched_when_its_map_is_empty_again() -> None:
    found = Discovery()
    found.list_groups({"mails"}, [])
    found.next_groups()
    found.examine({"mails": WITH_MAP})
    found.list_groups({"mails"}, [])
    assert list(found.examine({"mails": WITHOUT})) == ["mails"]


def test_named_groups_are_watched_with_their_levels_and_no_others() -> None:
    found = Discovery(["billing", "later"])
    found.list_groups({"billing-0", "billing-1", "mails"}, [])
    assert found.next_groups() == ["billing-0", "billing-1", "later"]
    assert found.notes == ["Kafka has no group later yet. A group exists once it has members or commits."]
