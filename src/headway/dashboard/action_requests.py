"""The requests that change something. `Gatekeeper` has checked that actions are allowed and where they come from.

Invariant: each handler goes through `_form`, which refuses a form without the token of its session.
"""

import logging
import time
from collections.abc import Callable
from urllib.parse import parse_qsl

from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route

from headway.actions.choice import Choice
from headway.actions.marks import this_user
from headway.core.rules.rule import LONGEST_SELECTOR
from headway.core.untrusted import LONGEST_TEXT
from headway.dashboard.access import Access
from headway.dashboard.feed_opening import FeedOpening
from headway.dashboard.operator_actions import cancel_schedules, end_rule, hold_records, send_again
from headway.dashboard.queries import letter_position
from headway.dashboard.rendering import Renderer
from headway.dashboard.running_actions import RunningAction, RunningActions
from headway.errors import ConfigError
from headway.inspection.letters import Filter, is_whole_number
from headway.rules import Hold, Rule, new_rule_id
from headway.settings.config import Config

log = logging.getLogger("headway.dashboard")

_MOST_OF_A_FORM = 1_000_000
_MOST_FIELDS = 5000
_MOST_MINUTES = 60 * 24 * 366

FormFields = dict[str, list[str]]


class ActionRequests:
    """The addresses to which forms are sent, and the pages of the actions that they start."""

    def __init__(
        self, config: Config, access: Access, opening: FeedOpening, renderer: Renderer, running: RunningActions
    ) -> None:
        self._config = config
        self._access = access
        self._opening = opening
        self._renderer = renderer
        self._running = running

    def routes(self) -> list[Route]:
        """Return the routes of the actions."""
        return [
            Route("/dead/send-again", self._send_again, methods=["POST"]),
            Route("/schedules/cancel", self._cancel, methods=["POST"]),
            Route("/rules/hold", self._hold, methods=["POST"]),
            Route("/rules/end", self._end_rule, methods=["POST"]),
            Route("/action", self._action),
            Route("/action/answer", self._answer, methods=["POST"]),
        ]

    async def _send_again(self, request: Request) -> Response:
        form = await self._form(request)
        if form is None:
            return _without_token(request)
        topic = _first(form, "topic")
        places = [letter_position(each) for each in form.get("place", [])]
        chosen = Filter(_first(form, "exception") or None, _first(form, "source") or None)
        if not topic or None in places or not (places or chosen or _first(form, "all")):
            return self._message(request, "Select the letters to send.", 400)
        choice = Choice(frozenset(each for each in places if each), Filter() if places else chosen)
        title = f"Send dead letters of {topic} again: {_described(choice)}"
        return self._start(request, title, "/dead", lambda action: send_again(self._config, topic, choice, action))

    async def _cancel(self, request: Request) -> Response:
        form = await self._form(request)
        if form is None:
            return _without_token(request)
        name, handles = _first(form, "name"), form.get("handle", [])
        if not name or not handles:
            return self._message(request, "Select the schedules to cancel.", 400)
        which = f"{len(handles):,} schedules" if len(handles) > 1 else f"the schedule {handles[0][:100]}"
        title = f"Cancel {which} of {name}"

        def work(action: RunningAction) -> str:
            return cancel_schedules(self._config, name, handles, action)

        return self._start(request, title, "/schedules", work)

    async def _hold(self, request: Request) -> Response:
        form = await self._form(request)
        if form is None:
            return _without_token(request)
        group, where, minutes = _first(form, "group").strip(), _first(form, "where").strip(), _first(form, "minutes")
        if len(where) > LONGEST_SELECTOR:
            return self._message(
                request, f"The condition has {len(where):,} characters, but can have at most {LONGEST_SELECTOR:,}.", 400
            )
        if not group or not (minutes == "" or (is_whole_number(minutes) and 0 < int(minutes) <= _MOST_MINUTES)):
            return self._message(request, "Name the group, and choose for how long.", 400)
        now = round(time.time() * 1000)
        rule = Rule(
            new_rule_id(),
            group[:LONGEST_TEXT],
            Hold(),
            where=where,
            by=_who(request)[:LONGEST_TEXT],
            why=_first(form, "why").strip()[:LONGEST_TEXT],
            since=now,
            until=now + 60_000 * int(minutes) if minutes else None,
        )
        try:
            _ = rule.selector
        except ConfigError as error:
            return self._message(request, str(error), 400)
        title = f"Hold records of {group}: {rule.where or 'all'}"
        return self._start(request, title, "/rules", lambda _: hold_records(self._config, rule))

    async def _end_rule(self, request: Request) -> Response:
        form = await self._form(request)
        if form is None:
            return _without_token(request)
        group, rule = _first(form, "group"), _first(form, "rule")
        title = f"End the rule {rule[:100]} of {group[:250]}"
        return self._start(request, title, "/rules", lambda _: end_rule(self._config, group, rule))

    def _start(self, request: Request, title: str, back: str, work: Callable[[RunningAction], str]) -> Response:
        try:
            action = self._running.start(RunningAction(title, _who(request), back), work)
        except ConfigError as error:
            return self._message(request, str(error), 429)
        return _to_page_of(request, action)

    def _action(self, request: Request) -> Response:
        action = self._running.get(request.query_params.get("id", ""))
        if action is None:
            return self._message(request, "There is no such action. The dashboard may have been restarted.")
        return self._renderer.page(request, "action", action.title, self._opening.feed().snapshot, action=action)

    async def _answer(self, request: Request) -> Response:
        form = await self._form(request)
        if form is None:
            return _without_token(request)
        action = self._running.get(_first(form, "id"))
        if action is None:
            return self._message(request, "There is no such action. The dashboard may have been restarted.")
        yes = _first(form, "answer") == "yes"
        log.info("%s: %s. It was %s.", _who(request), action.title, "confirmed" if yes else "not confirmed")
        action.answer(yes=yes)
        return _to_page_of(request, action)

    async def _form(self, request: Request) -> FormFields | None:
        """Read a form. Returns None if it does not carry the token of its session."""
        body = await form_body(request)
        if body is None:
            return None
        form: FormFields = {}
        try:
            for name, value in parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=_MOST_FIELDS):
                form.setdefault(name, []).append(value)
        except ValueError:
            return None
        return form if self._access.is_csrf(request.scope["visitor"], _first(form, "csrf")) else None

    def _message(self, request: Request, sentence: str, status: int = 404) -> Response:
        return self._renderer.message(request, self._opening.feed().snapshot, sentence, status)


