"""The login with the dashboard's token."""

import asyncio
import logging
from urllib.parse import parse_qsl

from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route

from headway.dashboard.access import Access
from headway.dashboard.action_requests import form_body
from headway.dashboard.gatekeeper import cookie_header
from headway.dashboard.rendering import Renderer

log = logging.getLogger("headway.dashboard")

_AFTER_A_WRONG_TOKEN = 1.0  # seconds until the answer, so that guessing takes long


class Login:
    """The login page, which exchanges the token for a session, and the logout."""

    def __init__(self, access: Access, renderer: Renderer) -> None:
        self._access = access
        self._renderer = renderer

    def routes(self) -> list[Route]:
        """Return the routes of login and logout."""
        return [
            Route("/login", self._login, methods=["GET", "POST"]),
            Route("/logout", self._logout, methods=["POST"]),
        ]

    async def _login(self, request: Request) -> Response:
        home = request.scope.get("root_path", "") + "/"
        if self._access.token is None:
            return RedirectResponse(home, 303)
        if request.method != "POST":
            return self._renderer.login(request)
        body = await form_body(request)
        if body is None:
            return PlainTextResponse("The form is too large.\n", 413)
        form = dict(parse_qsl(body.decode(errors="replace")))
        if not self._access.is_token(form.get("token", "")):
            client = request.client.host if request.client else "an unknown address"
            log.warning("A login from %s was refused: the token is wrong.", client)
            await asyncio.sleep(_AFTER_A_WRONG_TOKEN)
            return self._renderer.login(request, "This is not the token.", 403)
        answer = RedirectResponse(home, 303)
        answer.headers.append("Set-Cookie", cookie_header(request.scope, self._access.new_cookie(form.get("name", ""))))
        return answer

    async def _logout(self, request: Request) -> Response:
        answer = RedirectResponse(request.scope.get("root_path", "") + "/login", 303)
        answer.headers.append("Set-Cookie", cookie_header(request.scope, ""))
        return answer
