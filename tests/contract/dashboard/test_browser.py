"""The dashboard in a real browser, on a real Kafka under load."""

import json
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest
from click.testing import CliRunner
from playwright.sync_api import Browser, Page, sync_playwright

from headway.cli.commands.offsets import offsets
from headway.core.retry import Retries, fixed_backoff
from headway.parallel.consumer import ParallelConsumer
from headway.priority.producer import Producer
from tests.contract.conftest import Cluster
from tests.contract.dashboard.served import browser_path, served, until

HOSTILE = "<script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">"
STUCK = "customer 7"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """A headless Chromium of the machine's own."""
    path = browser_path()
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield chromium
        chromium.close()


class Visit:
    """A page of the dashboard in the browser, which notes all that its console says."""

    def __init__(self, browser: Browser, address: str, **options: Any) -> None:
        self.page: Page = browser.new_page(**options)
        self.page.set_default_timeout(90_000)  # on a busy machine Kafka takes its time
        self.address = address
        self.problems: list[str] = []
        self.page.on("console", lambda message: self.problems.append(message.text))
        self.page.on("pageerror", lambda error: self.problems.append(str(error)))

    def open(self, path: str) -> Page:
        self.page.goto(self.address + path)
        return self.page

    def figure(self, name: str, within: str = "body") -> int:
        """Return a number that the page shows."""
        text = self.page.locator(f'{within} [data-figure="{name}"]').first.inner_text()
        return int(text.replace(",", ""))


class Load:
    """A queue with a stuck record and hostile texts, which is read by a parallel consumer while more is sent."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.topic = self.group = cluster.topic()
        self.dead = f"{self.topic}-dead"
        cluster.create_topics([self.dead])
        self.release, self.stop = threading.Event(), threading.Event()
        self.waits = threading.Event()

    def handle(self, record: Any) -> None:
        if record.value == b"stuck":
            self.waits.set()
            self.release.wait(600)  # `running` sets it at the end
        if record.value == b"bad":
            raise ValueError(f"no address for {HOSTILE}")
        time.sleep(0.002)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Read and send during the `with` block."""
        config = self.cluster.consumer_config(self.group) | {"auto.commit.interval.ms": 200, "client.id": HOSTILE[:50]}
        config.pop("enable.auto.commit"), config.pop("max.poll.records")
        retries = Retries(max_attempts=2, backoff=fixed_backoff(0.05))
        sender = threading.Thread(target=self.send)
        with ParallelConsumer(config, max_concurrency=8, dead_letter_topic=self.dead, retries=retries) as consumer:
            consumer.subscribe(self.topic)
            reader = threading.Thread(target=consumer.run, args=(self.handle,))
            reader.start()
            sender.start()
            try:
                assert self.waits.wait(60)
                yield
            finally:
                self.stop.set()
                self.release.set()
                sender.join(30)
                consumer.stop()
                reader.join(30)

    def send(self) -> None:
        with Producer(self.cluster.config({"levels": 3, "linger.ms": 5})) as producer:
            producer.send(self.topic, b"stuck", STUCK, level=1, partition=2, headers=[(HOSTILE, HOSTILE.encode())])
            for number in range(3):
                producer.send(self.topic, b"bad", HOSTILE, level=2, partition=number)
            while not self.stop.wait(0.02):
                for level in range(3):
                    producer.send(self.topic, b"good", f"customer {time.time_ns() % 50}", level=level)
                    producer.send(self.topic, b"behind", STUCK, level=1, partition=2)


@pytest.fixture
def load(kafka_cluster: Cluster) -> Load:
    return Load(kafka_cluster)


def asked_of_kafka(load: Load) -> dict[str, Any]:
    """Return what `headway offsets show` says of the partition with the stuck record."""
    servers = load.cluster.bootstrap_servers
    words = ["show", load.group, "--levels", "3", "--json", "-b", servers]
    lines = CliRunner().invoke(offsets, words, catch_exceptions=False).stdout.splitlines()
    partitions = [each for line in lines for each in json.loads(line)["partitions"]]
    return next(each for each in partitions if each["topic"] == f"{load.topic}-1" and each["partition"] == 2)


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_page_under_load_shows_the_figures_of_the_broker_and_the_stuck_record_where_it_is(
    load: Load, browser: Browser
) -> None:
    config = load.cluster.config({})
    with load.running(), served(config, groups=[load.group]) as address:
        visit = Visit(browser, address)
        page = visit.open("/")
        until(lambda: page.reload() and load.topic in page.inner_text("main"))
        visit.open(f"/partition?topic={load.topic}&group={load.group}&level=1&partition=2")
        until(lambda: page.locator("#stuck").count())

        # It is live: the figure changes without loading the page again.
        first = visit.figure("not-done", "[aria-labelledby=map]")
        until(lambda: visit.figure("not-done", "[aria-labelledby=map]") != first)
        until(lambda: page.locator('[data-figure="stuck-key"]').inner_text() == STUCK)
        assert page.locator("svg.map rect.stuck").count() == 1
        assert page.locator("svg.map g").first.locator("rect.stuck").count() == 1
        assert HOSTILE in page.locator("table.headers").inner_text()

        # While nothing moves, the page has the figures of the broker.
        load.stop.set()
        until(lambda: figures_agree(visit, load))
        overview = visit.open(f"/?topic={load.topic}&group={load.group}")
        until(lambda: overview.locator("canvas").count() == 4)
        text = overview.locator(".attention").inner_text()
        until(lambda: f"{load.topic}-1, partition 2: offset 0" in overview.locator(".attention").inner_text())
        assert "dead letters" in text

        # Markup in keys, headers and errors does nothing, and the content policy has had nothing to refuse.
        letters = visit.open(f"/dead/letters?topic={load.dead}")
        assert HOSTILE in letters.locator("table").inner_text()
        visit.open("/members")
        assert page.title().endswith("· Headway")
        assert page.locator("img").count() == 0
        assert visit.problems == []


