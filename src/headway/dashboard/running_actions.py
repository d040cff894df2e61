"""Actions that take a while, such as sending a million dead letters again: each has a page of its own.

Invariants: at most `MOST_RUNNING` actions run at a time, and the latest `MOST_KEPT` are remembered. An action that asks
for confirmation changes nothing before it has it, and forgets its plan after ten minutes.
"""

import logging
import secrets
import threading
import time
from collections.abc import Callable

from headway.dashboard.formats import clear
from headway.errors import ConfigError, HeadwayError

log = logging.getLogger("headway.dashboard")

MOST_RUNNING = 8
MOST_KEPT = 50
_CONFIRM_WITHIN = 600.0
_MOST_SENTENCES = 20


class RunningAction:
    """An action that an operator has asked for.

    Attributes:
        id: The text that names it in its address.
        title: What it does.
        user: Who has asked for it.
        state: "running", "asks", "done" or "failed".
        progress: A sentence on how far it is, or its question, or its result.
        sentences: What went wrong with parts of it, and what was left out.
        back: The address of the page from which it was asked for, without the dashboard's own path.
    """

    def __init__(self, title: str, user: str, back: str) -> None:
        self.id = secrets.token_hex(8)
        self.title = title
        self.user = user
        self.back = back
        self.state = "running"
        self.progress = "It begins."
        self.sentences: list[str] = []
        self.started = time.time()
        self._answer = threading.Event()
        self._confirmed = False

    def say(self, sentence: str) -> None:
        """Note a problem with a part of the work. At most 20 are kept."""
        if sentence not in self.sentences and len(self.sentences) < _MOST_SENTENCES:
            self.sentences.append(sentence)

    def ask(self, question: str) -> bool:
        """Wait for the operator's answer to a question, at most ten minutes, and return whether it is yes."""
        self.state, self.progress = "asks", question
        self._answer.wait(_CONFIRM_WITHIN)
        self.state = "running"
        return self._confirmed

    def answer(self, *, yes: bool) -> None:
        """Answer the question. Only the first answer counts."""
        if self.state == "asks" and not self._answer.is_set():
            self._confirmed = yes
            self.state = "running"
            self._answer.set()

    @property
    def is_over(self) -> bool:
        """Whether nothing more will happen."""
        return self.state in {"done", "failed"}


class RunningActions:
    """The actions that were asked for. All methods can be called from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: dict[str, RunningAction] = {}

    def start(self, action: RunningAction, work: Callable[[RunningAction], str]) -> RunningAction:
        """Run an action in a thread. `work` returns a sentence with the result.

        Raises `ConfigError` if too many actions run already.
        """
        with self._lock:
            running = sum(not each.is_over for each in self._running.values())
            if running >= MOST_RUNNING:
                raise ConfigError(
                    f"{running} actions are running or wait for an answer, which is the most at a time. Wait for one "
                    "of them to end, or answer its question."
                )
            for old in [each.id for each in self._running.values() if each.is_over][
                : max(0, len(self._running) - MOST_KEPT)
            ]:
                del self._running[old]
            self._running[action.id] = action
        threading.Thread(target=self._run, args=(action, work), name="headway-dashboard-action", daemon=True).start()
        return action

    def get(self, name: str) -> RunningAction | None:
        """Return an action by its id, or None."""
        with self._lock:
            return self._running.get(name)

    def newest(self) -> list[RunningAction]:
        """Return the actions, the newest first."""
        with self._lock:
            return list(reversed(self._running.values()))

    def _run(self, action: RunningAction, work: Callable[[RunningAction], str]) -> None:
        log.info("%s: %s. It was asked for.", clear(action.user), clear(action.title))
        try:
            result = work(action)
        except HeadwayError as error:
            action.progress, action.state = str(error), "failed"
            log.warning("%s: %s. It failed: %s", clear(action.user), clear(action.title), clear(str(error)))
        except Exception:
            action.progress, action.state = "An error in Headway itself ended this action. The log has it.", "failed"
            log.exception("%s: %s. An error in Headway itself ended it.", clear(action.user), clear(action.title))
        else:
            action.progress, action.state = result, "done"
            log.info("%s: %s. %s", clear(action.user), clear(action.title), clear(result))
