"""The parts of a run that make spans, in place of those that they wrap: outputs, dead letters and commits."""

from typing import Any

from headway.errors import KafkaError
from headway.execution.failures import Letters
from headway.execution.jobs import Job, RecordAttempt
from headway.execution.traced_calls import described
from headway.parallel.commits import SentOffsets
from headway.parallel.handler_output import HandlerOutput
from headway.parallel.outputs import HandlerOutputs
from headway.parallel.transactions import LevelRefusals
from headway.tracing.spans import RunningSpan, Spans


class TracedOutput(HandlerOutput, kw_only=True):
    """An output with the span of its sending."""

    span: RunningSpan


class TracedOutputs(HandlerOutputs):
    """Makes a span of the sending of each output. It begins in the context of the handler's span."""

    def __init__(self, spans: Spans, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._spans = spans

    def of(self, job: Job, returned: Any) -> list[HandlerOutput]:
        """Convert the return value of a job to outputs, whose headers carry the contexts of their spans."""
        return [self._traced(output) for output in super().of(job, returned)]

    def _traced(self, output: HandlerOutput) -> HandlerOutput:
        schedule, headers, last = output.schedule, output.headers or [], []
        if schedule is not None:  # the header of the schedule must stay the last one
            headers, last = headers[:-1], headers[-1:]
        due_in = None if schedule is None else (schedule.due - schedule.at) / 1000
        begun = self._spans.send(output.topic, output.key, headers, due_in)
        if begun is None:
            return output
        span, carried = begun
        fields = {name: getattr(output, name) for name in output.__struct_fields__}
        return TracedOutput(**fields | {"headers": [*carried, *last]}, span=span)

    def delivered(self, output: HandlerOutput, message: Any) -> None:
        """End the span of a stored output, and call `on_output`."""
        if isinstance(output, TracedOutput):
            self._spans.stored(output.span, message.partition(), message.offset())
        super().delivered(output, message)

    def refused(self, output: HandlerOutput, error: BaseException) -> None:
        """End the span of an output that was not stored."""
        if isinstance(output, TracedOutput):
            output.span.end(error)


class TracedLetters:
    """Makes a span of the sending of each dead letter."""

    def __init__(self, letters: Letters, spans: Spans) -> None:
        self._letters = letters
        self._spans = spans

    def send(self, attempt: RecordAttempt, error: BaseException, reason: str) -> None:
        """Send a dead letter. The span ends when the letter is on its way."""
        span = self._spans.dead_letter(described(attempt), reason)
        try:
            self._letters.send(attempt, error, reason)
        finally:
            if span is not None:
                span.end()


class TracedCommit:
    """Makes a span of a commit, from its sending to Kafka's answer."""

    def __init__(self, sent: SentOffsets, span: RunningSpan) -> None:
        self._sent = sent
        self._span = span

    def answer(self, timeout: float) -> LevelRefusals | None:
        """Return Kafka's answer, as `SentOffsets.answer` does, and end the span if there is one."""
        refusals = self._sent.answer(timeout)
        if refusals is not None:
            self._span.end(next(iter(refusals.values()), None))
        return refusals

    def give_up(self) -> bool:
        """Stop waiting for the answer, as `SentOffsets.give_up` does."""
        self._span.end(KafkaError("Kafka did not answer the commit in time."))
        return self._sent.give_up()
