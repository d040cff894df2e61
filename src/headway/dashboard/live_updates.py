"""What open pages get while they are open: events that tell them to update themselves, and the points of curves."""

from collections.abc import AsyncIterator
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from headway.dashboard.feed import Feed
from headway.dashboard.feed_opening import FeedOpening
from headway.dashboard.formats import clear
from headway.dashboard.level_history import SPANS, LevelHistory
from headway.dashboard.queries import one_of

MOST_STREAMS = 200
_HEARTBEAT = 15.0  # seconds, after which proxies still keep a connection that is silent


class LiveUpdates:
    """The stream of events, and the curves."""

    def __init__(self, opening: FeedOpening) -> None:
        self._opening = opening

    def routes(self) -> list[Route]:
        """Return the routes of the stream and the curves."""
        return [Route("/events", self._events), Route("/curves.json", self._curves)]

    async def _events(self, request: Request) -> Response:
        feed = await run_in_threadpool(self._opening.feed)
        if feed.streams >= MOST_STREAMS:
            return PlainTextResponse("Too many pages are open. This one does not update itself.\n", 503)
        headers = {"X-Accel-Buffering": "no"}  # otherwise some proxies would hold events back
        return StreamingResponse(_events_of(feed), media_type="text/event-stream", headers=headers)

    def _curves(self, request: Request) -> Response:
        span = one_of(request, "span", [each.name for each in SPANS])
        topic, group = request.query_params.get("topic", ""), request.query_params.get("group", "")
        try:
            after = float(request.query_params.get("after", ""))
        except ValueError:
            after = 0.0

        def read(history: LevelHistory) -> dict[str, Any]:
            levels = [{"level": name.level, **values} for name, values in history.curves(span, topic, group, after)]
            return {"times": history.times(span, after), "levels": levels}

        feed = self._opening.feed()
        marks = [{"at": each.at / 1000, "text": clear(each.text)} for each in feed.marks]
        return JSONResponse({**feed.read_history(read), "marks": marks})


async def _events_of(feed: Feed) -> AsyncIterator[str]:
    """Yield an event for each snapshot until the feed ends.

    An event carries no content: a page that gets it asks for the part that it shows.
    """
    with feed.listen() as listener:
        yield "retry: 2000\n\nevent: snapshot\ndata: 0\n\n"
        number = 0
        while not feed.closed:
            if await listener.next(_HEARTBEAT):
                number += 1
                yield f"event: snapshot\ndata: {number}\n\n"
            else:
                yield ": still here\n\n"
