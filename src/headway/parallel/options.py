"""The options of a parallel consumer: their names, types, defaults and checks.

`ParallelConsumer` and `@worker` take the options as keywords. The dataclass has a `TypedDict` beside it, because a
`TypedDict` is the only way to give type checkers the types of the keywords. A test compares the two classes with each
other and with the docstring of `ParallelConsumer`, which explains each option to users.
"""

import dataclasses
import difflib
import inspect
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Self, TypedDict, TypeVar

from headway.core.engine.circuit import CircuitBreaker
from headway.core.engine.engine import Engine
from headway.core.engine.lanes import Ordering, OrderingName
from headway.core.engine.slot_policies import SlotPolicy, make_slots
from headway.core.levels.capacity import Distributor
from headway.core.levels.naming import is_topic_name
from headway.core.levels.policies import PolicyName
from headway.core.retry import Retries
from headway.declarations import (
    check_above_zero,
    check_choice,
    check_flag,
    check_function,
    check_kind,
    check_number,
    check_whole,
    shown,
)
from headway.delay.due_time import lifetime
from headway.errors import ConfigError, DeserializationError
from headway.execution.gate import Gate
from headway.execution.gates.adaptive_limit import AdaptiveLimit
from headway.execution.gates.circuit_gate import CircuitGate
from headway.execution.gates.named_rates import NamedRates
from headway.execution.gates.queue_times import QueueTimes
from headway.execution.gates.skipped_records import SkippedRecords
from headway.execution.gates.start_rate import StartRate
from headway.execution.lifespan import Lifespan, check_lifespan
from headway.parallel.tenancy import Tenancy, Tenant
from headway.parallel.tenant_rates import TenantRates
from headway.records.record_types import ConsumerRecord
from headway.settings.config import Config, OutputSettings, ParallelSettings
from headway.tracing.tracing import Tracing

CommitMode = Literal["async", "sync", "transactional"]
ExecutorName = Literal["thread", "async", "process"]
OnExpired = Literal["drop", "dead_letter"]
OnInvalidMetadata = Literal["warn", "fail"]
F = TypeVar("F", bound=Callable[..., Any])

# The minimum default of `buffer_records`, because a fetch costs the same for one record as for many.
_LEAST_BUFFER = 1000
_LEAST_MEMORY = 2**20  # the smallest allowed `buffer_memory`, in bytes
# The default intervals between commits, in seconds.
_COMMIT_EVERY: dict[CommitMode, float] = {"async": 5.0, "sync": 5.0, "transactional": 0.1}