async def form_body(request: Request) -> bytes | None:
    """Read the body of a request. Returns None if it has more than a million bytes."""
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > _MOST_OF_A_FORM:
            return None
    return bytes(body)


def _first(form: FormFields, name: str) -> str:
    return form.get(name, [""])[0]


def _described(choice: Choice) -> str:
    if choice.places:
        some = ", ".join(map(str, sorted(choice.places)[:5]))
        return some if len(choice.places) <= 5 else f"{some} and {len(choice.places) - 5:,} more"
    chosen = choice.filter
    parts = [f"those of {chosen.exception}"] if chosen.exception else []
    parts += [f"those from {chosen.source_topic}"] if chosen.source_topic else []
    return " ".join(parts) or "all that are open"


def _who(request: Request) -> str:
    """Describe who has sent a request, for the log."""
    name = request.scope["user_name"] or this_user() or "somebody"
    address = request.client.host if request.client else "an unknown address"
    return f"{name} from {address}"


def _to_page_of(request: Request, action: RunningAction) -> Response:
    return RedirectResponse(f"{request.scope.get('root_path', '')}/action?id={action.id}", 303)


def _without_token(request: Request) -> Response:
    log.warning(
        "An action was refused: POST %.200r from %s. Its form has no valid token.", request.url.path, _who(request)
    )
    return PlainTextResponse(
        "The form does not carry the token of this session, or is too large. Reload the page and try again.\n", 403
    )
