"""A factory of confluent_kafka's clients, in spite of their binding's treatment of exceptions."""

import logging
import warnings
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any, ParamSpec, TypeVar

import confluent_kafka as ck
from confluent_kafka.admin import AdminClient

from headway.errors import ConfigError
from headway.kafka.binding.connection import Connection
from headway.kafka.binding.forks import keep_alive_in_forks
from headway.kafka.binding.known_settings import known_settings
from headway.kafka.binding.oauth import with_oauth
from headway.kafka.binding.served import serve
from headway.runtime.deferred_signals import defer_signals
from headway.settings.config import Config, check_servers, check_settings, explain_refused

P = ParamSpec("P")
T = TypeVar("T")


class _Consumer(ck.Consumer):
    """The binding's consumer, which a weak reference can point at: `keep_alive_in_forks` has one to each client."""


class _Producer(ck.Producer):
    """The binding's producer, which a weak reference can point at: `keep_alive_in_forks` has one to each client."""


_REFERABLE: dict[Any, Any] = {ck.Consumer: _Consumer, ck.Producer: _Producer}


log = logging.getLogger(__name__)

FLUSH_SLICE = 0.15
"""The longest flush, in seconds.

From 0.2 the binding itself divides a flush, and goes on after a fatal error. It then calls the reports with that
exception set, and anything in them may fail.
"""

# The producer's owner knows of a transaction that cannot be aborted. This filter is for all threads, since one around
# each close would change those of threads that run beside it.
warnings.filterwarnings("ignore", "Producer abort_transaction failed during close", RuntimeWarning)

# A new client connects to an address first, and then to the broker that answers there. In between librdkafka waits for
# half of this setting, but for 11 ms at least: with its own 100 ms each client would begin 40 ms later.
_RECONNECT = {"reconnect.backoff.ms": 20}

_CALLBACKS = ("error_cb", "stats_cb", "throttle_cb")


def make_client(kind: Callable[[dict[str, Any]], T], config: Config, connection: Connection | None = None) -> T:
    """Return a client of this kind, which tells `connection` of its connections, and logs through `logging`.

    Raises:
        ConfigError: librdkafka does not know a setting, or does not take its value.
        KafkaError: The setting `oauth_cb` fetches no token.
    """
    check_settings(config)
    check_servers(config)
    callbacks = {name: _guarded(name, config[name]) for name in _CALLBACKS if config.get(name)}
    guarded = {**_RECONNECT, **config, **callbacks}
    guarded |= (connection or Connection()).settings(guarded)
    guarded = with_oauth(guarded)  # last, so that all callbacks hear of a token's failure
    try:
        with defer_signals():  # a signal would be lost: the binding takes it for a setting without a name
            client: T = _REFERABLE.get(kind, kind)(guarded)
    except ck.KafkaException as error:
        raise ConfigError(explain_refused(error.args[0].str(), config, known_settings())) from error
    keep_alive_in_forks(client)
    if isinstance(client, AdminClient):
        serve(client)
    return client


def _close(client: object) -> None:
    if close := getattr(client, "close", None):
        close()


def together(*makes: Callable[[], T], close: Callable[[T], object] = _close) -> list[T]:
    """Make clients at the same time, as the binding takes a second for each with an `oauth_cb`.

    Raises the error of the first one that fails, and closes the others.
    """
    threads = ThreadPoolExecutor(len(makes), "headway-making")
    made = [threads.submit(make) for make in makes]
    try:
        return [each.result() for each in made]
    except BaseException:
        for each in made:
            each.add_done_callback(partial(_close_made, close))
        raise
    finally:
        threads.shutdown(wait=False)


def _close_made(close: Callable[[T], object], made: Future[T]) -> None:
    with suppress(BaseException):
        close(made.result())


def _guarded(name: str, call: Callable[P, object]) -> Callable[P, None]:
    """Return a callback that logs its errors: the binding would drop fetched records, and raise the error anywhere."""

    def guarded(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            call(*args, **kwargs)
        except BaseException:  # a SystemExit, too, concerns the callback alone
            log.exception("The setting %s raised an error; the client goes on.", name)

    return guarded


def close_producer(producer: ck.Producer) -> None:
    """Close a producer; raise `KafkaException` for a transaction that cannot be aborted now."""
    try:
        producer.close()
    except SystemError as error:
        # The binding's own warning, which the program has as an error: it comes when the producer is closed.
        if not isinstance(error.__cause__, Warning):
            raise
        log.debug("A producer was closed that could not go on: %s", error.__cause__)
