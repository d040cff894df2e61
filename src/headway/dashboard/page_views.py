"""The pages that only show something: what each address shows, from the latest snapshot or from Kafka.

The handlers are not coroutines, so each runs in a thread, because drawing and reading take time.
"""

from collections import Counter
from itertools import islice
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from headway.dashboard import drawings
from headway.dashboard.attention import concerns
from headway.dashboard.feed_opening import FeedOpening
from headway.dashboard.formats import whole_value
from headway.dashboard.level_history import SPANS
from headway.dashboard.queries import (
    chosen_level,
    chosen_queue,
    has_members,
    letter_position,
    number_in,
    one_of,
    urgency,
)
from headway.dashboard.rendering import Renderer
from headway.dashboard.running_actions import RunningActions
from headway.delay.pending import PendingReader, soonest_of
from headway.inspection.dead_topic import opened
from headway.inspection.letters import Filter, Letter
from headway.settings.config import Config

_PARTITIONS_PER_PAGE = 50
_LETTERS_PER_PAGE = 50
_LETTERS_LOOKED_AT = 20_000
_SCHEDULES_SHOWN = 50
_SCHEDULES_LOOKED_AT = 200_000
_CELLS = 320
_NO_QUEUE = "There is no such queue. It may have been deleted, or its group may be gone."


