"""Decides whether and when a failed record is tried again.

Only this module reads the attributes of an exception. Each attribute is read once and put into the verdict, and later
code uses only the verdict.

Invariants: a decision depends only on its arguments, which include the time and a random number. Every record gets a
decision, whatever the user's functions and the exception itself do. A delay is never negative. A delay is also never
shorter than the delay that a `RetriableError` requests, up to a day.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from headway.core.user_errors import attribute, cause_or_context, class_name, is_error
from headway.declarations import called, check_choice, check_function, is_number, is_whole, shown
from headway.errors import ConfigError, FatalError, RetriableError, RetryLater


def failure_behind(error: BaseException) -> BaseException:
    """Return the error that made an attempt fail.

    For a `RetryLater`, the result is its cause or context, if it has one.
    """
    if not issubclass(type(error), RetryLater):
        return error
    # this attribute is set if the error is from another process, because causes are not sent
    sent = attribute(error, REASON)
    return sent if is_error(sent) else cause_or_context(error) or error


REASON = "_reason"
"""The attribute of a `RetryLater` from another process that holds the error that made the attempt fail."""


class Again(NamedTuple):
    """The verdict to try again, not before the time `at`.

    If the user's back-off or delay function raised an error, `delay_error` is that error, and the next rule determined
    the delay. If `untried` is True, the attempt does not count.
    """

    at: float
    delay_error: BaseException | None = None
    untried: bool = False


class GiveUp(NamedTuple):
    """The verdict not to try again, with the reason.

    `tried_out` is True if the only reason is that all allowed attempts have failed.
    """

    reason: str
    tried_out: bool = False


class Later(NamedTuple):
    """The verdict to store the record for a later attempt, as a `RetryLater` requests.

    `delay` is the value from the exception, which has not been checked yet.
    """

    delay: Any
    reason: str = "it is tried again later"


class KeepInPlace(NamedTuple):
    """The verdict to keep a record that has failed for good in its place in its lane, until it is released.

    `instead` is the verdict for a record that can no longer be kept.
    """

    instead: GiveUp


class Move(NamedTuple):
    """The decision of an operator to move a record, without a call of the handler.

    In one transaction, a copy of the record is stored in the Kafka topic `topic`, and the record is marked as done.
    """

    topic: str
    reason: str
    request: str = ""  # the id of the operator's request, if there is one
    answer: Any = None  # the answer to the request, an output that is stored in the same transaction


Verdict = Again | GiveUp | Later | KeepInPlace

Backoff = Callable[[int, float], float]
"""A function of the number of the failed attempt, counted from 1, and of a random number from 0 to 1.

The function returns how many seconds to wait.
"""

Delay = Callable[[Any, int, BaseException], float]
"""A user's function of the record, the number of the failed attempt, counted from 1, and the error.

