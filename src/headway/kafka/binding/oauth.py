"""Supports the setting `oauth_cb`, the user's function that fetches OAuth tokens, and reports its failures to the user.

The binding calls the function on a thread of librdkafka, drops its errors, and lets the creation of the client fail
after ten seconds. So Headway fetches the first token before the client is created, and raises an error at once if that
fails. A later failure is logged, and the errors that `error_cb` gets name it as the cause.
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
"""The user's function. It gets the setting `sasl.oauthbearer.config`, and must return a `Token`."""

Token = tuple[str, float] | tuple[str, float, str] | tuple[str, float, str, Mapping[str, str]]
"""The token and the time at which it expires, optionally followed by the principal and the extensions."""

OnError = Callable[[ck.KafkaError], object]

_REPEAT_AFTER = 60.0  # seconds between two log lines
_BINDINGS_TEXT = "OAuth callback raised exception"


def with_oauth(config: Config) -> dict[str, Any]:
    """Return a client's settings. If they include `oauth_cb`, fetch the first token, and wrap the callbacks.

    Raises:
        ConfigError: `oauth_cb` is neither a function nor the name of a function such as `module:function`; or the
            client would never call it, because the other settings choose another login mechanism.
        KafkaError: The function raised an error, or returned an object that is not a token.
    """
    given = config.get("oauth_cb")
    if given is None:
        return dict(config)
    _require_its_mechanism(config)
    tokens = _Tokens(_named(given) if isinstance(given, str) else given, config.get("sasl.oauthbearer.config"))
    explained = {"error_cb": tokens.explaining(config["error_cb"])} if config.get("error_cb") else {}
    return {**config, "oauth_cb": tokens, **explained}


def _require_its_mechanism(config: Config) -> None:
    mechanism = str(config.get("sasl.mechanism", config.get("sasl.mechanisms")))
    protocol = str(config.get("security.protocol")).upper()
    if mechanism.upper() != "OAUTHBEARER" or not protocol.startswith("SASL_"):
        raise ConfigError(
            "The setting oauth_cb is used only with sasl.mechanism=OAUTHBEARER and security.protocol=SASL_SSL (or "
            "SASL_PLAINTEXT). Set both of these, or remove oauth_cb."
        )


def _named(name: str) -> FetchToken:
    module, _, function = name.partition(":")
    try:
        found = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(
            f"The setting oauth_cb is {name!r}, which cannot be imported ({error}). Name an existing function in the "
            "form module:function."
        ) from error
    if not callable(found):
        raise ConfigError(
            f"The setting oauth_cb is {name!r}, which is not a function. Name a function in the form module:function."
        )
    return found  # type: ignore[no-any-return]


class _Tokens:
    """Fetches tokens with the user's function. The constructor fetches the first token."""

    def __init__(self, fetch: FetchToken, argument: str | None) -> None:
        self._fetch = fetch
        self._failure = ""
        self._logged_at: float | None = None
        try:
            self._first = [_checked(fetch(argument))]
        except Exception as error:
            raise KafkaError(
                f"No token could be fetched to log in: the setting oauth_cb {_failure_of(error)}. Correct the "
                "function, or check the service that it uses."
            ) from error

    def __call__(self, argument: str | None) -> Token:
        """Return a token.

        If the function raises an error, this call raises it too, and librdkafka repeats the call ten seconds later.
        """
        if self._first:
            return self._first.pop()
        try:
            token = _checked(self._fetch(argument))
        except BaseException as error:  # even a SystemExit is noted, because the binding drops the error
            self._failure = f"the setting oauth_cb {_failure_of(error)}"
            self._log(error)
            raise
        self._failure, self._logged_at = "", None
        return token

    def explaining(self, error_cb: OnError) -> OnError:
        """Wrap `error_cb` so that it gets the reason why no token was fetched.

        The binding itself does not pass the reason on.
        """

        def explained(error: ck.KafkaError) -> None:
            if self._failure and _BINDINGS_TEXT in error.str():
                error = ck.KafkaError(error.code(), f"No token could be fetched: {self._failure}")
            error_cb(error)

        return explained

    def _log(self, error: BaseException) -> None:
        if self._logged_at is None or time.monotonic() - self._logged_at > _REPEAT_AFTER:
            first, self._logged_at = self._logged_at is None, time.monotonic()
            log.error(
                "No token could be fetched, and this client cannot log in again: %s.", self._failure, exc_info=first
            )


class _NoTokenError(Exception):
    """The user's function returned an object that is not a token."""


def _checked(token: object) -> Token:
    """Return the object if it is a token, and raise an error otherwise.

    With any other object, the binding would wait forever for a token.
    """
    if (
        not isinstance(token, tuple)
        or not 2 <= len(token) <= 4
        or not isinstance(token[0], str)
        or not isinstance(token[1], int | float)
    ):
        raise _NoTokenError(f"a {type(token).__name__}")
    return token


def _failure_of(error: BaseException) -> str:
    if isinstance(error, _NoTokenError):
        return f"returned {error}; it must return a tuple of the token and the time at which it expires, in seconds"
    return f"raised {description_of(error)}"