class ParallelOptionsDict(TypedDict, total=False):
    """The options as keywords, for type checkers and editors. `ParallelOptions` contains their defaults."""

    ordering: Ordering | OrderingName
    max_concurrency: int
    adaptive: bool
    rate_limit: float | None
    key_rate_limit: float | None
    tenant_rate_limit: TenantRates | None
    time_limit: float | None
    executor: ExecutorName | None
    processes: int | None
    policy: PolicyName
    distributor: Distributor | None
    retries: Retries | None
    dead_letter_topic: str | None
    result_topic: str | None
    commit_mode: CommitMode
    producer_config: Config | None
    hand_over_timeout: float
    queue_time_warning: float | None
    on_invalid_metadata: OnInvalidMetadata
    buffer_records: int | None
    buffer_memory: int
    tenant: Tenant | None
    tenant_weights: Mapping[str, float] | None
    expires_after: float | None
    on_expired: OnExpired
    circuit_breaker: CircuitBreaker | None
    lifespan: Lifespan | None
    steered: bool
    latest_only: bool
    tracing: Tracing | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ParallelOptions:
    """The options of a parallel consumer and their defaults. The docstring of `ParallelConsumer` explains each option.

    Raises `ConfigError` if an option is outside its allowed range or contradicts another option.
    """

    ordering: Ordering | OrderingName = Ordering.KEY
    max_concurrency: int = 16
    adaptive: bool = False
    rate_limit: float | None = None
    key_rate_limit: float | None = None
    tenant_rate_limit: TenantRates | None = None
    time_limit: float | None = None
    executor: ExecutorName | None = None
    processes: int | None = None
    policy: PolicyName = "fair"
    distributor: Distributor | None = None
    retries: Retries | None = None
    dead_letter_topic: str | None = None
    result_topic: str | None = None
    commit_mode: CommitMode = "async"
    producer_config: Config | None = field(default=None, repr=False)  # not in the repr, because it can contain secrets
    hand_over_timeout: float = 10.0
    queue_time_warning: float | None = None
    on_invalid_metadata: OnInvalidMetadata = "warn"
    buffer_records: int | None = None
    buffer_memory: int = 64 * 2**20
    tenant: Tenant | None = None
    tenant_weights: Mapping[str, float] | None = None
    expires_after: float | None = None
    on_expired: OnExpired = "drop"
    circuit_breaker: CircuitBreaker | None = None
    lifespan: Lifespan | None = None
    steered: bool = False
    latest_only: bool = False
    tracing: Tracing | None = None

    @classmethod
    def of(cls, options: Mapping[str, Any], taker: str = "ParallelConsumer", others: Collection[str] = ()) -> Self:
        """Make an object with these options, and with the defaults of all other options.

        Raises `ConfigError` for an unknown name. If an option or a name in `others` is similar, the error suggests it.
        """
        known = {each.name for each in dataclasses.fields(cls)}
        for name in options.keys() - known:
            near = difflib.get_close_matches(name, {*known, *others}, n=1)
            hint = f"Did you mean {near[0]!r}?" if near else f"Its options are {', '.join(sorted({*known, *others}))}."
            raise ConfigError(f"A {taker} has no option {name!r}. {hint}")
        return cls(**options)

    def as_keywords(self) -> ParallelOptionsDict:
        """Return all options as keyword arguments for a consumer."""
        return {each.name: getattr(self, each.name) for each in dataclasses.fields(self)}  # type: ignore[return-value]

    def __post_init__(self) -> None:
        check_choice("ordering", self.ordering, tuple(Ordering))
        check_whole("max_concurrency", self.max_concurrency, 1)
        check_flag("adaptive", self.adaptive)
        check_flag("steered", self.steered)
        check_flag("latest_only", self.latest_only)
        for name in ("rate_limit", "key_rate_limit", "time_limit", "queue_time_warning", "expires_after"):
            if (limit := getattr(self, name)) is not None:
                check_above_zero(name, limit)
        if self.expires_after is not None:
            lifetime(self.expires_after)
        check_choice("executor", self.executor, (None, "thread", "async", "process"))
        if self.processes is not None:
            check_whole("processes", self.processes, 1)
        check_number("hand_over_timeout", self.hand_over_timeout, 0)
        check_choice("on_invalid_metadata", self.on_invalid_metadata, ("warn", "fail"))
        if self.buffer_records is not None:
            check_whole("buffer_records", self.buffer_records, self.max_concurrency)
        check_whole("buffer_memory", self.buffer_memory, _LEAST_MEMORY, " bytes")
        check_choice("commit_mode", self.commit_mode, ("async", "sync", "transactional"))
        if self.distributor is not None:
            check_function("distributor", self.distributor, ("levels", "capacity"))
        if self.circuit_breaker is not None:
            wanted = "a CircuitBreaker, such as CircuitBreaker()"
            check_kind("circuit_breaker", self.circuit_breaker, CircuitBreaker, wanted)
        if self.tracing is not None:
            check_kind("tracing", self.tracing, Tracing, "a Tracing, such as Tracing()")
        if self.lifespan is not None:
            check_lifespan(self.lifespan)
        if self.result_topic is not None and not is_topic_name(self.result_topic):
            raise ConfigError(
                f"result_topic is {self.result_topic!r}; it must be a valid name of a topic, or left out."
            )
        self._check_dead_letters()
        self._check_tenants()
        if self.latest_only:
            self._check_latest_only()

    def _check_latest_only(self) -> None:
        if self.ordering not in (Ordering.KEY, Ordering.KEY_IF_ANY):
            raise ConfigError(
                f"latest_only skips records for newer ones with the same key, but ordering is {str(self.ordering)!r}. "
                "Use ordering='key' or 'key_if_any'."
            )
        if self.tenant is not None and not (isinstance(self.tenant, str) and self.tenant.partition(":")[0] == "key"):
            raise ConfigError(
                f"latest_only skips records for newer ones with the same key, but with tenant={shown(self.tenant)} "
                "these can belong to other tenants. Use tenant='key' or tenant='key:SEPARATOR'."
            )

    def _check_dead_letters(self) -> None:
        topic = self.dead_letter_topic
        if topic is not None and not is_topic_name(topic):
            raise ConfigError(f"dead_letter_topic is {topic!r}; it must be a valid name of a topic, or left out.")
        check_choice("on_expired", self.on_expired, ("drop", "dead_letter"))
        if self.on_expired == "dead_letter" and topic is None:
            raise ConfigError(
                "on_expired is 'dead_letter', but there is no dead_letter_topic. Name one, or leave out on_expired to "
                "drop expired records."
            )
        if self.retries is None:
            return
        check_kind("retries", self.retries, Retries, "a Retries, such as Retries(max_attempts=5)")
        if self.retries.max_attempts is not None and topic is None:
            raise ConfigError(
                f"max_attempts is {self.retries.max_attempts}, but there is no dead_letter_topic for records that have "
                "failed this often. Name one, or leave out max_attempts to retry forever."
            )
        if self.retries.then == "hold" and topic is None:
            raise ConfigError(
                "The retries hold records that have failed for good, but there is no dead_letter_topic. Name one: if "
                "held records leave no space for others, the oldest of them become dead letters."
            )

    def _check_tenants(self) -> None:
        if self.tenant is not None:
            self.tenancy()
        elif self.tenant_rate_limit is not None:
            raise ConfigError(
                f"tenant_rate_limit is {shown(self.tenant_rate_limit)}, but there is no tenant. Set tenant, as in "
                "tenant='header:customer', or set key_rate_limit for a limit by key."
            )
        elif self.tenant_weights is not None:
            raise ConfigError("tenant_weights is set, but there is no tenant. Set tenant, as in tenant='key'.")

    def check_with(self, settings: ParallelSettings) -> None:
        """Raise `ConfigError` if options contradict the settings, or cannot be used with this number of levels."""
        outputs = self.outputs.kafka
        if self.commit_mode != "transactional":
            if "transactional.id" in outputs:
                raise ConfigError(
                    f"transactional.id is set, but commit_mode is {self.commit_mode!r}. Set "
                    "commit_mode='transactional', or remove transactional.id."
                )
        elif (isolation := settings.kafka.get("isolation.level", "read_committed")) != "read_committed":
            # `read_committed` is also necessary because otherwise a partition's new owner would not wait for offsets in
            # an open transaction.
            raise ConfigError(
                f"commit_mode is 'transactional', but isolation.level is {isolation!r}, so the consumer would read "
                "records of transactions that can still be aborted. Remove isolation.level."
            )
        for name, value in (("adaptive", self.adaptive), ("rate_limit", self.rate_limit)):
            if self.policy == "capacity_burst" and (settings.levels or 1) > 1 and value:
                # If fewer records than slots can run, the highest level never uses up its share of the slots.
                raise ConfigError(
                    f"policy='capacity_burst' gives each level a share of max_concurrency. With {name}={value}, fewer "
                    "than max_concurrency handlers can run at a time, so the highest level could take every start "
                    "without using up its share. Use policy='fair'."
                )
        self.slots(settings)

    # Objects and values that follow from the options

    @property
    def outputs(self) -> OutputSettings:
        """The settings of the producer for outputs."""
        return OutputSettings.parse({} if self.producer_config is None else self.producer_config)

    @property
    def buffer(self) -> int:
        """How many records of each level are kept ready in memory."""
        return self.buffer_records or max(_LEAST_BUFFER, 4 * self.max_concurrency)

    @property
    def all_retries(self) -> Retries:
        """The retries of the run. An unreadable record is never retried, because it would still be unreadable."""
        retries = self.retries or Retries()
        return dataclasses.replace(retries, fatal=(*retries.fatal, DeserializationError))

    def commit_interval(self, settings: ParallelSettings) -> float:
        """Return the time between two commits, in seconds."""
        return settings.commit_interval or _COMMIT_EVERY[self.commit_mode]

    def slots(self, settings: ParallelSettings) -> SlotPolicy:
        """Return the policy that divides the slots among the levels."""
        levels = settings.levels or 1
        return make_slots(self.policy, self.distributor, levels, self.max_concurrency, max_wait=settings.max_wait)

    def tenancy(self) -> Tenancy | None:
        """Make the `Tenancy` of one consumer. Returns None if the option `tenant` is not set."""
        if self.tenant is None:
            return None
        return Tenancy(self.tenant, self.tenant_weights, self.tenant_rate_limit)

    def gates(self, rate: StartRate | None, engine: Engine[ConsumerRecord]) -> list[Gate]:
        """Make the gates of one consumer for the optional features in use.

        The gates for expiry and supervision are added later, when they are needed.
        """
        gates: list[Gate] = []
        if self.circuit_breaker is not None:
            gates.append(CircuitGate(self.circuit_breaker))
        if self.adaptive:
            gates.append(AdaptiveLimit(self.max_concurrency))
        if rate is not None:
            gates.append(rate)
        if engine.limits is not None:
            gates.append(NamedRates(engine.limits))
        if self.queue_time_warning is not None:
            gates.append(QueueTimes(self.queue_time_warning))
        if self.latest_only:
            gates.append(SkippedRecords(engine))
        return gates


def shows_options(function: F) -> F:
    """Decorate a function with `**options`, so that `help` shows each option with its default."""
    signature = inspect.signature(function)
    own = [each for each in signature.parameters.values() if each.kind is not each.VAR_KEYWORD]
    options = [
        inspect.Parameter(each.name, inspect.Parameter.KEYWORD_ONLY, default=each.default, annotation=each.type)
        for each in dataclasses.fields(ParallelOptions)
    ]
    vars(function)["__signature__"] = signature.replace(parameters=[*own, *options])
    return function
