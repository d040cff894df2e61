"""The setting `oauth_cb`: a function that fetches tokens, and the report of its failures to users.

The binding asks it in a thread of librdkafka's, drops its errors, and then gives the client up after ten seconds. The
first token is therefore fetched before there is a client, so that an error can be raised at once. A later failure is
logged, and is the reason in the errors that the client's `error_cb` gets.
"""

import importlib
import logging
import time
from collections.abc import Callable, Mapping
from typing import Any

import confluent_kafka as ck

from headway.core.user_errors import description_of
from headway.errors import ConfigError, KafkaError
from headway.settings.config import Config

log = logging.getLogger(__name__)

FetchToken = Callable[[str | None], object]
"""The user's function: it gets the setting `sasl.oauthbearer.config`, and is to return a `Token`."""

Token = tuple[str, float] | tuple[str, float, str] | tuple[str, float, str, Mapping[str, str]]
"""The token, when it expires, and as it may be the principal and the extensions."""

OnError = Callable[[ck.KafkaError], object]

_SAY_AGAIN_AFTER = 60.0
_WHAT_THE_BINDING_SAYS = "OAuth callback raised exception"


def with_oauth(config: Config) -> dict[str, Any]:
    """Return a client's settings with a token fetched by their `oauth_cb`, if they have one.

    Raises:
        ConfigError: It is no function, nor the name of one as `module:function`; or the client would never ask it.
        KafkaError: It raised an error, or returned an object that is no token.
    """
    given = config.get("oauth_cb")
    if given is None:
        return dict(config)
    _require_its_mechanism(config)
    tokens = _Tokens(_named(given) if isinstance(given, str) else given, config.get("sasl.oauthbearer.config"))
    told = {"error_cb": tokens.explaining(config["error_cb"])} if config.get("error_cb") else {}
    return {**config, "oauth_cb": tokens, **told}


def _require_its_mechanism(config: Config) -> None:
    mechanism = str(config.get("sasl.mechanism", config.get("sasl.mechanisms")))
    protocol = str(config.get("security.protocol")).upper()
    if mechanism.upper() != "OAUTHBEARER" or not protocol.startswith("SASL_"):
        raise ConfigError(
            "The setting oauth_cb is asked only with sasl.mechanism=OAUTHBEARER and security.protocol=SASL_SSL (or "
            "SASL_PLAINTEXT). Set both, or remove it."
        )


def _named(name: str) -> FetchToken:
    module, _, function = name.partition(":")
    try:
        found = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(
            f"The setting oauth_cb is {name!r}, which cannot be imported ({error}). Name a function as module:function."
        ) from error
    if not callable(found):
        raise ConfigError(f"The setting oauth_cb is {name!r}, which is no function. Name one as module:function.")
    return found  # type: ignore[no-any-return]


class _Tokens:
    """The tokens of a user's function; the first one is fetched at the start."""

    def __init__(self, fetch: FetchToken, argument: str | None) -> None:
        self._fetch = fetch
        self._failure = ""
        self._said_at: float | None = None
        try:
            self._first = [_checked(fetch(argument))]
        except Exception as error:
            raise KafkaError(
                f"No token could be fetched to log in: the setting oauth_cb {_what(error)}. Correct it, or the service "
                "that it asks."
            ) from error

    def __call__(self, argument: str | None) -> Token:
        """Return a token. Raise the function's error, so that librdkafka asks again ten seconds later."""
        if self._first:
            return self._first.pop()
        try:
            token = _checked(self._fetch(argument))
        except BaseException as error:  # a SystemExit, too, concerns the function alone
            self._failure = f"the setting oauth_cb {_what(error)}"
            self._say(error)
            raise
        self._failure, self._said_at = "", None
        return token

    def explaining(self, error_cb: OnError) -> OnError:
        """Return an `error_cb` that gets the function's error; the binding only reports that there was one."""

        def explained(error: ck.KafkaError) -> None:
            if self._failure and _WHAT_THE_BINDING_SAYS in error.str():
                error = ck.KafkaError(error.code(), f"No token could be fetched: {self._failure}")
            error_cb(error)

        return explained

    def _say(self, error: BaseException) -> None:
        if self._said_at is None or time.monotonic() - self._said_at > _SAY_AGAIN_AFTER:
            first, self._said_at = self._said_at is None, time.monotonic()
            log.error(
                "No token could be fetched, and this client cannot log in again: %s.", self._failure, exc_info=first
            )


class _NoTokenError(Exception):
    """The object that a function has returned is no token."""


def _checked(token: object) -> Token:
    """Return a token, or raise; the binding would wait for ever for a token after another object."""
    if (
        not isinstance(token, tuple)
        or not 2 <= len(token) <= 4
        or not isinstance(token[0], str)
        or not isinstance(token[1], int | float)
    ):
        raise _NoTokenError(f"a {type(token).__name__}")
    return token


def _what(error: BaseException) -> str:
    if isinstance(error, _NoTokenError):
        return f"returned {error}; it must return a tuple of the token and the time at which it expires, in seconds"
    return f"raised {description_of(error)}"
