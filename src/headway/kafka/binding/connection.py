"""The reasons for which a client is not connected: librdkafka retries for ever, and tells only `error_cb` and its log.

A client that no broker has ever let in gets an error within seconds. One that was let in before goes on for half a
minute, as credentials are renewed in some order: the broker's, and then each client's.
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
"""The seconds of nothing but refusals after which a never connected client gets an error."""

LET_IN_NO_MORE_AFTER = 30.0
"""The seconds of nothing but refusals after which a client that was connected before gets an error."""

ASK_AGAIN_AFTER = 5.0
_ANY_ANSWER_WITHIN = 0.5
_ASK_TIMES = 2

_LOST_HEARTBEAT = "Timed out ConsumerGroupHeartbeatRequest"


def change_credentials(config: dict[str, Any], username: str, password: str) -> None:
    """Note credentials in the settings that further clients are made with."""
    config.update({"sasl.username": username, "sasl.password": password})


class Connection:
    """The state of one client's connections, as librdkafka reports it; a client is made with its `settings`.

    `on_lost_heartbeat` is called after librdkafka gave up waiting for the answer to a heartbeat (KIP-848), which it
    only logs. All reports come in calls that serve the client, on the threads that make them.
    """

    def __init__(self, on_lost_heartbeat: Callable[[], None] = lambda: None) -> None:
        self._on_lost_heartbeat = on_lost_heartbeat
        self._refusals = Refusals()
        self._unanswered = 0
        self._ask_at = 0.0

    def settings(self, config: Config) -> dict[str, Any]:
        """Return the settings by which a client with this configuration reports here, and to the user's callbacks."""
        on_error = config.get("error_cb")

        def note(error: ck.KafkaError) -> None:
            self._refusals.note(error.str(), time.monotonic())
            if on_error:
                on_error(error)

        return {"error_cb": note, **ClientLog(config, self._hear).settings}

    def _hear(self, line: str) -> bool:
        if _LOST_HEARTBEAT in line:
            self._on_lost_heartbeat()
        return self._refusals.note(line, time.monotonic())

    @property
    def reason(self) -> str:
        """The reason for which a connection ended last, and its broker; "no answer" if none has in the last minute."""
        return self._refusals.reason(time.monotonic()) or "no answer"

    @property
    def is_ended(self) -> bool:
        """True if a broker itself ended the last connection to it, at least once: so it runs."""
        return self._refusals.brokers > 0

    def because(self) -> str:
        """Return that reason as the end of a sentence; empty without one."""
        reason = self._refusals.reason(time.monotonic())
        return f" (the last connection ended so: {reason})" if reason else ""

    def forget(self) -> None:
        """Begin anew, as with other credentials."""
        self._unanswered = 0
        self._refusals.forget()

    def never_let_in(self, client: capi.Client) -> AuthenticationError | None:
        """Return the error, if brokers have refused this client for some seconds and never let it in; begin anew."""
        found = self._refusals.longest()
        if found is None or found.last - found.since < NEVER_LET_IN_AFTER or capi.was_connected(client):
            return None
        self.forget()
        return AuthenticationError(found.sentence())

    def refusal(self, client: capi.Client) -> AuthenticationError | None:
        """Return that error, or the one that brokers let this client in no more, which may take half a second."""
        found = self._refusals.longest()
        if found is None or found.last - found.since < LET_IN_NO_MORE_AFTER or not capi.was_connected(client):
            return self.never_let_in(client)
        if not (found.certain and self._is_unanswered(client)):
            return None
        self.forget()
        return AuthenticationError(
            f"{found.sentence()} It was connected before: its credentials were changed, or have ended.",
            was_connected=True,
        )

    def refusal_so_far(self) -> AuthenticationError | None:
        """Return the error for a caller that stops waiting, if brokers have refused this client twice or more."""
        found = self._refusals.longest()
        return AuthenticationError(found.sentence()) if found else None

    def check(self, client: capi.Client) -> None:
        """Raise the error that `refusal` returns."""
        if error := self.refusal(client):
            raise error

    def set_credentials(self, client: capi.Client, username: str, password: str) -> None:
        """Have the client log in with other credentials from now on, at once if it is not connected.

        Raises `ConfigError` for credentials that librdkafka does not take.
        """
        try:
            client.set_sasl_credentials(username, password)
        except (ck.KafkaException, TypeError) as error:  # these errors do not show the password
            raise ConfigError(f"Kafka's client does not take these credentials: {error}.") from error
        except ValueError:  # this one has the password
            raise ConfigError(
                "Kafka's client does not take these credentials: they have a NUL character, or one that UTF-8 cannot "
                "hold."
            ) from None
        self.forget()

    def _is_unanswered(self, client: capi.Client) -> bool:
        """Ask all brokers, now and some seconds later: one may refuse this client while the others serve it."""
        now = time.monotonic()
        if now < self._ask_at:
            return False
        self._ask_at = now + ASK_AGAIN_AFTER
        if capi.is_answered(client, _ANY_ANSWER_WITHIN):
            self.forget()
            return False
        self._unanswered += 1
        return self._unanswered >= _ASK_TIMES
