"""The checks of a parallel consumer's options, its handler and its callbacks, each with a sentence for its error."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

from headway.core.engine.circuit import CircuitBreaker
from headway.core.engine.lanes import Ordering
from headway.core.engine.rate_limits import RateLimits
from headway.core.engine.slot_policies import SlotPolicy, make_slots
from headway.core.levels.naming import is_topic_name
from headway.core.retry import Retries
from headway.declarations import (
    called,
    check_above_zero,
    check_choice,
    check_flag,
    check_function,
    check_kind,
    check_number,
    check_whole,
    is_coroutine_function,
    is_generator_function,
    runs_nothing_when_called,
    shown,
    takes,
)
from headway.delay.due_time import lifetime
from headway.errors import ConfigError, DeserializationError
from headway.execution.handlers import BatchHandler, Handler, WithContext, collecting, with_context
from headway.execution.lifespan import check_lifespan
from headway.parallel.commits import CommitMode
from headway.parallel.tenancy import Tenancy, checked_tenancy
from headway.parallel.tenant_rates import checked_tenant_rates
from headway.records.record_types import ConsumerRecord
from headway.settings.config import OutputSettings, ParallelSettings

_LEAST_MEMORY = 2**20  # bytes


class CheckedOptions(NamedTuple):
    """The options of a parallel consumer, checked and completed."""

    retries: Retries
    slots: SlotPolicy
    outputs: OutputSettings
    tenancy: Tenancy | None
    limits: RateLimits[ConsumerRecord] | None


def checked_options(
    settings: ParallelSettings,
    *,
    ordering: Any,
    max_concurrency: Any,
    adaptive: Any,
    rate_limit: Any,
    key_rate_limit: Any,
    tenant_rate_limit: Any,
    time_limit: Any,
    executor: Any,
    processes: Any,
    policy: Any,
    distributor: Any,
    retries: Any,
    dead_letter_topic: Any,
    commit_mode: Any,
    producer_config: Any,
    hand_over_timeout: Any,
    queue_time_warning: Any,
    on_invalid_metadata: Any,
    buffer_records: Any,
    buffer_memory: Any,
    tenant: Any,
    tenant_weights: Any,
    expires_after: Any,
    on_expired: Any,
    circuit_breaker: Any,
    lifespan: Any,
) -> CheckedOptions:
    """Return what options amount to; raises `ConfigError` for one that is out of bounds or contradicts another."""
    check_choice("ordering", ordering, tuple(Ordering))
    check_whole("max_concurrency", max_concurrency, 1)
    check_flag("adaptive", adaptive)
    for name, limit in (
        ("rate_limit", rate_limit),
        ("key_rate_limit", key_rate_limit),
        ("time_limit", time_limit),
        ("queue_time_warning", queue_time_warning),
        ("expires_after", expires_after),
    ):
        if limit is not None:
            check_above_zero(name, limit)
    if expires_after is not None:
        lifetime(expires_after)
    check_choice("executor", executor, (None, "thread", "async", "process"))
    if processes is not None:
        check_whole("processes", processes, 1)
    check_number("hand_over_timeout", hand_over_timeout, 0)
    check_choice("on_invalid_metadata", on_invalid_metadata, ("warn", "fail"))
    if buffer_records is not None:
        check_whole("buffer_records", buffer_records, max_concurrency)
    check_whole("buffer_memory", buffer_memory, _LEAST_MEMORY, " bytes")
    check_choice("commit_mode", commit_mode, ("async", "sync", "transactional"))
    if dead_letter_topic is not None and not is_topic_name(dead_letter_topic):
        raise ConfigError(f"dead_letter_topic is {dead_letter_topic!r}; it must be the name of a topic, or left out.")
    if circuit_breaker is not None:
        check_kind("circuit_breaker", circuit_breaker, CircuitBreaker, "a CircuitBreaker, as CircuitBreaker()")
    if lifespan is not None:
        check_lifespan(lifespan)
    check_choice("on_expired", on_expired, ("drop", "dead_letter"))
    if on_expired == "dead_letter" and dead_letter_topic is None:
        raise ConfigError(
            "on_expired is 'dead_letter', and there is no dead_letter_topic. Name one, or leave on_expired out to drop "
            "records that expired."
        )
    outputs = OutputSettings.parse({} if producer_config is None else producer_config)
    check_transactions(commit_mode, settings, outputs)
    levels = settings.levels or 1
    if tenant_rate_limit is not None and tenant is None:
        raise ConfigError(
            f"tenant_rate_limit is {shown(tenant_rate_limit)}, and there is no tenant. Say to whom a record belongs, "
            "as tenant='header:customer', or name a key_rate_limit for a limit by key."
        )
    check_shares(policy, levels, paced_by=[("adaptive", adaptive), ("rate_limit", rate_limit)])
    if distributor is not None:
        check_function("distributor", distributor, ("levels", "capacity"))
    slots = make_slots(policy, distributor, levels, max_concurrency, max_wait=settings.max_wait)
    checked = checked_retries(Retries() if retries is None else retries, dead_letter_topic)
    per_tenant, asked = (None, None) if tenant_rate_limit is None else checked_tenant_rates(tenant_rate_limit)
    limits: RateLimits[ConsumerRecord] | None = None
    if key_rate_limit is not None or per_tenant is not None:
        limits = RateLimits(per_tenant=per_tenant, per_key=key_rate_limit)
    return CheckedOptions(checked, slots, outputs, checked_tenancy(tenant, tenant_weights, asked), limits)


def check_shares(policy: str, levels: int, paced_by: Sequence[tuple[str, Any]]) -> None:
    """Raise `ConfigError` for shares of more slots than are used: the highest level would never reach its own."""
    for name, value in paced_by:
        if policy == "capacity_burst" and levels > 1 and value:
            raise ConfigError(
                f"policy='capacity_burst' gives each level a share of max_concurrency, and with {name}={value} fewer "
                "records run, all of the highest level. Choose fair, which shares what there is."
            )


def checked_handler(handler: Handler, executor: str | None, *, collects: bool = False) -> WithContext:
    """Return the handler as executors call it; with `collects` it may yield its outputs.

    Raises `ConfigError` for a handler that cannot be called, that a call would not run, or that the executor does not
    run.
    """
    handle = with_context(handler)
    if collects:
        handle = collecting(handle)
    _check_runs(handle, executor)
    return handle


def checked_batch_handler(handler: BatchHandler, executor: str | None, *, collects: bool = False) -> WithContext:
    """Return the handler of batches as executors call it; raises `ConfigError` as `checked_handler` does."""
    handle = with_context(handler, "records", "contexts")
    if collects:
        handle = collecting(handle)
    _check_runs(handle, executor)
    return handle


def _check_runs(handler: WithContext, executor: str | None) -> None:
    if is_generator_function(handler):
        raise ConfigError(
            f"The handler {called(handler)} yields, and only run_and_produce takes that, or a @worker with produces=: "
            "elsewhere nothing of it would run. Write it without yield."
        )
    is_async = is_coroutine_function(handler)
    if executor not in (None, *(("async",) if is_async else ("thread", "process"))):
        kind = "an async def" if is_async else "a plain function"
        raise ConfigError(f"executor={executor!r} does not run {kind}. Leave it out, or choose another.")


def check_callback(name: str, callback: Callable[..., Any] | None, parameters: Sequence[str]) -> None:
    """Raise `ConfigError` for a callback that cannot be called with these arguments, or that a call would not run."""
    if callback is None:
        return
    if callable(callback) and runs_nothing_when_called(callback):
        raise ConfigError(
            f"{name} is an async def, or yields: it is called in a thread, and nothing of it would run. Give a plain "
            "function; for an event loop, one that calls its call_soon_threadsafe."
        )
    check_function(name, callback, parameters)


def check_async_callback(name: str, callback: Callable[..., Any], parameters: Sequence[str]) -> None:
    """Raise `ConfigError` for an `async def` that cannot be called with these arguments."""
    if not takes(callback, len(parameters)):
        raise ConfigError(f"{name} is {called(callback)}, which cannot be called with ({', '.join(parameters)}).")


CALLBACKS: Final = {
    "on_assign": ("partitions",),
    "on_revoke": ("partitions",),
    "on_lost": ("partitions",),
    "on_commit": ("error", "offsets"),
}
"""The callbacks of a subscription, with what they are called with."""


def check_callbacks(**callbacks: Callable[..., Any] | None) -> None:
    """Raise `ConfigError` for a callback of a subscription that cannot be called."""
    for name, callback in callbacks.items():
        check_callback(name, callback, CALLBACKS[name])


def checked_retries(retries: Retries, dead_letter_topic: str | None) -> Retries:
    """Return the retries, with unreadable records as fatal; raises `ConfigError` if there is no dead-letter topic."""
    check_kind("retries", retries, Retries, "a Retries, as Retries(max_attempts=5)")
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
