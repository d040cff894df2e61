"""What the pages show, without a browser and without a broker."""

import re
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from html.parser import HTMLParser

import pytest
from starlette.testclient import TestClient

from headway.dashboard.access import Access
from headway.dashboard.application import watching
from headway.inspection.snapshot import Snapshot
from tests.unit.dashboard.scene import HOSTILE, NOW, Shown, later, partition, queue, scene

PAGES = [
    "/",
    "/?topic=orders&group=billing&span=24h",
    "/queue?topic=orders&group=billing",
    "/queue?topic=orders&group=billing&level=0&order=number",
    "/partition?topic=orders&group=billing&level=1&partition=0",
    "/members",
    "/dead",
    "/schedules",
    "/rules?group=<b>&where=<b>",
    "/action?id=none",
    "/queue?topic=none",
    "/partition?topic=orders&group=billing&partition=99999999999999999999999",
]

Open = Callable[..., TestClient]


@pytest.fixture
def opened() -> Iterator[Open]:
    """Opens dashboards that show snapshots."""
    dashboards = []

    def open_(*snapshots: Snapshot, allow_actions: bool = False) -> TestClient:
        page = watching({}, Access(allow_actions=allow_actions), Shown(*snapshots))
        dashboards.append(page)
        browser = TestClient(page, base_url="http://localhost")
        deadline = time.monotonic() + 10
        while "being read for the first time" in browser.get("/").text:
            assert time.monotonic() < deadline
        return browser

    yield open_
    for each in dashboards:
        each.close()


