"""Commits outputs, dead letters and offsets in transactions, so that either all of them are stored or none is.

Each transaction runs in a separate thread, so that the control thread can take part in rebalances at the same time.

Invariants:

- The next transaction begins only when the outcome of the previous one is known. If the outcome stays unknown, the
levels of the transaction continue at the offsets that Kafka has. So nothing is committed twice, whatever interrupts a
transaction.
- Offsets are sent before outputs, so that no outputs are written if Kafka refuses the member of a level.
- The offsets are taken at the tick, and are sent with the group metadata of the same moment. So Kafka refuses the
offsets if the member has lost its partitions since then.
- An output that Kafka refuses for good does not block other records, because a dead letter replaces all outputs of its
record. However, if this client had a permission and has lost it, the run waits until the permission is granted again.

Source: KIP-447. The group's generation fences a member that the group has expelled, so `transactional.id` does not have
to depend on the partitions.
"""

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import wait
from functools import partial
from typing import Any, NoReturn

from headway.core.engine.commit_tick import CommitTick
from headway.dead_letters import halved
from headway.errors import AuthorizationError, DeliveryError, FencedError, KafkaError
from headway.execution.dispatch import Dispatch
from headway.execution.failures import log_dead_letter, no_dead_letters
from headway.execution.jobs import Job, RecordAttempt
from headway.kafka.binding import capi
from headway.kafka.binding.error_causes import is_fatal, is_fenced, is_out_of_place
from headway.kafka.binding.time_limits import COMMIT_ANSWERED_WITHIN
from headway.kafka.consumer.level_consumers import LevelConsumers, MemberOffsets
from headway.kafka.consumer.standing import not_a_member
from headway.kafka.producer.transactional_writer import FORBIDDEN, NotStoredError, Rejection, TransactionalWriter
from headway.parallel.dead_letters import LetterTopic
from headway.parallel.handler_output import HandlerOutput, OutputKind
from headway.parallel.outputs import HandlerOutputs, log_refused_result
from headway.runtime.background import in_background
from headway.runtime.flag import Flag
from headway.runtime.wakeup import Wakeup

log = logging.getLogger(__name__)

LevelRefusals = Mapping[int, KafkaError]
"""The levels that prevented a commit, each with the reason. If the commit was made, the mapping is empty."""

_ABORTED_WITHIN = 2.0  # how long aborting the open transaction can take at the end of the run, in seconds

_REASON = "Kafka refuses an output"
_TOO_LARGE = {"MSG_SIZE_TOO_LARGE", "RECORD_LIST_TOO_LARGE"}


class OutcomeUnknownError(KafkaError):
    """It is unknown whether a transaction was committed. The levels in it continue at the offsets that Kafka has."""


class _LevelsError(KafkaError):
    """A transaction cannot be committed because of some levels. `refusals` maps these levels to the reasons."""

    def __init__(self, refusals: LevelRefusals) -> None:
        super().__init__(str(next(iter(refusals.values()))))
        self.refusals = refusals


class SentTransaction:
    """A transaction that runs in a background thread."""

    def __init__(self, carry_out: Callable[[Flag], LevelRefusals], wake: Wakeup) -> None:
        self._given_up = Flag()
        self._ended = in_background(lambda: carry_out(self._given_up))
        self._ended.add_done_callback(lambda _: wake.set())

    def answer(self, timeout: float) -> LevelRefusals | None:
        """Wait up to `timeout` seconds for the transaction to end. Returns None if it has not ended.

        Otherwise, returns the levels that have prevented the commit, with the reasons. If the transaction was
        committed, the mapping is empty.

        Raises:
            FencedError: Another producer has taken over the transactional id. No further commit is possible.
            HandlerError: Kafka refused an output, and there is no dead-letter topic. No further commit is possible.
        """
        try:
            return self._ended.result(timeout)
        except TimeoutError:
            # The transaction may have ended in the meantime, or may itself have raised this TimeoutError.
            return self._ended.result() if self._ended.done() else None

    def give_up(self) -> bool:
        """Abort the transaction unless its commit has begun.

        Always returns False, because the caller must still wait for the outcome.
        """
        self._given_up.set()
        return False

    def wait(self, timeout: float) -> None:
        """Wait up to `timeout` seconds until the transaction has ended."""
        wait([self._ended], timeout)


