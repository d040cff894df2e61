"""The decorator `worker` declares a handler and its options, so that the command `headway worker` can run the handler.

    @worker("orders", group="billing", value=Order, levels=3, dead_letter_topic="orders-dead")
    def bill(record: ConsumerRecord, context: Context) -> None: ...

The decorator does not change the function, so tests can call it, and `ParallelConsumer.run` can run it.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar, Unpack

from headway.core.levels.naming import MOST_LEVELS, checked_topics, groups_of, is_topic_name, subscriptions
from headway.declarations import is_whole, shown
from headway.errors import ConfigError
from headway.execution.lifespan import check_lifespan_of
from headway.kafka.consumer.commits import OnCommit
from headway.parallel.batches import Batches
from headway.parallel.callbacks import OnRebalance, check_callback, check_callbacks
from headway.parallel.consumer import ParallelConsumer
from headway.parallel.handler_spec import HandlerSpec
from headway.parallel.options import ParallelOptions, ParallelOptionsDict, shows_options
from headway.parallel.outputs import OnOutput
from headway.parallel.result_stream import OnResult, ResultStream
from headway.settings.config import Config, ParallelSettings, check_settings
from headway.workers.values import Value, reader_of

Topics = str | Sequence[str] | Mapping[str, int]
F = TypeVar("F", bound=Callable[..., Any])

_ATTRIBUTE = "__headway_worker__"
_OWN_OPTIONS = ("group", "value", "levels", "produces", "on_output", "on_result", "batches", "config")
_CALLBACKS = ("on_assign", "on_revoke", "on_lost", "on_commit")


@shows_options
def worker(
    topics: Topics,
    *,
    group: str,
    value: Value | None = None,
    levels: int | None = None,
    produces: str | Sequence[str] | None = None,
    on_output: OnOutput | None = None,
    on_result: OnResult | None = None,
    batches: Batches | None = None,
    on_assign: OnRebalance | None = None,
    on_revoke: OnRebalance | None = None,
    on_lost: OnRebalance | None = None,
    on_commit: OnCommit | None = None,
    config: Config | None = None,
    **options: Unpack[ParallelOptionsDict],
) -> Callable[[F], F]:
    """Declare a handler as a worker. The decorated function itself stays unchanged.

    The handler is a function or an `async def`. As in a `ParallelConsumer`, the handler is called with each record and
    its context. With `produces`, the handler can also be a generator function.

    Args:
        topics: The topics to read: a name, several names, or a mapping from topics to levels.
        group: The consumer group.
        value: A dataclass into which the value of each record is read from JSON, or a function that takes the bytes. By
            default `record.value` has the bytes. A record whose value cannot be read becomes a dead letter.
        levels: The number of levels of each topic. By default the topics have no levels.
        produces: The Kafka topic, or topics, of the records that the handler returns or yields. The records are sent as
            in `ParallelConsumer.run_and_produce`. A name such as `bills-*` stands for all topics whose names begin with
            `bills-`.
        on_output: Called with (input, output, metadata) for each stored output.
        on_result: Called with (record, value) for each value that the handler returns. The calls are made one at a
            time, in this process. The record is done when the call returns. If the call raises an error, the attempt
            has failed.
        batches: The sizes of batches, for a handler that takes lists of records and of contexts.
        on_assign: Called with new partitions; see `ParallelConsumer.subscribe`.
        on_revoke: Called with partitions that are about to be revoked; see `ParallelConsumer.subscribe`.
        on_lost: Called with lost partitions, which another member might already have; see `ParallelConsumer.subscribe`.
        on_commit: Called with the outcome of each commit; see `ParallelConsumer.subscribe`.
        config: Further settings, such as {"session.timeout.ms": 10_000}. Settings of the command line take precedence.
            If "auto.offset.reset" is not set, a new group starts at the beginning.
        options: The options of a `ParallelConsumer`, such as `max_concurrency=50`.

    Raises `ConfigError` if an option is outside its allowed range.
    """
    callbacks = {"on_assign": on_assign, "on_revoke": on_revoke, "on_lost": on_lost, "on_commit": on_commit}
    checked = ParallelOptions.of(options, "worker", others=(*_OWN_OPTIONS, *_CALLBACKS))

    def declare(handler: F) -> F:
        if not inspect.isfunction(handler):
            raise ConfigError(
                f"@worker can decorate only functions, and {handler!r} is not a function. Write a function that calls "
                "it, and decorate that."
            )
        if worker_of(handler) is not None:
            raise ConfigError(f"{handler.__qualname__} is a worker already. Give all its topics to one @worker.")
        declared = Worker(
            handler=handler,
            topics=[topics] if isinstance(topics, str) else topics,
            group=group,
            levels=levels,
            reader=reader_of(value),
            produces=_output_topics(produces),
            on_output=on_output,
            on_result=on_result,
            batches=batches,
            callbacks=callbacks,
            config={} if config is None else config,
            options=checked,
        )
        setattr(handler, _ATTRIBUTE, declared)
        return handler

    return declare


def worker_of(handler: Any) -> "Worker | None":
    """Return the declaration of a handler, or None if the object is not a worker."""
    found = vars(handler).get(_ATTRIBUTE) if inspect.isfunction(handler) else None
    # Another decorator may have wrapped the worker and copied its attributes, so the wrapper becomes the handler.
    return replace(found, handler=handler) if isinstance(found, Worker) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Worker:
    """A declared and checked worker. Its `repr` leaves out `config`, which can contain secrets."""

    handler: Callable[..., Any]
    topics: Sequence[str] | Mapping[str, int]
    group: str
    levels: int | None
    reader: Callable[[Any], Any] | None
    produces: Sequence[str] = ()
    on_output: OnOutput | None = None
    on_result: OnResult | None = None
    batches: Batches | None = None
    callbacks: Mapping[str, Callable[..., Any] | None]
    options: ParallelOptions
    config: Config = field(repr=False)

    def __post_init__(self) -> None:
        given = self.topics if isinstance(self.topics, Mapping | Sequence) else ()
        if not given or not all(isinstance(topic, str) and topic for topic in given):
            raise ConfigError('A worker needs the name of a topic, as in @worker("orders", group="billing").')
        if self.levels is not None and (not is_whole(self.levels) or not 1 <= self.levels <= MOST_LEVELS):
            raise ConfigError(
                f"levels is {shown(self.levels)}; it must be a whole number, at least 1 and at most {MOST_LEVELS}, or "
                "left out."
            )
        check_settings(self.config)
        checked_topics(self.topics)
        self.kafka_topics()  # raises an error if a level of a mapping is not valid
        self.options.check_with(ParallelSettings.parse(self._config({})))
        self._check_results()
        # checks the handler now: `headway worker` wraps it later, and then the user's own function cannot be inspected
        call = self.call
        if self.options.lifespan is not None:
            check_lifespan_of(self.options.lifespan, call)

    def _check_results(self) -> None:
        if self.on_output is not None and not self.produces:
            raise ConfigError("on_output is set, but this worker has no outputs. Name their topics with produces=.")
        if self.on_result is not None and self.produces:
            raise ConfigError(
                "produces and on_result are both set, but a handler's return value is either sent or passed to "
                "on_result. Leave out one of them. To be called for each stored output, use on_output."
            )
        check_callbacks(**self.callbacks)
        check_callback("on_output", self.on_output, ("input", "output", "metadata"))
        check_callback("on_result", self.on_result, ("input", "value"))

    @property
    def call(self) -> Callable[[Any, Any], Any]:
        """The handler in the form that executors call.

        This form takes a context, and returns outputs as a list.
        """
        return HandlerSpec(self.handler, self.batches, sends=bool(self.produces)).checked(self.options.executor)

    def run(self, consumer: ParallelConsumer, handler: Callable[..., Any] | None = None) -> None:
        """Run a consumer with the handler until the consumer is stopped. `handler` can be a wrapper to run instead."""
        handler = handler or self.handler
        if self.produces:
            consumer.run_and_produce(handler, self.on_output, batches=self.batches)
        elif self.on_result is not None:
            stream: ResultStream[Any] = consumer.results(handler, batches=self.batches)
            stream.for_each(self.on_result)
        else:
            consumer.run(handler, batches=self.batches)

    def consumer(self, config: Config, max_concurrency: int | None = None, index: int = 0) -> ParallelConsumer:
        """Create a consumer that is subscribed to the topics and ready to run the handler.

        `config` has the addresses of Kafka's brokers. `index` is the number of this member among the worker's members.
        """
        settings = self._config(config)
        if "group.instance.id" in settings:  # members with the same id would fence each other off
            settings["group.instance.id"] = f"{settings['group.instance.id']}-{index}"
        options = self.options
        if max_concurrency is not None:
            options = replace(options, max_concurrency=max_concurrency)
        producer = options.producer_config or {}
        if "transactional.id" in producer:
            own = f"{producer['transactional.id']}-{index}"
            options = replace(options, producer_config={**producer, "transactional.id": own})
        consumer = ParallelConsumer(settings, **options.as_keywords())
        consumer.subscribe(self.topics, **self.callbacks)
        return consumer

    @property
    def groups(self) -> list[str]:
        """The Kafka groups that the worker joins."""
        settings = ParallelSettings.parse(self._config({}))
        return groups_of(settings.group, settings.levels, per_level=settings.group_per_level)

    def kafka_topics(self) -> list[str]:
        """Return the Kafka topics that the worker subscribes to by name. Topics that match a pattern are left out."""
        names = [name for each in subscriptions(self.topics, self.levels) for name in each.topics]
        return [name for name in names if not name.startswith("^")]

    def _config(self, kafka: Config) -> dict[str, Any]:
        own: dict[str, Any] = {"group.id": self.group}
        if self.levels is not None:
            own["levels"] = self.levels
        if self.reader is not None:
            own["value.deserializer"] = self.reader
        return {"auto.offset.reset": "earliest", **self.config, **kafka, **own}


def _output_topics(produces: Any) -> Sequence[str]:
    """Return the topics of outputs. Raises `ConfigError` if an item is not valid as the name of a topic."""
    if produces is None:
        return ()
    topics = list(produces) if isinstance(produces, Sequence) and not isinstance(produces, str) else [produces]
    for topic in topics or [produces]:
        if not isinstance(topic, str) or not (topic == "*" or is_topic_name(topic.removesuffix("*"))):
            raise ConfigError(
                f"produces has {shown(topic)}; it must be the name of a Kafka topic, or a list of names as in "
                'produces=["bills", "notices-*"], or left out.'
            )
    return topics
