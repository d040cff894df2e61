"""The parts of headway.http that need no server."""

import asyncio
import datetime
import email.utils
import json
import math
import traceback
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from headway import FatalError, RetriableError
from headway.errors import ConfigError
from headway.http import HttpHandler, Request, Response
from headway.http.batch_failures import named_failures
from headway.http.handler import retry_after
from headway.http.hosts import Hosts

# Retry-After (RFC 9110 §10.2.3)


def http_date(seconds: float) -> str:
    return email.utils.formatdate(seconds, usegmt=True)


@given(st.integers(0, 10**12), st.floats(0, 1e10))
def test_seconds_are_seconds_whenever_they_are_read(seconds: int, now: float) -> None:
    assert retry_after({"Retry-After": f" {seconds} "}, now) == seconds


@given(st.integers(0, 10**10), st.integers(-(10**6), 10**6))
def test_a_date_is_so_far_away_as_it_says(now: int, away: int) -> None:
    then = max(0, now + away)
    assert retry_after({"Retry-After": http_date(then)}, now) == max(0, then - now)


@given(st.integers(10**9, 10**10), st.integers(0, 10**6), st.floats(0, 1e10))
def test_a_date_is_compared_with_the_clock_of_who_wrote_it(sent: int, away: int, our_clock: float) -> None:
    headers = {"Retry-After": http_date(sent + away), "Date": http_date(sent)}
    assert retry_after(headers, our_clock) == away


@pytest.mark.parametrize(
    "date", ["Sun, 06 Nov 1994 08:49:37 GMT", "Sunday, 06-Nov-94 08:49:37 GMT", "Sun Nov  6 08:49:37 1994"]
)
def test_all_three_forms_of_a_date_are_read(date: str) -> None:
    sent = datetime.datetime(1994, 11, 6, 8, 49, 30, tzinfo=datetime.UTC).timestamp()
    assert retry_after({"Retry-After": date}, sent) == 7


@pytest.mark.parametrize("value", ["", "soon", "-1", "1.5", "1e3", "+3", "٣", "1, 2", "Sun, 99 Nov 1994 08:49:37 GMT"])
def test_what_is_neither_seconds_nor_a_date_says_nothing(value: str) -> None:
    assert retry_after({"Retry-After": value}, now=0) is None


def test_without_the_header_nothing_is_said() -> None:
    assert retry_after({}, now=0) is None


@given(st.text(), st.text())
@example("9" * 5000, "")
@example("Sun, 06 Nov 1994 08:49:37 +9999999999", "Sun, 06 Nov 99999 08:49:37 GMT")
def test_nothing_that_a_server_writes_breaks_it(value: str, date: str) -> None:
    wait = retry_after({"Retry-After": value, "Date": date}, now=1e9)
    assert wait is None or (wait >= 0 and not math.isnan(wait))


# Hosts