class Views:
    """The pages of a dashboard."""

    def __init__(self, config: Config, opening: FeedOpening, renderer: Renderer, running: RunningActions) -> None:
        self._config = config
        self._opening = opening
        self._renderer = renderer
        self._running = running

    def routes(self) -> list[Route]:
        """Return the routes of the pages."""
        return [
            Route("/", self._overview),
            Route("/queue", self._queue),
            Route("/partition", self._partition),
            Route("/record", self._record),
            Route("/members", self._members),
            Route("/dead", self._dead),
            Route("/dead/letters", self._letters),
            Route("/dead/letter", self._letter),
            Route("/schedules", self._schedules),
            Route("/schedules/next", self._next_schedules),
            Route("/rules", self._rules),
        ]

    def _overview(self, request: Request) -> Response:
        feed = self._opening.feed()
        snapshot = feed.snapshot
        return self._page(
            request,
            "overview",
            "Overview",
            concerns=concerns(snapshot),
            most=max((level.not_done for _, level in snapshot.levels), default=0) or 1,
            chosen=chosen_queue(snapshot, request) or next(iter(snapshot.queues), None),
            span=one_of(request, "span", [span.name for span in SPANS]),
            marks=list(reversed(feed.marks[-10:])),
            marks_problem=feed.marks_problem,
        )

    def _queue(self, request: Request) -> Response:
        snapshot = self._opening.feed().snapshot
        queue = chosen_queue(snapshot, request)
        if queue is None:
            return self._message(request, _NO_QUEUE)
        level = chosen_level(queue, request)
        number = number_in(request, "page")
        order = one_of(request, "order", ["urgent", "number"])
        partitions = sorted(level.partitions, key=urgency) if order == "urgent" else list(level.partitions)
        start = number * _PARTITIONS_PER_PAGE
        is_read = has_members(snapshot, queue)
        states = {each.partition: drawings.state_of(each, is_read=is_read) for each in level.partitions}
        return self._page(
            request,
            "queue",
            f"{queue.topic} read by {queue.group}",
            queue=queue,
            level=level,
            order=order,
            number=number,
            pages=-(-len(partitions) // _PARTITIONS_PER_PAGE),
            partitions=partitions[start : start + _PARTITIONS_PER_PAGE],
            is_read=is_read,
            states=states,
            counts=Counter(states.values()),
        )

    def _partition(self, request: Request) -> Response:
        snapshot = self._opening.feed().snapshot
        queue = chosen_queue(snapshot, request)
        if queue is None:
            return self._message(request, _NO_QUEUE)
        level = chosen_level(queue, request)
        number = number_in(request, "partition")
        status = next((each for each in level.partitions if each.partition == number), None)
        if status is None:
            return self._message(request, f"{level.kafka_topic} has no partition {number}.")
        return self._page(
            request,
            "partition",
            f"{level.kafka_topic}, partition {number}",
            queue=queue,
            level=level,
            status=status,
            cells=drawings.map_cells(status, _CELLS),
            start=drawings.map_start(status),
            end=drawings.map_end(status),
            failed=sorted(status.tried.items(), key=lambda each: -each[1].attempts)[:20],
            is_read=has_members(snapshot, queue),
        )

    def _record(self, request: Request) -> Response:
        feed = self._opening.feed()
        queue = chosen_queue(feed.snapshot, request)
        if queue is None:
            return self._message(request, _NO_QUEUE)
        level = chosen_level(queue, request)
        partition, offset = number_in(request, "partition"), number_in(request, "offset")
        record = feed.record(level.kafka_topic, partition, offset)
        if record is None:
            return self._message(request, f"{level.kafka_topic}, partition {partition}, has no record {offset}.")
        return self._page(
            request,
            "record",
            f"Offset {offset} of {level.kafka_topic}, partition {partition}",
            queue=queue,
            level=level,
            kafka_topic=level.kafka_topic,
            partition=partition,
            offset=offset,
            key=record.key(),
            timestamp=record.timestamp()[1] / 1000,
            value=whole_value(record.value()),
        )

    def _members(self, request: Request) -> Response:
        held: dict[str, list[str]] = {}
        for _, level in self._opening.feed().snapshot.levels:
            for each in level.partitions:
                if each.member is not None:
                    held.setdefault(each.member, []).append(f"{level.kafka_topic}-{each.partition}")
        return self._page(request, "members", "Members and tenants", held=held)

    def _dead(self, request: Request) -> Response:
        return self._page(request, "dead", "Dead letters", running=self._running.newest()[:10])

    def _letters(self, request: Request) -> Response:
        topic = request.query_params.get("topic", "")
        settled_too = bool(request.query_params.get("settled"))
        filter_ = Filter(request.query_params.get("exception") or None, request.query_params.get("source") or None)
        found: list[Letter] = []
        looked_at = 0
        with opened(topic, self._config) as (dead, _):
            for letter in dead.newest(_LETTERS_LOOKED_AT):
                looked_at += 1
                if filter_.matches(letter) and (settled_too or not letter.settled):
                    found.append(letter)
            size = dead.size
        found.sort(key=lambda each: each.when, reverse=True)
        return self._page(
            request,
            "letters",
            topic,
            topic=topic,
            filter=filter_,
            settled_too=settled_too,
            found=found[:_LETTERS_PER_PAGE],
            count=len(found),
            looked_at=looked_at,
            size=size,
        )

    def _letter(self, request: Request) -> Response:
        topic = request.query_params.get("topic", "")
        place = letter_position(request.query_params.get("place", ""))
        if place is None or not topic:
            return self._message(request, "A letter is named by its topic and PARTITION:OFFSET, such as 0:12.")
        with opened(topic, self._config) as (dead, _):
            letter = dead.letter(place)
        value = whole_value(letter.value) if request.query_params.get("value") else None
        return self._page(
            request, "letter", f"{topic} {place}", topic=topic, letter=letter, value=value, origin=letter.origin(topic)
        )

    def _schedules(self, request: Request) -> Response:
        bars = {each.name: drawings.hour_bars(each.hours) for each in self._opening.feed().snapshot.schedulers}
        return self._page(request, "schedules", "Schedules", bars=bars, running=self._running.newest()[:10])

    def _next_schedules(self, request: Request) -> Response:
        scheduler = request.query_params.get("name", "")
        with PendingReader(self._config, scheduler) as reader:
            soonest = soonest_of(islice(reader.schedules(), _SCHEDULES_LOOKED_AT), _SCHEDULES_SHOWN)
        return self._page(
            request, "next_schedules", f"Next schedules of {scheduler}", scheduler=scheduler, soonest=soonest
        )

    def _rules(self, request: Request) -> Response:
        groups = sorted({each.group for each in self._opening.feed().snapshot.queues})
        group, where = request.query_params.get("group", ""), request.query_params.get("where", "")
        return self._page(
            request, "rules", "Rules", groups=groups, group=group, where=where, running=self._running.newest()[:10]
        )

    def _page(self, request: Request, name: str, title: str, **values: Any) -> Response:
        return self._renderer.page(request, name, title, self._opening.feed().snapshot, **values)

    def _message(self, request: Request, sentence: str) -> Response:
        return self._renderer.message(request, self._opening.feed().snapshot, sentence)