The function returns how many seconds to wait.
"""


def _check_backoff(name: str, backoff: Any) -> None:
    """Raise `ConfigError` if a value is not a back-off.

    The check covers the function's parameters, and its results for attempt 1.
    """
    check_function(name, backoff, ("attempt", "random_number"), "Give fixed_backoff(0.1), for example.")
    for random_number in (0.0, 1.0):
        try:
            seconds = backoff(1, random_number)
        except ConfigError as error:
            raise ConfigError(
                f"{name} is {called(backoff)}, which divides a capacity among levels and does not return delays. Give "
                "exponential_backoff() or fixed_backoff(0.1), for example."
            ) from error
        except Exception:
            # The user's function may need something that does not exist yet. If the function still raises an error
            # later, the default back-off is used.
            return
        if not is_number(seconds) or not 0 <= seconds < math.inf:
            raise ConfigError(
                f"{name} is {called(backoff)}, which returned {shown(seconds)} for attempt 1 and the random number "
                f"{random_number:g}; it must return a number of seconds, at least 0 and finite."
            )


def _check_delay(name: str, seconds: Any) -> None:
    if not is_number(seconds) or not 0 <= seconds < math.inf:
        raise ConfigError(f"{name} is {shown(seconds)}; it must be a number of seconds, at least 0 and finite.")


def _is_exception_class(kind: object) -> bool:
    return isinstance(kind, type) and issubclass(kind, BaseException)


def fixed_backoff(seconds: float) -> Backoff:
    """Return a back-off whose delay is the same number of seconds after each attempt.

    >>> fixed_backoff(1.5)(7, 0.5)
    1.5
    """
    _check_delay("seconds", seconds)
    return lambda attempt, random_number: seconds


def exponential_backoff(first: float = 1.0, factor: float = 2.0, longest: float = 60.0, jitter: float = 0.5) -> Backoff:
    """Return a back-off whose delays start at `first` seconds and grow by a factor, up to `longest` seconds.

    A random number shortens each delay by at most the fraction `jitter`, so that records which failed at the same time
    are retried at different times.

    >>> backoff = exponential_backoff(first=1, longest=60, jitter=0.5)
    >>> [backoff(attempt, 0) for attempt in (1, 2, 3, 1000)], backoff(3, 1)
    ([1.0, 2.0, 4.0, 60.0], 2.0)
    """
    _check_delay("longest", longest)
    if not is_number(first) or not 0 < first < math.inf:
        raise ConfigError(f"first is {shown(first)}; it must be a number of seconds, above 0 and finite.")
    if not is_number(factor) or not 1 <= factor < math.inf:
        raise ConfigError(f"factor is {shown(factor)}; it must be a number, at least 1 and finite.")
    if not is_number(jitter) or not 0 <= jitter <= 1:
        raise ConfigError(f"jitter is {shown(jitter)}; it must be a number from 0, for no jitter, to 1.")

    def delay(attempt: int, random_number: float) -> float:
        try:
            whole = min(longest, first * float(factor) ** (attempt - 1))
        except OverflowError:
            whole = longest
        return float(whole) * (1 - jitter * random_number)

    return delay


_DEFAULT_BACKOFF = exponential_backoff()
_LONGEST_ASKED_FOR = 86_400.0  # the longest accepted `retry_after`, in seconds; a longer one is probably a mistake


@dataclass(frozen=True, slots=True)
class Retries:
    """Decides whether and when failed records are retried.

    Args:
        backoff: The delay after each attempt. It can be `fixed_backoff(…)`, `exponential_backoff(…)`, or a function of
            the attempt, counted from 1, and a random number from 0 to 1. If the function raises an error, the default
            back-off is used.
        max_attempts: The number of attempts after which a record becomes a dead letter, even if the error is a
            `RetriableError` or `RetryLater`. None means that records are tried forever.
        fatal: The classes of errors that are not retried, in addition to `FatalError`. A `RetriableError` is retried in
            any case, up to `max_attempts`.
        by_exception: The back-offs for certain classes of errors. The back-off of the error's class is used, or that of
            the nearest base class.
        delay: A function of (record, attempt, error) that is used instead of the back-off. If the function raises an
            error, or does not return a number of seconds, the back-off is used.
        share: The fraction of the slots that records which failed before get while other records wait; at most 1. This
            keeps records that fail repeatedly from taking more slots from the others.
        then: What happens with a record that is not retried: `dead_letter` to store it in the dead letter topic, or
            `hold` to keep it in its place, so that later records of its key wait, until `headway rules release`, until
            the circuit breaker closes, or until the next run. If held records leave no space for others, the oldest of
            them become dead letters.

    The delay is always at least the `retry_after` of a `RetriableError`. Raises `ConfigError` for arguments that are
    not valid. When a `Retries` is created, each back-off is called for attempt 1 to check it.

    >>> Retries(fixed_backoff(2), max_attempts=2).decide("record", 1, OSError(), now=100.0, random_number=0.5)
    Again(at=102.0, delay_error=None, untried=False)
    >>> Retries(fixed_backoff(2), max_attempts=2).decide("record", 2, OSError(), now=100.0, random_number=0.5)
    GiveUp(reason='attempt 2 of 2 failed', tried_out=True)
    """

    backoff: Backoff = _DEFAULT_BACKOFF
    max_attempts: int | None = None
    fatal: tuple[type[BaseException], ...] = ()
    delay: Delay | None = None
    by_exception: Mapping[type[BaseException], Backoff] = field(default_factory=dict)
    share: float = 0.25
    then: Literal["dead_letter", "hold"] = "dead_letter"

    def __post_init__(self) -> None:
        _check_backoff("backoff", self.backoff)
        if not isinstance(self.by_exception, Mapping) or not all(map(_is_exception_class, self.by_exception)):
            raise ConfigError(
                f"by_exception is {shown(self.by_exception)}; it must be a mapping of exception classes to back-offs, "
                "such as {TimeoutError: fixed_backoff(5)}."
            )
        for kind, backoff in self.by_exception.items():
            _check_backoff(f"by_exception[{class_name(kind)}]", backoff)
        if self.max_attempts is not None and (not is_whole(self.max_attempts) or self.max_attempts < 1):
            raise ConfigError(
                f"max_attempts is {shown(self.max_attempts)}; it must be a whole number, at least 1, or None to try "
                "forever."
            )
        if not isinstance(self.fatal, tuple) or not all(map(_is_exception_class, self.fatal)):
            raise ConfigError(
                f"fatal is {shown(self.fatal)}; it must be a tuple of exception classes, such as (KeyError,)."
            )
        if not is_number(self.share) or not 0 < self.share <= 1:
            raise ConfigError(f"share is {shown(self.share)}; it must be a number above 0, and at most 1.")
        check_choice("then", self.then, ("dead_letter", "hold"))
        if self.delay is not None:
            check_function("delay", self.delay, ("record", "attempt", "error"), "It returns seconds.")

    def decide(
        self, record: object, attempt: int, error: BaseException, now: float, random_number: float, untried: int = 0
    ) -> Verdict:
        """Decide what to do after an attempt has failed.

        `attempt` is its number, counted from 1. `untried` is the number of earlier attempts that ended before anything
        was tried.
        """
        kind = type(error)  # not `isinstance`, which also reads the attribute `__class__` of the error
        is_later = issubclass(kind, RetryLater)
        is_retriable = issubclass(kind, RetriableError)
        if not is_retriable and not is_later and self._is_fatal(kind):
            return GiveUp(f"{class_name(kind)} is not retried")
        was_untried = is_retriable and _is_true(attribute(error, "untried"))
        tried = attempt - untried - was_untried
        if self.max_attempts is not None and tried >= self.max_attempts:
            return GiveUp(f"attempt {tried} of {self.max_attempts} failed", tried_out=True)
        if is_later:
            return Later(attribute(error, "delay"))
        seconds, delay_error = self._seconds(record, max(1, tried), error, random_number)
        if is_retriable:
            seconds = max(seconds, _asked_for(attribute(error, "retry_after")))
        return Again(now + seconds, delay_error, was_untried)

    def _is_fatal(self, kind: type[BaseException]) -> bool:
        try:
            return issubclass(kind, (FatalError, *self.fatal))
        except BaseException:  # an abstract class can override `issubclass` and raise an error
            return issubclass(kind, FatalError)

    def _backoff_of(self, kind: type[BaseException]) -> Backoff:
        """Return the back-off for an error of this class."""
        if not self.by_exception:
            return self.backoff
        return next((self.by_exception[each] for each in kind.__mro__ if each in self.by_exception), self.backoff)

    def _seconds(
        self, record: object, attempt: int, error: BaseException, random_number: float
    ) -> tuple[float, BaseException | None]:
        # Everything that the user's functions raise is caught, because a record without a verdict would block its lane
        # forever.
        try:
            default = _checked(self._backoff_of(type(error))(attempt, random_number))
        except BaseException as delay_error:
            return _DEFAULT_BACKOFF(attempt, random_number), delay_error
        if self.delay is None:
            return default, None
        try:
            return _checked(self.delay(record, attempt, error)), None
        except BaseException as delay_error:
            return default, delay_error


def _is_true(untried: object) -> bool:
    try:
        return bool(untried)
    except BaseException:
        return False


def _asked_for(seconds: object) -> float:
    """Return the shortest wait that an error requests, in seconds.

    The result is 0 if the requested value is not a number.
    """
    try:
        return float(min(max(0.0, seconds), _LONGEST_ASKED_FOR)) if isinstance(seconds, int | float) else 0.0
    except BaseException:
        return 0.0


def _checked(seconds: float) -> float:
    seconds = float(seconds)
    if not math.isfinite(seconds):
        raise ValueError(f"The delay is {seconds} seconds; it must be finite.")
    return max(0.0, seconds)
