"""The dashboard as an ASGI application: its parts put together, and its routes."""

from collections.abc import Callable, Collection, Sequence
from importlib import resources
from pathlib import Path

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Send

from headway.actions.marks import OperatorMarks
from headway.dashboard.access import LOOPBACK, Access, GetUser, Scope
from headway.dashboard.action_requests import ActionRequests
from headway.dashboard.feed import Feed, Watched
from headway.dashboard.feed_opening import FeedOpening, OpenFeed
from headway.dashboard.gatekeeper import Gatekeeper
from headway.dashboard.live_updates import LiveUpdates
from headway.dashboard.login import Login
from headway.dashboard.page_views import Views
from headway.dashboard.rendering import Renderer
from headway.dashboard.running_actions import RunningActions
from headway.errors import HeadwayError
from headway.inspection.inspector import Inspector
from headway.inspection.snapshot import Snapshot
from headway.runtime.lifecycle import Closable
from headway.settings.config import Config, check_settings


class Dashboard(Closable):
    """An ASGI application that shows queues. `app` creates it.

    It begins to read from Kafka with the first request, so creating it takes no time and needs no broker. `start`
    begins at once, so that there are curves when somebody looks. Call `close` when your service ends, or use it as a
    context manager. If a server runs it by itself, it closes with the server.
    """

    def __init__(self, config: Config, access: Access, open_feed: OpenFeed) -> None:
        self._opening = FeedOpening(open_feed)
        renderer, running = Renderer(access), RunningActions()
        routes = [
            *Views(config, self._opening, renderer, running).routes(),
            *ActionRequests(config, access, self._opening, renderer, running).routes(),
            *LiveUpdates(self._opening).routes(),
            *Login(access, renderer).routes(),
        ]
        assets = StaticFiles(directory=Path(str(resources.files("headway.dashboard"))) / "assets")
        pages = Starlette(
            routes=[*routes, Mount("/assets", _Cached(assets))],
            exception_handlers={HeadwayError: _Explained(renderer)},  # type: ignore[dict-item]
        )
        self._gatekeeper = Gatekeeper(pages, access)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request, or the start and end of a server."""
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
        elif scope["type"] == "http":
            await self._gatekeeper(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1000})

    def start(self) -> None:
        """Begin to read now, and not with the first request. Raises `KafkaError` if no broker answers."""
        self._opening.feed()

    def stop_streams(self) -> None:
        """End the streams of open pages, so that a server can stop. Safe in a signal handler."""
        self._opening.stop()

    def close(self) -> None:
        """Stop reading, and end the streams of open pages. Can be called more than once."""
        self._opening.close()

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        while True:
            message = await receive()
            if message["type"] == "lifespan.startup":
                await send({"type": "lifespan.startup.complete"})
            else:
                await run_in_threadpool(self.close)
                await send({"type": "lifespan.shutdown.complete"})
                return


def app(
    config: Config,
    *,
    groups: Sequence[str] = (),
    metrics: Sequence[str] = (),
    hosts: Collection[str] = LOOPBACK,
    token: str | None = None,
    user: GetUser | None = None,
    allow_actions: bool = False,
    secret: str | None = None,
) -> Dashboard:
    """Return the dashboard as an ASGI application, to run by itself or to mount in your own service.

    Args:
        config: The settings with which it connects to Kafka.
        groups: The groups to show, by their names without levels. By default all that have commits or members.
        metrics: Addresses of members' `/metrics`, for what Kafka does not have, such as tenants.
        hosts: The host names by which browsers reach the dashboard, without ports. Requests with another `Host` header
            are refused.
        token: A token of at least 16 characters for the dashboard's own login page.
        user: A function that returns the name of the user who sent a request, or None to refuse it, if your service
            has its own login. It gets the request's ASGI scope.
        allow_actions: Whether users can send dead letters again and cancel schedules.
        secret: Signs the sessions. If several processes serve the dashboard, give the same to all of them.

    Raises:
        ConfigError: A host is not a loopback address, and there is neither a token nor a `user` function; or an
            argument is not valid.
    """
    check_settings(config)
    access = Access(hosts, token, user, allow_actions, secret)

    def open_feed() -> tuple[Feed, Callable[[], None]]:
        inspector = Inspector(config, groups=groups, metrics=metrics)
        marks = OperatorMarks(config)
        feed = Feed(inspector, marks.all)

        def close() -> None:
            inspector.close()
            marks.close()

        return feed, close

    return Dashboard(config, access, open_feed)


def watching(config: Config, access: Access, inspector: Watched) -> Dashboard:
    """Return a dashboard that shows what another inspector has read, for tests and for programs with their own."""
    return Dashboard(config, access, lambda: (Feed(inspector, list), lambda: None))


class _Explained:
    """Shows an error of Headway as a page with its sentence, such as when no broker answers."""

    def __init__(self, renderer: Renderer) -> None:
        self._renderer = renderer

    def __call__(self, request: Request, error: HeadwayError) -> Response:
        return self._renderer.message(request, Snapshot(0.0), str(error), 502)


class _Cached:
    """Lets browsers keep the assets, whose addresses change with their content."""

    def __init__(self, assets: ASGIApp) -> None:
        self._assets = assets

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_cached(message: Message) -> None:
            if message["type"] == "http.response.start" and message["status"] == 200:
                MutableHeaders(scope=message)["Cache-Control"] = "public, max-age=31536000, immutable"
            await send(message)

        await self._assets(scope, receive, send_cached)