class Transactions:
    """Commits each tick in a transaction: the outputs and dead letters of completed records, with offsets and maps.

    `has_generated_id` is True if the `transactional.id` was generated, so that no other process can use it. If such a
    producer is fenced, the only possible reason is that it was disconnected for longer than the transaction timeout, so
    the run continues with a new producer.
    """

    def __init__(
        self,
        writer: TransactionalWriter,
        outputs: HandlerOutputs,
        dispatch: Dispatch,
        levels: LevelConsumers,
        wake: Wakeup,
        letters: LetterTopic | None,
        *,
        has_generated_id: bool,
    ) -> None:
        self._writer = writer
        self._outputs = outputs
        self._dispatch = dispatch
        self._levels = levels
        self._wake = wake
        self._letters = letters
        self._has_generated_id = has_generated_id
        self._sent: SentTransaction | None = None
        self._given_up = Flag()  # set if the current transaction must be aborted
        self._closing = False
        self._is_fenced_in = False  # True if this producer has initialised transactions, so that it can begin one
        self._committing = False  # True once the current transaction can no longer be aborted
        # Topics that have stored outputs of this run, which shows that the client had permission to write to them.
        self._written = set[str]()
        # For each level: a sentence that names the permission that its outputs wait for.
        self._refused: dict[int, str] = {}
        self.over = False
        """True if no further commit is possible."""
        self.copies = 0
        """The number of copies of moved records that were committed."""

    @property
    def refused(self) -> str | None:
        """A sentence that names the permission that outputs are waiting for, or None."""
        return next(iter(list(self._refused.values())), None)

    def nothing_to_commit(self, levels: Collection[int]) -> None:
        """Record that no outputs of these levels are waiting for a permission."""
        for level in levels:
            self._refused.pop(level, None)

    def fence(self) -> None:
        """Initialise transactions, which fences earlier producers with the same `transactional.id`.

        Raises `KafkaError`.
        """
        self._writer.fence(self._is_given_up)
        self._is_fenced_in = True

    # Outputs and dead letters

    def take_result(self, job: Job, returned: Any) -> Job | None:
        """Keep the outputs that a handler returned for the next transaction. Returns the next job, or None."""
        try:
            outputs = self._outputs.of(job, returned)
        # The user's serialiser or iterator can raise anything, and then the attempt has failed.
        except BaseException as error:
            return self._dispatch.complete(job, error)
        if len(job) == 1:
            return self._dispatch.done(job[0], outputs)
        if outputs:
            return self._dispatch.complete_together(job, outputs)
        return self._dispatch.complete(job)

    def send(self, attempt: RecordAttempt, error: BaseException, reason: str) -> None:
        """Send a dead letter for a failed attempt in the next transaction, which also commits the record's offset.

        The transaction also has the result of a call, if the record is one.
        """
        if self._letters:
            letter = _letter(self._letters, attempt, error, reason)
            results = self._outputs.results
            result = results and results.of_failure(attempt, error)
            self._dispatch.stored(attempt, (letter, result) if result else (letter,))

    # Committing

    def commit(self, tick: CommitTick) -> SentTransaction:
        """Start a transaction with the tick's outputs, offsets and maps.

        The outcome of the previous transaction must be known.
        """
        parts = self._levels.for_transaction({each: commit[:2] for each, commit in tick.commits.items()})
        self._sent = SentTransaction(partial(self._carry_out, tick.outputs, parts), self._wake)
        return self._sent

    def set_sasl_credentials(self, username: str, password: str) -> None:
        """Use these credentials to look up delay topics. The run itself changes the credentials of the producer."""
        self._outputs.delayed.set_sasl_credentials(username, password)

    def close(self, timeout: float) -> None:
        """Abort the open transaction, if there is one.

        Waits for the transaction to end for up to `timeout` seconds, or for up to four seconds if `timeout` is less.
        """
        self._closing = True
        if self._sent:
            self._sent.give_up()
            self._sent.wait(max(timeout, 2 * _ABORTED_WITHIN))

    def _carry_out(
        self, outputs: Sequence[HandlerOutput], parts: Sequence[MemberOffsets], given_up: Flag
    ) -> LevelRefusals:
        """Carry out a transaction. Runs in the thread of the transaction."""
        self._given_up = given_up
        try:
            if strangers := _levels_of([part for part in parts if not capi.is_of_a_member(part.group_metadata)]):
                return {level: not_a_member(f"The consumer for level {level}") for level in strangers}
            if self._writer.is_searching or not self._is_fenced_in:
                self._renew()
            outputs = self._placed(outputs)
            while (rejection := self._attempt(outputs, parts)) is not None:
                self._renew(batches_of_one=True)
                if rejection.position is not None:
                    outputs = self._without(outputs, rejection.position, rejection)
        except _LevelsError as error:
            return error.refusals
        except KafkaError as error:
            return dict.fromkeys(_levels_of(parts), error)
        except BaseException:
            self.over = True
            raise
        return {}

    def _placed(self, outputs: Sequence[HandlerOutput]) -> Sequence[HandlerOutput]:
        """Set the delay topics of outputs that are due later, and create missing delay topics.

        Returns the outputs. If a permission is missing, some of them are replaced by dead letters.
        """
        if all(each.schedule is None for each in outputs):
            return outputs
        position = 0
        while position < len(outputs):
            try:
                self._outputs.delayed.place(outputs[position])
                position += 1
            except AuthorizationError as missing:
                outputs = self._without(outputs, position, Rejection(position, "", str(missing)))
            except KafkaError as error:
                raise _LevelsError({each.level: error for each in outputs if each.schedule is not None}) from error
        return outputs

    def _attempt(self, outputs: Sequence[HandlerOutput], parts: Sequence[MemberOffsets]) -> Rejection | None:
        """Commit these outputs and offsets. If an output is rejected, commit nothing and return the rejection."""
        delivered: list[tuple[HandlerOutput, Any]] = []
        self._committing = False
        try:
            self._writer.begin()
            for part in parts:
                self._send_offsets(part)
            if rejection := self._write(outputs, delivered):
                return rejection
            self._committing = True
            self._finish_commit()
        except BaseException as error:
            if not self._was_committed(error):
                raise
        self.nothing_to_commit(_levels_of(parts))
        self._written.update(output.topic for output in outputs)
        self.copies += sum(output.kind is OutputKind.COPY for output in outputs)
        if letters := sum(output.kind is OutputKind.LETTER for output in outputs):
            self._dispatch.letters_committed(letters)
        for output, message in delivered:
            self._outputs.delivered(output, message)
        return None

    def _send_offsets(self, part: MemberOffsets) -> None:
        try:
            self._writer.send_offsets(part.offsets, part.group_metadata, COMMIT_ANSWERED_WITHIN, self._is_given_up)
        except KafkaError as error:
            if is_fatal(error):
                raise
            raise _LevelsError(dict.fromkeys(part.levels, error)) from error

    def _write(self, outputs: Sequence[HandlerOutput], delivered: list[tuple[HandlerOutput, Any]]) -> Rejection | None:
        def stored(index: int, message: Any) -> None:
            delivered.append((outputs[index], message))

        try:
            return self._writer.write(outputs, stored, self._is_given_up)
        except NotStoredError as error:
            raise _LevelsError({outputs[index].level: error for index in error.positions}) from error

    def _is_given_up(self) -> bool:
        return self._closing or self._given_up.is_set()

    # How a transaction ends

    def _finish_commit(self) -> None:
        """Finish a commit that can no longer be aborted. While the brokers are not available, waits without a limit."""
        self._writer.commit(float("inf"), lambda: self._closing)

    def _was_committed(self, error: BaseException) -> bool:
        """End a transaction that has raised an error.

        Returns whether the transaction was committed rather than aborted.
        """
        if isinstance(error, KafkaError) and is_fatal(error):
            self._replace_producer_after(error)
            return False
        try:
            self._abort()
        except KafkaError as refused:
            if is_out_of_place(refused):  # no transaction is open, or its commit has begun
                return self._committing and self._has_finished_commit()
            self._replace_producer_after(refused)
        return False

    def _abort(self) -> None:
        if self._writer.transactions.hangs():
            self._renew()
        else:
            within = {"within": _ABORTED_WITHIN} if self._closing else {}
            self._writer.abort(is_over=lambda: self._closing, **within)

    def _has_finished_commit(self) -> bool:
        try:
            self._finish_commit()
        except KafkaError as refused:
            if not is_out_of_place(refused):  # an out-of-place error means that the commit had already succeeded
                self._replace_producer_after(refused)
        return True

    def _replace_producer_after(self, error: KafkaError) -> None:
        """Use a new producer for the next transaction. When it is initialised, Kafka ends the current transaction.

        Raises:
            OutcomeUnknownError: The commit had begun, so the transaction might have been committed.
            FencedError: Another process might have taken over the user's transactional id, so this run must end.
        """
        self._is_fenced_in = False
        if is_fenced(error) and not self._has_generated_id:
            self._give_up(error)
        if self._committing:
            raise OutcomeUnknownError(f"It is unknown whether a transaction was committed: {error}") from error

    def _renew(self, batches_of_one: bool = False) -> None:
        """Continue with a new producer.

        When it is initialised, Kafka ends the open transaction of the previous producer.
        """
        self._is_fenced_in = False
        self._writer.renew(batches_of_one)
        try:
            self.fence()
        except KafkaError as refused:
            if is_fenced(refused) and not self._has_generated_id:
                self._give_up(refused)
            raise

    def _give_up(self, error: KafkaError) -> NoReturn:
        raise FencedError(
            f"Transactions cannot continue, so records since the last commit will be handled again: {error} If another "
            "process uses the same transactional.id, give each process an id of its own. If the brokers were not "
            "available for longer than transaction.timeout.ms, start the consumer again."
        ) from error

    def _without(self, outputs: Sequence[HandlerOutput], index: int, rejection: Rejection) -> Sequence[HandlerOutput]:
        """Replace a refused output, and all other outputs of its record or batch, by dead letters.

        If this client is not permitted to write to the topic, all outputs for that topic count as refused. Returns the
        new outputs.

        Raises:
            HandlerError: There is no dead-letter topic.
            _LevelsError: A dead letter was refused, or this client has lost the permission to write outputs. The levels
                try again, at growing intervals, until the topic accepts the records.
        """
        refused = outputs[index]
        topic = refused.topic
        if refused.kind is OutputKind.RESULT:
            log_refused_result(refused, rejection.reason)
            if rejection.error == FORBIDDEN:  # none of them can be stored
                return [each for each in outputs if each.kind is not OutputKind.RESULT]
            return [*outputs[:index], *outputs[index + 1 :]]
        if refused.kind is OutputKind.ANSWER:
            log.warning("An operator gets no answer, because it cannot be stored in %s: %s", topic, rejection.reason)
            return [*outputs[:index], *outputs[index + 1 :]]
        if refused.kind is OutputKind.LETTER:
            if rejection.error in _TOO_LARGE and (smaller := halved(refused)):
                return [*outputs[:index], smaller, *outputs[index + 1 :]]
            self._keep_back(outputs, topic, "A dead letter", self._explained(rejection))
        if refused.kind is OutputKind.COPY and self._letters is None:
            self._keep_back(outputs, topic, "The copy of a moved record", rejection)
        if rejection.error == FORBIDDEN and topic in self._written:
            self._keep_back(outputs, topic, "An output", rejection)
        refused_alike = [refused]
        if rejection.error == FORBIDDEN:
            refused_alike = [each for each in outputs if each.kind is not OutputKind.LETTER and each.topic == topic]
        for each in refused_alike:
            self._outputs.refused(each, DeliveryError(f"A record for {topic} was refused: {rejection.reason}"))
        for job in {id(each.job): each.job for each in refused_alike}.values():
            outputs = self._with_letters_for(outputs, job, f"An output for {topic} was refused: {rejection.reason}")
        return outputs

    def _explained(self, rejection: Rejection) -> Rejection:
        """Return the rejection of a dead letter, with a better reason if the topic's settings or state show one."""
        if rejection.error == FORBIDDEN or self._letters is None:
            return rejection
        try:
            return rejection._replace(reason=self._letters.why_not_stored() or rejection.reason)
        except KafkaError:
            return rejection

    def _keep_back(self, outputs: Sequence[HandlerOutput], topic: str, what: str, rejection: Rejection) -> NoReturn:
        """Raise the error that makes all levels wait that have outputs for this topic."""
        levels = {each.level for each in outputs if each.topic == topic}
        if rejection.error == FORBIDDEN:
            self._refused |= dict.fromkeys(levels, rejection.reason)
        error = KafkaError(
            f"{what} cannot be stored in {topic}, and nothing is committed until it is stored: {rejection.reason}"
        )
        raise _LevelsError(dict.fromkeys(levels, error))

    def _with_letters_for(self, outputs: Sequence[HandlerOutput], job: Job, reason: str) -> Sequence[HandlerOutput]:
        error = DeliveryError(reason)
        if self._letters is None:
            raise no_dead_letters(job[0], error, _REASON)
        for attempt in job:
            log_dead_letter(attempt, error, _REASON)
        letters = [_letter(self._letters, attempt, error, _REASON) for attempt in job]
        if self._outputs.results is not None:
            letters += filter(None, [self._outputs.results.of_failure(attempt, error) for attempt in job])
        first = next(place for place, output in enumerate(outputs) if output.job is job)
        return [*outputs[:first], *letters, *(output for output in outputs[first:] if output.job is not job)]


def _letter(topic: LetterTopic, attempt: RecordAttempt, error: BaseException, reason: str) -> HandlerOutput:
    letter = topic.letter(attempt, error, reason)
    return HandlerOutput(
        letter.topic,
        letter.value,
        letter.key,
        headers=letter.headers,
        job=(attempt,),
        returned=None,
        kind=OutputKind.LETTER,
    )


def _levels_of(parts: Iterable[MemberOffsets]) -> list[int]:
    return [level for part in parts for level in part.levels]
