"""Renders the templates, with what every page shows."""

import hashlib
from importlib import resources
from typing import Any
from urllib.parse import urlencode

from jinja2 import Environment, PackageLoader, StrictUndefined, pass_context
from jinja2.runtime import Context
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from headway.core.selectors.selector import equality
from headway.dashboard import drawings
from headway.dashboard.access import Access
from headway.dashboard.formats import FILTERS
from headway.dashboard.level_history import SPANS
from headway.inspection.snapshot import Snapshot

_SNAPSHOT = "snapshot from:body"
_REFRESH = {
    **dict.fromkeys(("/", "/queue", "/partition", "/members", "/dead", "/schedules", "/rules"), _SNAPSHOT),
    "/action": "every 1s",
}
"""When the pages at these addresses update themselves. It depends on the address and not on what is shown there now,
because a page that says that there is no such queue must show the queue as soon as there is one."""


class Renderer:
    """Turns the values of a page into HTML.

    Every value is escaped. A page is a layout around a live part, and a request of htmx gets only the live part.
    """

    def __init__(self, access: Access) -> None:
        self._access = access
        self._templates = Environment(
            loader=PackageLoader("headway.dashboard"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._templates.filters |= FILTERS
        self._templates.globals |= {
            "link": _link,
            "equality": equality,
            "map_strip": drawings.map_strip,
            "assets": _assets_version(),
            "spans": [span.name for span in SPANS],
        }

    def page(
        self, request: Request, name: str, title: str, snapshot: Snapshot, code: int = 200, **values: Any
    ) -> Response:
        """Return a page: the template `live/NAME.html` with these values, in the layout unless htmx asks for it."""
        visitor = request.scope["visitor"]
        values |= {
            "snapshot": snapshot,
            "name": name,
            "title": title,
            "here": _address(request),
            "refresh": _REFRESH.get(request.url.path.removeprefix(request.scope.get("root_path", ""))),
            "csrf": self._access.csrf(visitor),
            "allow_actions": self._access.allow_actions,
            "has_login": self._access.token is not None,
            "user": request.scope.get("user_name", ""),
            "base": request.scope.get("root_path", ""),
        }
        is_part = request.headers.get("hx-request") == "true"
        template = self._templates.get_template(f"live/{name}.html" if is_part else "page.html")
        return HTMLResponse(template.render(values), code)

    def message(self, request: Request, snapshot: Snapshot, sentence: str, code: int = 404) -> Response:
        """Return a page with a sentence, such as why something is missing."""
        title = {404: "Not found", 403: "Refused", 429: "Busy"}.get(code, "Not possible")
        return self.page(request, "message", title, snapshot, code, sentence=sentence)

    def login(self, request: Request, problem: str = "", status: int = 200) -> Response:
        """Return the page that asks for the token."""
        base = request.scope.get("root_path", "")
        html = self._templates.get_template("login.html").render(base=base, problem=problem, title="Log in")
        return HTMLResponse(html, status)


def _address(request: Request) -> str:
    query = request.url.query
    return request.url.path + (f"?{query}" if query else "")


@pass_context
def _link(context: Context, path: str, **query: object) -> str:
    """Return the address of a page of the dashboard, wherever it is mounted. Parameters that are None are left out."""
    given = {name: str(value) for name, value in query.items() if value is not None}
    return f"{context['base']}{path}" + (f"?{urlencode(given)}" if given else "")


def _assets_version() -> str:
    """Return a text that changes with the content of the assets, so that browsers can keep each version forever."""
    digest = hashlib.sha256()
    for each in sorted((resources.files("headway.dashboard") / "assets").iterdir(), key=lambda each: each.name):
        digest.update(each.read_bytes())
    return digest.hexdigest()[:12]
