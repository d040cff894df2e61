"""Creates confluent_kafka's clients so that neither signals nor errors in callbacks do harm in the binding."""

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
from headway.runtime.deferred_signals import allow_signals, defer_signals
from headway.settings.config import Config, check_servers, check_settings, explain_refused

P = ParamSpec("P")
T = TypeVar("T")
U = TypeVar("U")


class _ReferableConsumer(ck.Consumer):
    """The binding's consumer with support for weak references, which `keep_alive_in_forks` needs."""


class _ReferableProducer(ck.Producer):
    """The binding's producer with support for weak references, which `keep_alive_in_forks` needs."""


_REFERABLE: dict[Any, Any] = {ck.Consumer: _ReferableConsumer, ck.Producer: _ReferableProducer}


log = logging.getLogger(__name__)

FLUSH_SLICE = 0.15
"""The longest single flush, in seconds.

The binding divides a flush of 0.2 s or more into slices, and goes on to the next slice after a fatal error. It then
calls the delivery callbacks while that exception is set, so anything in them may fail.
"""

# Whoever closes a producer already knows about a transaction that could not be aborted. The filter is global, because a
# filter around each `close` would also change the filters of other threads.
warnings.filterwarnings("ignore", "Producer abort_transaction failed during close", RuntimeWarning)

# A new client first connects to an address, and then to the broker that answered there. In between, librdkafka waits
# for half of this setting, and for at least 11 ms. With its default of 100 ms, each client would start 40 ms later.
_RECONNECT = {"reconnect.backoff.ms": 20}

_CALLBACKS = ("error_cb", "stats_cb", "throttle_cb")


def make_client(kind: Callable[[dict[str, Any]], T], config: Config, connection: Connection | None = None) -> T:
    """Return a client of this kind, which reports its connections to `connection`, and logs through `logging`.

    Raises:
        ConfigError: librdkafka does not know a setting, or does not accept its value.
        KafkaError: The function in the setting `oauth_cb` returned no token.
    """
    check_settings(config)
    check_servers(config)
    callbacks = {name: _guarded(name, config[name]) for name in _CALLBACKS if config.get(name)}
    guarded = {**_RECONNECT, **config, **callbacks}
    guarded |= (connection or Connection()).settings(guarded)
    with allow_signals():  # a user's `oauth_cb` may take long
        guarded = with_oauth(guarded)  # last, so that all callbacks learn of a failed token
    try:
        with defer_signals():  # the binding would report an interrupt as a setting without a name
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
    """Create clients concurrently, because the binding takes a second for each client with an `oauth_cb`.

    If one fails, this raises its error and closes the others.
    """
    threads = ThreadPoolExecutor(len(makes), "headway-making")
    made = list[Future[T]]()
    try:
        made += [threads.submit(make) for make in makes]
        with allow_signals():  # a user's `oauth_cb` may take long
            return [each.result() for each in made]
    except BaseException:
        for each in made:
            each.add_done_callback(partial(_close_made, close))
        raise
    finally:
        threads.shutdown(wait=False)


def both(first: Callable[[], T], second: Callable[[], U], close: Callable[[T | U], object] = _close) -> tuple[T, U]:
    """Create two clients of different kinds as `together` does."""
    makes: list[Callable[[], Any]] = [first, second]
    made_first, made_second = together(*makes, close=close)
    return made_first, made_second


def _close_made(close: Callable[[T], object], made: Future[T]) -> None:
    with suppress(BaseException):
        close(made.result())


def _guarded(name: str, call: Callable[P, object]) -> Callable[P, None]:
    """Return a callback that logs its errors, for which the binding would drop fetched records or fail elsewhere."""

    def guarded(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            call(*args, **kwargs)
        except BaseException:  # even a SystemExit concerns only the callback
            log.exception("The setting %s raised an error; the client goes on.", name)

    return guarded


def close_producer(producer: ck.Producer) -> None:
    """Close a producer. Raises `KafkaException` if its open transaction cannot be aborted now."""
    try:
        producer.close()
    except SystemError as error:
        # This program turns warnings into errors, and the binding warned about the transaction. The producer is closed.
        if not isinstance(error.__cause__, Warning):
            raise
        log.debug("A producer was closed that could not go on: %s", error.__cause__)
