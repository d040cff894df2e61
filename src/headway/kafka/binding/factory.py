"""Creates and closes confluent_kafka's clients, and protects them from signals and from errors in callbacks."""

import logging
import warnings
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any, ParamSpec, TypeVar

import confluent_kafka as ck
from confluent_kafka import cimpl
from confluent_kafka.admin import AdminClient

from headway.errors import ConfigError
from headway.kafka.binding.connection import Connection
from headway.kafka.binding.forks import keep_alive_in_forks
from headway.kafka.binding.known_settings import known_settings
from headway.kafka.binding.oauth import with_oauth
from headway.kafka.binding.served import serve
from headway.runtime.deferred_signals import allow_signals, defer_signals
from headway.settings.config import Config, check_servers, check_settings, explain_refused

P = ParamSpec("P")
T = TypeVar("T")
U = TypeVar("U")


class _ReferableConsumer(cimpl.Consumer):
    """The binding's consumer, with support for the weak references that `keep_alive_in_forks` needs."""


class _ReferableProducer(cimpl.Producer):
    """The binding's producer, with support for the weak references that `keep_alive_in_forks` needs."""


_REFERABLE: dict[Any, Any] = {cimpl.Consumer: _ReferableConsumer, cimpl.Producer: _ReferableProducer}


log = logging.getLogger(__name__)

FLUSH_SLICE = 0.15
"""The longest time in seconds for a single call of `flush`.

The binding divides a flush of 0.2 s or more into slices. If librdkafka reports a fatal error, the binding continues
with the next slice, and runs the delivery callbacks while the exception for the fatal error is set. As a result, any
call in a callback may fail.
"""

# This warning is superfluous, because the caller that closes a producer has already handled the failed abort. The
# filter is global, because a filter around each `close` would also change the filters of other threads.
warnings.filterwarnings("ignore", "Producer abort_transaction failed during close", RuntimeWarning)

# A new client first connects to a bootstrap address, and then to the broker behind it. Between the two connections,
# librdkafka waits for half of this setting, or for 11 ms if that is longer. With the setting's default of 100 ms, each
# client would start 40 ms later.
_RECONNECT = {"reconnect.backoff.ms": 20}

_CALLBACKS = ("error_cb", "stats_cb", "throttle_cb")


def make_client(kind: Callable[[dict[str, Any]], T], config: Config, connection: Connection | None = None) -> T:
    """Create a client of this kind, which reports its connections to `connection`, and logs through `logging`.

    Raises:
        ConfigError: librdkafka does not know a setting, or does not accept its value.
        KafkaError: The function in the setting `oauth_cb` did not return a valid token.
    """
    check_settings(config)
    check_servers(config)
    callbacks = {name: _guarded(name, config[name]) for name in _CALLBACKS if config.get(name)}
    guarded = {**_RECONNECT, **config, **callbacks}
    guarded |= (connection or Connection()).settings(guarded)
    with allow_signals():  # `oauth_cb` calls the user's function, which may take a long time
        # `explaining` comes last because it wraps the final `error_cb`. In this way, every callback that gets the error
        # also gets the reason why no token was fetched.
        guarded = with_oauth(guarded)
    try:
        with defer_signals():  # if an interrupt is raised in this call, the binding reports it as an invalid setting
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
    """Create several clients at the same time, because the binding needs a second for each client with an `oauth_cb`.

    If one of them fails, this raises its error and closes the others.
    """
    threads = ThreadPoolExecutor(len(makes), "headway-making")
    made = list[Future[T]]()
    try:
        made += [threads.submit(make) for make in makes]
        with allow_signals():  # `oauth_cb` calls the user's function, which may take a long time
            return [each.result() for each in made]
    except BaseException:
        for each in made:
            each.add_done_callback(partial(_close_made, close))
        raise
    finally:
        threads.shutdown(wait=False)


def both(first: Callable[[], T], second: Callable[[], U], close: Callable[[T | U], object] = _close) -> tuple[T, U]:
    """Create two clients of different types at the same time, as `together` does for clients of one type."""
    makes: list[Callable[[], Any]] = [first, second]
    made_first, made_second = together(*makes, close=close)
    return made_first, made_second


def _close_made(close: Callable[[T], object], made: Future[T]) -> None:
    with suppress(BaseException):
        close(made.result())


def _guarded(name: str, call: Callable[P, object]) -> Callable[P, None]:
    """Wrap a callback so that its errors are logged instead of raised.

    After an error in a callback, the binding would drop fetched records, or fail in a later call.
    """

    def guarded(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            call(*args, **kwargs)
        except BaseException:  # even a SystemExit in a callback must not end the client
            log.exception("The callback %s raised an error. The client continues.", name)

    return guarded


def close_producer(producer: cimpl.Producer) -> None:
    """Close a producer. Raises `KafkaException` if its open transaction cannot be aborted now."""
    try:
        producer.close()
    except SystemError as error:
        # This process turns warnings into errors, and the binding warned that the transaction was not aborted. The
        # producer is closed in spite of the error.
        if not isinstance(error.__cause__, Warning):
            raise
        log.debug("A producer that had failed was closed: %s", error.__cause__)