def figures_agree(visit: Visit, load: Load) -> bool:
    known = asked_of_kafka(load)
    behind = known["log_end"] - known["highest_done"] - 1 if known["highest_done"] is not None else 0
    shown = visit.figure("not-done", "[aria-labelledby=map]")
    committed = visit.figure("committed")
    return (shown, committed) == (known["not_done"] + behind, known["committed"])


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_letter_is_sent_again_with_the_buttons_and_arrives_once(load: Load, browser: Browser) -> None:
    with load.running(), served(load.cluster.config({}), groups=[load.group], allow_actions=True) as address:
        visit = Visit(browser, address)
        page = visit.open(f"/dead/letters?topic={load.dead}")
        until(lambda: page.reload() and page.locator('input[name="place"]').count() == 3)
        before = open_letters(visit, load)
        page.locator('input[name="place"]').first.check()
        page.locator('input[name="place"]').nth(1).check()
        page.get_by_role("button", name="Send the selected again").click()
        page.get_by_role("button", name="Yes, do it").click()
        until(lambda: "2 dead letters sent again" in page.locator('[data-figure="progress"]').inner_text())
        # They fail again, so two new letters come, and two are settled.
        until(lambda: open_letters(visit, load) == before)
        page = visit.open(f"/dead/letters?topic={load.dead}&settled=1")
        until(lambda: page.reload() and page.locator("tbody tr").count() == 5)
        assert page.locator("tbody .chip").count() == 2
        assert visit.problems == []


def has_been_read(page: Page) -> bool:
    page.reload()
    text = page.inner_text("main")
    return "for the first time" not in text and "Not found" not in text


def open_letters(visit: Visit, load: Load) -> int:
    page = visit.open(f"/dead/letters?topic={load.dead}")
    found = re.match(r"[\d,]+", page.locator("#letters").inner_text())
    assert found
    return int(found[0])


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize(("width", "height"), [(390, 844), (1280, 900)])
def test_pages_fit_their_screen_and_the_keyboard(
    load: Load, browser: Browser, scheme: Any, width: int, height: int
) -> None:
    with load.running(), served(load.cluster.config({}), groups=[load.group], allow_actions=True) as address:
        visit = Visit(browser, address, viewport={"width": width, "height": height}, color_scheme=scheme)
        paths = ["/", "/members", "/dead", "/schedules", f"/dead/letters?topic={load.dead}"]
        paths += [
            f"/{name}?topic={load.topic}&group={load.group}&level=1&partition=2" for name in ("queue", "partition")
        ]
        for path in paths:
            page = visit.open(path)
            until(partial(has_been_read, page))
            assert page.evaluate("document.documentElement.scrollWidth") <= width, path
            assert page.evaluate(CONTRAST) == [], path
            page.keyboard.press("Tab")
            assert page.evaluate("document.activeElement.textContent") == "Skip to the content"


# Returns the texts with less contrast to their background than WCAG's level AA asks for.
CONTRAST = """
() => {
  const channel = (v) => ((v /= 255) <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
  const parse = (text) => text.match(/[\\d.]+/g).map(Number);
  const light = ([r, g, b]) => 0.2126 * channel(r) + 0.7152 * channel(g) + 0.0722 * channel(b);
  const behind = (element) => {
    for (let each = element; each; each = each.parentElement) {
      const colour = parse(getComputedStyle(each).backgroundColor);
      if (colour.length < 4 || colour[3] === 1) return colour;
    }
    return [255, 255, 255];
  };
  const poor = [];
  for (const element of document.querySelectorAll("body *")) {
    const own = [...element.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim());
    if (!own || element.closest("svg, .plot, .skip, .hidden, canvas") || !element.checkVisibility()) continue;
    const [a, b] = [light(parse(getComputedStyle(element).color)), light(behind(element))];
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < 4.5) poor.push(element.textContent.trim().slice(0, 40) + ": " + ratio.toFixed(2));
  }
  return [...new Set(poor)];
}
"""
