"""Finds out why a client is not connected: librdkafka retries forever, and reports it only to `error_cb` and its log.

If no broker has ever accepted a client's login, the client gets an error within seconds. After an accepted login it
goes on for half a minute, because renewed credentials reach brokers and clients at different times.
"""

import time
from collections.abc import Callable
from typing import Any

import confluent_kafka as ck

from headway.core.connection_failures import Refusals
from headway.errors import AuthenticationError, ConfigError
from headway.kafka.binding import capi
from headway.kafka.binding.client_log import ClientLog
from headway.settings.config import Config

NEVER_LET_IN_AFTER = 2.5
"""The number of seconds with nothing but refusals after which a client that was never connected gets an error."""

LET_IN_NO_MORE_AFTER = 30.0
"""The number of seconds with nothing but refusals after which a client that was connected before gets an error."""

ASK_AGAIN_AFTER = 5.0
_ANY_ANSWER_WITHIN = 0.5
_ASK_TIMES = 2

_LOST_HEARTBEAT = "Timed out ConsumerGroupHeartbeatRequest"


def change_credentials(config: dict[str, Any], username: str, password: str) -> None:
    """Store credentials in the settings with which further clients are created."""
    config.update({"sasl.username": username, "sasl.password": password})


class Connection:
    """The state of one client's connections, as librdkafka reports it. Create the client with its `settings`.

    `on_lost_heartbeat` is called when librdkafka stops waiting for the answer to a heartbeat (KIP-848), which it only
    logs. All reports arrive during calls that serve the client, on the calling thread.
    """

    def __init__(self, on_lost_heartbeat: Callable[[], None] = lambda: None) -> None:
        self._on_lost_heartbeat = on_lost_heartbeat
        self._refusals = Refusals()
        self._unanswered = 0
        self._ask_at = 0.0

    def settings(self, config: Config) -> dict[str, Any]:
        """Return settings that make a client with this configuration report here, and to the user's callbacks."""
        on_error = config.get("error_cb")

        def note(error: ck.KafkaError) -> None:
            self._refusals.note(error.str(), time.monotonic())
            if on_error:
                on_error(error)

        return {"error_cb": note, **ClientLog(config, self._on_line).settings}

    def _on_line(self, line: str) -> bool:
        if _LOST_HEARTBEAT in line:
            self._on_lost_heartbeat()
        return self._refusals.note(line, time.monotonic())

    @property
    def reason(self) -> str:
        """Why the last connection ended, with its broker; "no answer" if none has ended in the last minute."""
        return self._refusals.reason(time.monotonic()) or "no answer"

    @property
    def is_ended(self) -> bool:
        """True if a broker has ended its last connection to this client, which shows that it is running."""
        return self._refusals.brokers > 0

    def because(self) -> str:
        """Return `reason`, worded as the end of a sentence; empty if none is known."""
        reason = self._refusals.reason(time.monotonic())
        return f" (the last connection ended like this: {reason})" if reason else ""

    def forget(self) -> None:
        """Forget all refusals, for example because the client uses other credentials now."""
        self._unanswered = 0
        self._refusals.forget()

    def never_let_in(self, client: capi.Client) -> AuthenticationError | None:
        """Return an error, and forget the refusals, if brokers refuse this client and have never accepted its login."""
        found = self._refusals.longest()
        if found is None or found.last - found.since < NEVER_LET_IN_AFTER or capi.was_connected(client):
            return None
        self.forget()
        return AuthenticationError(found.sentence())

    def refusal(self, client: capi.Client) -> AuthenticationError | None:
        """Return the error of `never_let_in`, or one for a login that is no longer accepted. This may take 0.5 s."""
        found = self._refusals.longest()
        if found is None or found.last - found.since < LET_IN_NO_MORE_AFTER or not capi.was_connected(client):
            return self.never_let_in(client)
        if not (found.certain and self._is_unanswered(client)):
            return None
        self.forget()
        return AuthenticationError(
            f"{found.sentence()} It was connected before: its credentials were changed, or have expired.",
            was_connected=True,
        )

    def refusal_so_far(self) -> AuthenticationError | None:
        """Return an error for a caller that stops waiting, if brokers have refused this client at least twice."""
        found = self._refusals.longest()
        return AuthenticationError(found.sentence()) if found else None

    def check(self, client: capi.Client) -> None:
        """Raise the error of `refusal`, if there is one."""
        if error := self.refusal(client):
            raise error

    def set_credentials(self, client: capi.Client, username: str, password: str) -> None:
        """Let the client log in with other credentials from now on, at once if it is not connected.

        Raises `ConfigError` if librdkafka does not accept the credentials.
        """
        try:
            client.set_sasl_credentials(username, password)
        except (ck.KafkaException, TypeError) as error:  # these errors do not show the password
            raise ConfigError(f"Kafka's client does not accept these credentials: {error}.") from error
        except ValueError:  # this error contains the password
            raise ConfigError(
                "Kafka's client does not accept these credentials: they contain a NUL character, or one that cannot be "
                "encoded in UTF-8."
            ) from None
        self.forget()

    def _is_unanswered(self, client: capi.Client) -> bool:
        """Ask all brokers now, and again seconds later: one broker may refuse this client while others accept it."""
        now = time.monotonic()
        if now < self._ask_at:
            return False
        self._ask_at = now + ASK_AGAIN_AFTER
        if capi.is_answered(client, _ANY_ANSWER_WITHIN):
            self.forget()
            return False
        self._unanswered += 1
        return self._unanswered >= _ASK_TIMES
