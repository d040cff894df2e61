"""Whatever a page showed before, an update shows exactly what the server has sent, in a real browser."""

import random
from collections.abc import Iterator
from dataclasses import replace

import pytest
from playwright.sync_api import Playwright, Route, sync_playwright
from starlette.testclient import TestClient

from headway.core.offsets.offset_map import OffsetMap
from headway.core.offsets.trailer import Tried
from headway.dashboard.access import Access
from headway.dashboard.application import watching
from headway.inspection.snapshot import PartitionStatus, SeenChange, Snapshot
from tests.contract.dashboard.served import browser_path, until
from tests.unit.dashboard.scene import NOW, Shown, later, partition, queue, scene

HOST = "http://localhost"
PATHS = [
    "/",
    "/queue?topic=orders&group=billing&level=0",
    "/partition?topic=orders&group=billing&level=0&partition=0",
    "/members",
    "/dead",
    "/schedules",
    "/rules",
]


def some_partition(number: int, chance: random.Random) -> PartitionStatus:
    found = partition(number, stuck_for=chance.choice([None, 5.0, 240.0]))
    if chance.random() < 0.5:
        found = replace(found, tried={100 + each: Tried(2) for each in range(chance.randint(0, 6))})
    if chance.random() < 0.2:
        found = replace(found, reason="The offset map cannot be read.")
    if chance.random() < 0.2:
        found = replace(found, log_end=100, not_done=0, stuck=None, offset_map=OffsetMap(100))
    return found


def some_snapshot(chance: random.Random) -> Snapshot:
    """A snapshot in which sections of pages come and go."""
    queues = [
        replace(queue([some_partition(each, chance) for each in range(chance.randint(1, 3))]), topic=topic)
        for topic in chance.sample(["bills", "mails", "tasks"], chance.randint(0, 3))
    ]
    if chance.random() < 0.9:
        queues.insert(0, queue([some_partition(0, chance)], levels=chance.randint(1, 3)))
    full = scene(*queues)
    return replace(
        full,
        queues=tuple(queues),
        notes=full.notes * chance.randint(0, 2),
        members=full.members[: chance.randint(0, 2)],
        dead_letters=full.dead_letters * chance.randint(0, 1),
        schedulers=full.schedulers * chance.randint(0, 1),
        changes=tuple(SeenChange(NOW, f"change {each}") for each in range(chance.randint(0, 5))),
    )


def rendered(snapshot: Snapshot, path: str) -> tuple[str, str]:
    """The whole page, and the part that an update fetches."""
    with watching({}, Access(allow_actions=True), Shown(snapshot)) as page:
        browser = TestClient(page, base_url=HOST)
        until(lambda: "being read for the first time" not in browser.get("/").text)
        return browser.get(path).text, browser.get(path, headers={"HX-Request": "true"}).text


# Compares the live part of the page with HTML. Curves have a life of their own.
DIFFERENCE = """
(html) => {
  const wanted = document.createElement("template");
  wanted.innerHTML = html;
  const text = (node) => {
    if (node.nodeType === Node.TEXT_NODE) return node.nodeValue.replace(/\\s+/g, " ").trim();
    if (node.nodeType !== Node.ELEMENT_NODE || node.matches("[hx-morph-skip]")) return "";
    const attributes = [...node.attributes].map((each) => `${each.name}=${each.value}`).sort();
    return `<${node.tagName} ${attributes}>${[...node.childNodes].map(text).join("")}</>`;
  };
  const all = (root) => [...root.childNodes].map(text).join("");
  const [want, have] = [all(wanted.content), all(document.getElementById("live"))];
  return want === have ? null : { want, have };
}
"""


class Updated:
    """A page in a browser that gets what `pages` has: for each page the whole of it, and the part for an update."""

    def __init__(self, playwright: Playwright, path: str, pages: list[tuple[str, str]]) -> None:
        self.pages = pages
        self.latest = 0
        self.problems: list[str] = []
        self._path = path
        self._assets = TestClient(watching({}, Access(), Shown(scene())), base_url=HOST)
        self._chromium = playwright.chromium.launch(executable_path=browser_path(), args=["--no-sandbox"])
        self.page = self._chromium.new_page()
        self.page.on("pageerror", lambda error: self.problems.append(str(error)))
        self.page.route("**/*", self._answer)
        self.page.goto(HOST + path)
        self.page.evaluate("window.swaps = 0; document.body.addEventListener('htmx:after:swap', () => window.swaps++)")

    def _answer(self, route: Route) -> None:
        address = route.request.url.removeprefix(HOST)
        if address.startswith("/assets/"):
            found = self._assets.get(address)
            route.fulfill(headers=dict(found.headers), body=found.content)
        elif address == self._path:
            full, part = self.pages[self.latest]
            route.fulfill(content_type="text/html", body=part if "hx-request" in route.request.headers else full)
        else:
            route.fulfill(status=204)

    def update(self, to: int) -> None:
        """Update the page to one of the pages, and wait for that."""
        self.latest, before = to, self.page.evaluate("window.swaps")
        self.page.evaluate("htmx.trigger(document.body, 'snapshot')")
        until(lambda: self.page.evaluate("window.swaps") > before)


@pytest.fixture
def playwright() -> Iterator[Playwright]:
    """Starts browsers, and ends them."""
    browser_path()  # skips the test if there is none
    with sync_playwright() as found:
        yield found


@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.parametrize("path", PATHS)
def test_an_update_shows_what_the_server_has_sent_whatever_the_page_showed_before(
    playwright: Playwright, path: str
) -> None:
    chance = random.Random(path)
    updated = Updated(playwright, path, [rendered(some_snapshot(chance), path) for _ in range(12)])
    for _ in range(40):
        updated.update(chance.randrange(12))
        assert updated.page.evaluate(DIFFERENCE, updated.pages[updated.latest][1]) is None
    assert updated.problems == []


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_an_update_keeps_what_the_user_has_opened_and_typed(playwright: Playwright) -> None:
    shown = [rendered(later(scene(), seconds), "/schedules") for seconds in (0, 2)]
    schedules = Updated(playwright, "/schedules", shown)
    schedules.page.locator("summary").first.click()
    schedules.update(1)
    assert schedules.page.locator("details[open]").count() == 1
    rules = Updated(playwright, "/rules", [rendered(later(scene(), seconds), "/rules") for seconds in (0, 2)])
    rules.page.locator("#where").fill("key = a")
    rules.page.locator("#minutes").select_option("120")
    rules.update(1)
    assert (rules.page.input_value("#where"), rules.page.input_value("#minutes")) == ("key = a", "120")
