"""Finds out why a client has no connection.

librdkafka retries forever, and reports errors only to `error_cb` and its log. If no broker has ever accepted the
client's login, the client gets an error within seconds. If a login was accepted before, the client is given half a
minute, because renewed credentials reach brokers and clients at different times.
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
"""A client that was never connected gets an error when brokers have refused it for this many seconds."""

LET_IN_NO_MORE_AFTER = 30.0
"""A client that was connected earlier gets an error when brokers have refused it for this many seconds."""

ASK_AGAIN_AFTER = 5.0
_ANY_ANSWER_WITHIN = 0.5
_ASK_TIMES = 2

_LOST_HEARTBEAT = "Timed out ConsumerGroupHeartbeatRequest"


def change_credentials(config: dict[str, Any], username: str, password: str) -> None:
    """Store new credentials in the settings from which later clients are created."""
    config.update({"sasl.username": username, "sasl.password": password})


class Connection:
    """Collects what librdkafka reports about the connections of one client. Create the client with `settings`.

    `on_lost_heartbeat` is called when librdkafka stops waiting for the answer to a heartbeat (KIP-848); librdkafka
    itself only logs this. All reports arrive while the client is polled, on the polling thread.
    """

    def __init__(self, on_lost_heartbeat: Callable[[], None] = lambda: None) -> None:
        self._on_lost_heartbeat = on_lost_heartbeat
        self._refusals = Refusals()
        self._unanswered = 0
        self._ask_at = 0.0

    def settings(self, config: Config) -> dict[str, Any]:
        """Return settings that pass a client's errors and log to this object, and then to the user's callbacks."""
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
        """The reason why the last connection ended, with the broker's name, or "no answer".

        "no answer" means that no connection ended in the last minute.
        """
        return self._refusals.reason(time.monotonic()) or "no answer"

    @property
    def is_ended(self) -> bool:
        """True if a broker has closed its connection to this client, which shows that the broker is running."""
        return self._refusals.brokers > 0

    def because(self) -> str:
        """Return `reason` in parentheses, as the end of a sentence, or an empty string if no reason is known."""
        reason = self._refusals.reason(time.monotonic())
        return f" (the last connection ended with: {reason})" if reason else ""

    def forget(self) -> None:
        """Forget all refusals so far, for example because the client now uses other credentials."""
        self._unanswered = 0
        self._refusals.forget()

    def never_let_in(self, client: capi.Client) -> AuthenticationError | None:
        """Return an error if brokers refuse this client and have never accepted its login, otherwise None.

        When the error is returned, the refusals are forgotten.
        """
        found = self._refusals.longest()
        if found is None or found.last - found.since < NEVER_LET_IN_AFTER or capi.was_connected(client):
            return None
        self.forget()
        return AuthenticationError(found.sentence())

    def refusal(self, client: capi.Client) -> AuthenticationError | None:
        """Return the error of `never_let_in`, or an error if brokers no longer accept the login.

        This may take 0.5 s.
        """
        found = self._refusals.longest()
        if found is None or found.last - found.since < LET_IN_NO_MORE_AFTER or not capi.was_connected(client):
            return self.never_let_in(client)
        if not (found.certain and self._is_unanswered(client)):
            return None
        self.forget()
        return AuthenticationError(
            f"{found.sentence()} The client was connected before, so its credentials were changed or have expired.",
            was_connected=True,
        )

    def refusal_so_far(self) -> AuthenticationError | None:
        """Return an error if brokers have refused this client at least twice.

        This is for a caller that stops waiting, and so cannot wait for the time limits of `refusal`.
        """
        found = self._refusals.longest()
        return AuthenticationError(found.sentence()) if found else None

    def check(self, client: capi.Client) -> None:
        """Raise the error that `refusal` returns, if there is one."""
        if error := self.refusal(client):
            raise error

    def set_credentials(self, client: capi.Client, username: str, password: str) -> None:
        """Use other credentials for all logins from now on. A client without a connection logs in at once."""
        try:
            client.set_sasl_credentials(username, password)
        except (ck.KafkaException, TypeError) as error:  # the text of these errors does not contain the password
            raise ConfigError(f"Kafka's client does not accept these credentials: {error}.") from error
        except ValueError:  # the text of this error contains the password
            raise ConfigError(
                "Kafka's client does not accept these credentials: they contain a NUL character, or one that cannot be "
                "encoded in UTF-8."
            ) from None
        self.forget()

    def _is_unanswered(self, client: capi.Client) -> bool:
        """Return whether no broker answers this client, in two requests some seconds apart.

        All brokers count, because one broker may refuse the client while others accept it.
        """
        now = time.monotonic()
        if now < self._ask_at:
            return False
        self._ask_at = now + ASK_AGAIN_AFTER
        if capi.is_answered(client, _ANY_ANSWER_WITHIN):
            self.forget()
            return False
        self._unanswered += 1
        return self._unanswered >= _ASK_TIMES