class Page(HTMLParser):
    """The elements of a page, as a browser sees them."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]


@pytest.mark.parametrize("path", PAGES)
def test_markup_in_keys_headers_names_and_errors_is_harmless(opened: Open, path: str) -> None:
    hostile = queue([partition(key=HOSTILE.encode())])
    page = Page(opened(scene(hostile), allow_actions=True).get(path).text)
    assert [each for each in page.all("script") if "src" not in each] == []
    assert page.all("img") == page.all("b") == page.all("iframe") == []
    attributes = [name for _, found in page.tags for name in found]
    assert [each for each in attributes if each.startswith("on") or each == "style"] == []
    assert [each for each in page.all("script") if not (each["src"] or "").startswith("/assets/")] == []


@pytest.mark.parametrize("path", PAGES)
def test_a_page_can_be_used_with_a_screen_reader(opened: Open, path: str) -> None:
    page = Page(opened(scene()).get(path).text)
    assert page.all("html")[0]["lang"] == "en"
    assert len(page.all("h1")) == len(page.all("main")) == len(page.all("header")) == 1
    assert len(page.all("caption")) == len(page.all("table"))
    assert all(each.get("scope") for each in page.all("th"))
    assert all(each.get("aria-label") for each in page.all("nav"))
    assert all(each.get("aria-label") or each.get("aria-hidden") for each in page.all("svg"))
    ids = [found["id"] for _, found in page.tags if "id" in found]
    assert len(ids) == len(set(ids))
    assert {found["aria-labelledby"] for _, found in page.tags if "aria-labelledby" in found} <= set(ids)


def test_the_overview_names_the_stuck_record_and_what_hangs_behind_it(opened: Open) -> None:
    text = Page(opened(scene()).get("/").text).text
    assert "orders-1, partition 0: offset 100 has been in the way for 4 min, after 3 failed attempts" in text
    assert "5 records behind it are not done. A rule holds records of this group." in text


def test_a_record_that_is_lowest_for_a_moment_is_not_called_stuck(opened: Open) -> None:
    calm = queue([partition(stuck_for=2.0)])
    text = Page(opened(scene(calm)).get("/").text).text
    assert "offset 100" not in text
    assert "stuck" not in text


def test_the_page_of_a_partition_does_not_show_each_record_that_is_lowest_for_a_moment(opened: Open) -> None:
    calm = partition(stuck_for=2.0)
    assert calm.stuck is not None
    tried_first = replace(calm, tried={}, stuck=replace(calm.stuck, attempts=0))
    path = "/partition?topic=orders&group=billing&level=1&partition=0"
    assert "is in the way" not in opened(scene(queue([tried_first]))).get(path).text
    assert "is tried again" in opened(scene(queue([calm]))).get(path).text


def test_the_partition_page_has_the_record_with_its_error_and_the_drawn_map(opened: Open) -> None:
    page = Page(opened(scene()).get("/partition?topic=orders&group=billing&level=1&partition=0").text)
    for part in ("customer 7", "TimeoutError: no answer of the bank", "2 have the same key", "Failed attempts"):
        assert part in page.text
    kinds = [(each.get("class") or "").removeprefix("cell ") for each in page.all("rect")]
    assert kinds == ["stuck", *["done"] * 4, *["open"] * 5]


def test_values_are_hidden_until_asked_for(opened: Open) -> None:
    page = Page(opened(scene()).get("/partition?topic=orders&group=billing&level=1&partition=0").text)
    assert any((each.get("href") or "").startswith("/record?") for each in page.all("a"))
    assert page.all("pre") == []


def test_buttons_are_there_only_if_actions_are_allowed(opened: Open) -> None:
    read_only = Page(opened(scene()).get("/dead").text)
    assert read_only.all("form") == []
    assert "read-only" in read_only.text
    allowed = Page(opened(scene(), allow_actions=True).get("/dead").text)
    assert [each["action"] for each in allowed.all("form")] == ["/dead/send-again"]


def test_a_page_that_misses_its_queue_updates_itself_too(opened: Open) -> None:
    html = opened(scene()).get("/partition?topic=new&group=billing").text
    assert "There is no such queue" in html
    assert 'hx-get="/partition?topic=new&amp;group=billing" hx-trigger="snapshot from:body"' in html


def test_rules_are_shown_with_who_why_and_until_when_even_if_this_version_does_not_know_them(opened: Open) -> None:
    browser = opened(scene(), allow_actions=True)
    for path in ("/rules", "/"):
        text = Page(browser.get(path).text).text
        assert "hold" in text
        assert "not known" in text
    page = Page(browser.get("/rules?group=billing&where=tenant%20%3D%20acme").text)
    values = {each["name"]: each.get("value") for each in page.all("input")}
    assert (values["group"], values["where"]) == ("billing", "tenant = acme")
    stuck = Page(browser.get("/partition?topic=orders&group=billing&level=1&partition=0").text)
    assert "Rule r-1" in stuck.text
    assert "/rules?group=billing&where=key+%3D+%27customer+7%27#hold" in [each.get("href") for each in stuck.all("a")]
    assert "Hold" not in Page(opened(scene()).get("/rules").text).text


def test_htmx_gets_only_the_part_that_changes(opened: Open) -> None:
    browser = opened(scene())
    part = browser.get("/", headers={"HX-Request": "true"}).text
    assert "<html" not in part
    assert "Needs attention" in part


def test_three_hundred_partitions_at_five_levels_stay_a_small_page(opened: Open) -> None:
    many = queue([partition(number, stuck_for=None if number % 7 else 100.0) for number in range(300)], levels=5)
    browser = opened(scene(many))
    for path in ("/", "/queue?topic=orders&group=billing&level=4"):
        began = time.process_time()
        html = browser.get(path).text
        assert time.process_time() - began < 1.0
        assert len(html) < 200_000
    assert len(re.findall(r'<th scope="row"><a href="/partition', html)) == 50


def test_curves_are_kept_and_later_points_can_be_asked_for(opened: Open) -> None:
    first = scene()
    shown = Shown(first, later(first, 2.0), later(first, 4.0))
    page = watching({}, Access(), shown)
    with page:
        browser = TestClient(page, base_url="http://localhost")
        query = "/curves.json?topic=orders&group=billing"

        def times(after: float = 0.0) -> list[float]:
            found: list[float] = browser.get(f"{query}&after={after}").json()["times"]
            return found

        for count in (1, 2, 3):
            deadline = time.monotonic() + 10
            while len(times()) < count:
                assert time.monotonic() < deadline
            if count < 3:
                shown.next()
        assert times(NOW) == [NOW + 2, NOW + 4]
        levels = browser.get(query).json()["levels"]
    assert [each["level"] for each in levels] == [1, 0]
    assert levels[0]["done"] == [10.0] * 3
    assert browser.get(query + "&after=nan&span=x").status_code in {200, 502}


@pytest.mark.parametrize(
    "query", ["after=x", "after=nan", "after=inf", "span=<b>", "page=-1", "level=%00", "partition=x"]
)
def test_queries_that_make_no_sense_raise_no_error(opened: Open, query: str) -> None:
    browser = opened(scene())
    for path in ("/", "/queue", "/partition", "/curves.json", "/members", "/record"):
        assert browser.get(f"{path}?topic=orders&group=billing&{query}").status_code < 500
