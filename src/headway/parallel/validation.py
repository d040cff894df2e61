"""The checks of a parallel consumer's options, each bound with a sentence for its error."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from headway.config import OutputSettings, ParallelSettings
from headway.core.retry import Retries
from headway.errors import ConfigError, DeserializationError
from headway.execution.handlers import is_coroutine_function, is_generator_function
from headway.parallel.commits import CommitMode


def check_at_least(name: str, value: float, bound: int) -> None:
    """Raise `ConfigError` below the bound."""
    if value < bound:
        raise ConfigError(f"{name} is {value}; it must be at least {bound}.")


def check_whole(name: str, value: Any) -> None:
    """Raise `ConfigError` for a value that is no whole number."""
    if not isinstance(value, int):
        raise ConfigError(f"{name} is {value!r}; it must be a whole number.")


def check_above_zero(name: str, value: float) -> None:
    """Raise `ConfigError` for a value that is not above 0, or not finite."""
    if not 0 < value < math.inf:
        raise ConfigError(f"{name} is {value}; it must be above 0 and finite, or left out.")


def check_shares(policy: str, levels: int, paced_by: Sequence[tuple[str, Any]]) -> None:
    """Raise `ConfigError` for shares of more slots than are used: the highest level would never reach its own."""
    for name, value in paced_by:
        if policy == "capacity_burst" and levels > 1 and value:
            raise ConfigError(
                f"policy='capacity_burst' gives each level a share of max_concurrency, and with {name}={value} fewer "
                "records run, all of the highest level. Choose fair, which shares what there is."
            )


def check_choice(name: str, value: Any, choices: Sequence[Any]) -> None:
    """Raise `ConfigError` for a value that is none of the choices."""
    if value not in choices:
        raise ConfigError(f"{name} is {value!r}; choose one of {', '.join(map(repr, filter(None, choices)))}.")


def check_handler(handler: Callable[..., Any], executor: str | None) -> None:
    """Raise `ConfigError` for a handler that a call would not run, or that the executor does not run."""
    if is_generator_function(handler):
        raise ConfigError(
            f"The handler {getattr(handler, '__qualname__', repr(handler))} yields, and only run_and_produce takes "
            "that: elsewhere nothing of it would run. Write it without yield."
        )
    is_async = is_coroutine_function(handler)
    if executor not in (None, *(("async",) if is_async else ("thread", "process"))):
        kind = "an async def" if is_async else "a plain function"
        raise ConfigError(f"executor={executor!r} does not run {kind}. Leave it out, or choose another.")


def check_callback(name: str, callback: Callable[..., Any] | None) -> None:
    """Raise `ConfigError` for a callback that a call would not run."""
    if callback and (is_coroutine_function(callback) or is_generator_function(callback)):
        raise ConfigError(
            f"{name} is an async def, or yields: it is called in a thread, and nothing of it would run. Give a plain "
            "function; for an event loop, one that calls its call_soon_threadsafe."
        )


def checked_retries(retries: Retries, dead_letter_topic: str | None) -> Retries:
    """Return the retries, with unreadable records as fatal; raises `ConfigError` if there is no dead-letter topic."""
    if retries.max_attempts is not None and dead_letter_topic is None:
        raise ConfigError(
            f"After max_attempts={retries.max_attempts} a record goes to the dead_letter_topic, and there is none. "
            "Name one, or leave out max_attempts to try for ever."
        )
    # Bytes that cannot be read today cannot be read tomorrow.
    return replace(retries, fatal=(*retries.fatal, DeserializationError))


def check_transactions(commit_mode: CommitMode, settings: ParallelSettings, outputs: OutputSettings) -> None:
    """Raise `ConfigError` for settings that contradict the commit mode."""
    if commit_mode != "transactional":
        if "transactional.id" in outputs.kafka:
            raise ConfigError(f"transactional.id is for commit_mode='transactional'; it is {commit_mode!r}.")
    elif settings.kafka.get("isolation.level", "read_committed") != "read_committed":
        # Offsets of a transaction that is about to be committed would be overlooked too.
        raise ConfigError(
            f"With commit_mode='transactional' isolation.level is {settings.kafka['isolation.level']!r}, and what is "
            "read could yet be aborted. Remove it."
        )