class Clock:
    """A clock that is set."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


async def settle() -> None:
    """Let everything run that can."""
    for _ in range(10):
        await asyncio.sleep(0)


class Visit:
    """A request that has, or waits for, its place at a host."""

    def __init__(self, hosts: Hosts, host: str) -> None:
        self.in_place = False
        self.may_end = asyncio.Event()
        self.task = asyncio.create_task(self._run(hosts, host))

    async def _run(self, hosts: Hosts, host: str) -> None:
        async with hosts.slot(host):
            self.in_place = True
            await self.may_end.wait()
        self.in_place = False


async def test_a_host_has_no_more_requests_than_places_and_others_go_on() -> None:
    hosts = Hosts(per_host=2)
    slow = [Visit(hosts, "slow") for _ in range(4)]
    other = Visit(hosts, "other")
    await settle()
    assert [visit.in_place for visit in (*slow, other)] == [True, True, False, False, True]
    slow[1].may_end.set()
    await settle()
    assert [visit.in_place for visit in slow] == [True, False, True, False]
    for visit in (*slow, other):
        visit.may_end.set()
    await asyncio.gather(*(visit.task for visit in (*slow, other)))


async def test_a_host_that_asks_for_it_is_left_alone_so_long_and_others_are_not() -> None:
    clock = Clock()
    hosts = Hosts(per_host=2, clock=clock)
    hosts.pause("busy", 5)
    hosts.pause("busy", 3)  # the longer wait stands
    clock.now += 2
    with pytest.raises(RetriableError, match=r"busy has requested a pause that lasts another 3 s\.") as held:
        await Visit(hosts, "busy").task
    assert (held.value.retry_after, held.value.untried) == (3, True)
    free = Visit(hosts, "other")
    clock.now += 3
    again = Visit(hosts, "busy")
    await settle()
    assert free.in_place
    assert again.in_place
    for visit in (free, again):
        visit.may_end.set()
        await visit.task


async def test_what_waits_for_a_place_gives_up_when_the_host_is_to_be_left_alone() -> None:
    hosts = Hosts(per_host=1, clock=Clock())
    first, *waiting = (Visit(hosts, "busy") for _ in range(4))
    await settle()
    hosts.pause("busy", 5)
    first.may_end.set()
    await first.task
    outcomes = await asyncio.gather(*(visit.task for visit in waiting), return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [RetriableError] * 3


async def test_nothing_waits_for_a_place_at_a_host_that_is_to_be_left_alone() -> None:
    hosts = Hosts(per_host=1, clock=Clock())
    hanging = Visit(hosts, "busy")
    await settle()
    hosts.pause("busy", 5)
    late = Visit(hosts, "busy")
    await settle()
    assert isinstance(late.task.exception(), RetriableError)
    hanging.may_end.set()
    await hanging.task


async def test_a_cancelled_wait_leaves_its_place_to_the_next() -> None:
    hosts = Hosts(per_host=1)
    first, second, third = (Visit(hosts, "slow") for _ in range(3))
    await settle()
    second.task.cancel()
    first.may_end.set()
    await settle()
    assert third.in_place
    third.may_end.set()
    await third.task


async def test_hosts_that_nobody_uses_take_no_memory() -> None:
    clock = Clock()
    hosts = Hosts(per_host=1, clock=clock)
    for number in range(100):
        visit = Visit(hosts, f"host-{number}")
        visit.may_end.set()
        await visit.task
        hosts.pause(f"host-{number}", 1)
        clock.now += 2
    assert hosts.remembered == 1  # the last pause


# Requests and responses


def test_a_request_shows_neither_credentials_nor_query_headers_or_body() -> None:
    request = Request(
        "POST", "https://me:s3cret@host:8443/a b?token=s3cret#s3cret", headers={"X-Key": "s3cret"}, json="s3cret"
    )
    assert repr(request) == str(request) == "POST https://host:8443/a%20b"
    assert repr(Response(404, {"X-Key": "s3cret"}, b"s3cret")) == "404 Not Found"
    assert repr(Response(599, {}, b"")) == "599"


@pytest.mark.parametrize(
    "url",
    ["", "host/path", "/s3cret", "//h/s3cret", "ftp://s3cret", "http://:s3cret@/", "http://h:s3cret/", "http://["],
)
def test_a_url_that_cannot_be_used_is_a_fatal_error_that_does_not_show_it(url: str) -> None:
    request = Request("GET", url)
    with pytest.raises(FatalError, match="must be absolute") as raised:
        _ = request.target
    text = "".join(traceback.format_exception(raised.value)) + repr(request)
    assert "s3cret" not in text


@given(st.text(), st.sampled_from(["", "http://", "https://h/", "http://h?", "http://u:"]))
def test_any_url_is_a_target_or_a_fatal_error_and_can_be_shown(text: str, scheme: str) -> None:
    request = Request("GET", scheme + text)
    assert repr(request).startswith("GET ")
    try:
        assert request.target.origin()
    except FatalError:
        assert "invalid URL" in repr(request)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"json": 1, "body": b"1"}, "both a body and json"),
        ({"body": {"a": 1}}, "body is a dict"),
        ({"headers": {"X-Key": b"s3cret"}}, "header X-Key is a bytes; it must be a str"),
    ],
)
def test_a_request_that_makes_no_sense_says_so(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as raised:
        Request("POST", "http://h", **arguments)
    assert "s3cret" not in str(raised.value)


def test_a_body_that_was_cut_is_not_taken_for_json() -> None:
    assert Response(200, {}, b'{"a": 1}').json() == {"a": 1}
    with pytest.raises(FatalError, match="truncated after 1 bytes"):
        Response(200, {}, b"1", truncated=True).json()


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ({"per_host": 0}, "per_host is 0 at a time; it must be at least 1"),
        ({"timeout": 0}, "timeout is 0 seconds"),
        ({"timeout": math.nan}, "timeout is nan seconds"),
        ({"max_retry_after": -1}, "max_retry_after is -1 seconds"),
        ({"max_body": -1}, "max_body is -1 bytes"),
    ],
)
def test_arguments_out_of_bounds_are_refused(argument: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        HttpHandler(lambda record: Request("GET", "http://h"), **argument)


# Named failures


@given(st.binary(max_size=200) | st.text().map(str.encode), st.integers(1, 5))
@example(b'{"failures": [{"index": 1e400, "retry_after": NaN}]}', 3)
@example(b"[" * 100_000, 3)
def test_whatever_a_server_writes_of_a_batch_it_names_records_or_nobody(body: bytes, count: int) -> None:
    response = Response(200, {"Content-Type": "application/json"}, body)
    try:
        failures = named_failures(response, count, 60.0)
    except ValueError:
        return
    assert failures.keys() <= set(range(count))


@given(st.dictionaries(st.integers(0, 9), st.tuples(st.booleans(), st.none() | st.floats(0, 1e6)), max_size=10))
def test_each_named_record_has_the_error_that_the_server_asked_for(said: dict[int, tuple[bool, float | None]]) -> None:
    told = [
        {"index": index, "error": f"number {index}", "retry": retry} | ({} if wait is None else {"retry_after": wait})
        for index, (retry, wait) in said.items()
    ]
    body = json.dumps({"failures": told}).encode()
    failures = named_failures(Response(207, {"Content-Type": "application/problem+json"}, body), 10, 60.0)
    assert failures.keys() == said.keys()
    for index, (retry, wait) in said.items():
        assert str(failures[index]) == f"number {index}"
        assert isinstance(failures[index], RetriableError if retry else FatalError)
        if retry and isinstance(error := failures[index], RetriableError):
            assert error.retry_after == (None if wait is None else min(wait, 60.0))
