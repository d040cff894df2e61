"""Admits requests, and gives every answer the headers that keep foreign content out."""

import logging

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import cookie_parser
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Send

from headway.dashboard.access import Access, Scope, Visitor, is_own_origin

log = logging.getLogger("headway.dashboard")

COOKIE = "headway_dashboard"
OPEN_PATHS = ("/login", "/assets/")
"""The paths that can be reached without a login: the login itself, and files without secrets."""

_CONTENT_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "form-action 'self'",
        "frame-ancestors 'none'",
        "base-uri 'none'",
    )
)
_HEADERS = {
    "Content-Security-Policy": _CONTENT_POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",  # with no-referrer, browsers send forms with the origin "null"
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}


class Gatekeeper:
    """ASGI middleware that refuses what `Access` does not admit.

    It puts the visitor's session into `scope["visitor"]` and the user's name into `scope["user_name"]`.
    """

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app = app
        self._access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request."""
        if scope["type"] != "http":
            return  # there are no websockets here
        headers = Headers(scope=scope)
        path = scope["path"].removeprefix(scope.get("root_path", ""))
        visitor = self._session(headers)
        is_new = visitor is None

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._complete(MutableHeaders(scope=message), scope, path, new_cookie)
            await send(message)

        new_cookie = None
        if is_new and self._access.token is None:  # a session without a login, for the forms
            new_cookie = self._access.new_cookie()
            visitor = self._access.visitor(new_cookie)
        scope["visitor"] = visitor or Visitor("", "")
        refusal = self._refusal(scope, headers, path, visitor)
        await (refusal or self._app)(scope, receive, with_headers)

    def _session(self, headers: Headers) -> Visitor | None:
        return self._access.visitor(cookie_parser(headers.get("cookie", "")).get(COOKIE, ""))

    def _refusal(self, scope: Scope, headers: Headers, path: str, visitor: Visitor | None) -> Response | None:
        if refusal := self._not_admitted(scope, headers, path):
            return refusal
        if path.startswith(OPEN_PATHS):
            return None
        if (name := self._user(scope, headers, visitor)) is not None:
            scope["user_name"] = name
            return None
        if self._access.get_user is None and scope["method"] != "POST" and "text/html" in headers.get("accept", ""):
            return RedirectResponse(scope.get("root_path", "") + "/login", 303)
        return _refuse(scope, 401, "Log in first.")

    def _not_admitted(self, scope: Scope, headers: Headers, path: str) -> Response | None:
        """Return the refusal of a request that nobody could send from a page of this dashboard."""
        if len(hosts := headers.getlist("host")) != 1 or not self._access.is_host(hosts[0]):
            return _refuse(scope, 421, "This host name is not in the dashboard's list of hosts.")
        if scope["method"] not in {"GET", "HEAD", "POST"}:
            return _refuse(scope, 405, "The dashboard takes only GET and POST.")
        if scope["method"] == "POST":
            if not is_own_origin(headers):
                return _refuse(scope, 403, "The request does not come from a page of this dashboard.")
            if not self._access.allow_actions and path not in {"/login", "/logout"}:
                return _refuse(scope, 403, "This dashboard is read-only. Start it with --allow-actions.")
        return None

    def _user(self, scope: Scope, headers: Headers, visitor: Visitor | None) -> str | None:
        """Return the name of the user, which can be "", or None without a login."""
        if self._access.get_user is not None:
            return self._access.get_user(scope)
        if self._access.token is None:
            return ""
        if visitor is not None:
            return visitor.name
        kind, _, token = headers.get("authorization", "").partition(" ")
        return "" if kind.lower() == "bearer" and self._access.is_token(token.strip()) else None

    def _complete(self, headers: MutableHeaders, scope: Scope, path: str, new_cookie: str | None) -> None:
        for name, value in _HEADERS.items():
            headers[name] = value
        if "cache-control" not in headers:
            headers["Cache-Control"] = "no-store"
        if new_cookie is not None and not path.startswith("/assets/"):
            headers.append("Set-Cookie", cookie_header(scope, new_cookie))


def cookie_header(scope: Scope, value: str) -> str:
    """Return the header that stores a session's cookie, for pages of this dashboard and for no script."""
    secure = "; Secure" if scope.get("scheme") == "https" else ""
    age = "; Max-Age=0" if not value else ""
    return f"{COOKIE}={value}; Path={scope.get('root_path') or '/'}; HttpOnly; SameSite=Lax{age}{secure}"


def _refuse(scope: Scope, status: int, why: str) -> Response:
    if scope["method"] == "POST":
        client = scope.get("client") or ("an unknown address",)
        log.warning("An action was refused: POST %.200r from %s. %s", scope["path"], client[0], why)
    return PlainTextResponse(f"{why}\n", status)
