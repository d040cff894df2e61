"""Outputs, dead letters and offsets in transactions: all of them, or nothing.

Invariants: what became of a transaction is known before the next one begins, or none begins any more; so nothing is
committed twice, whatever interrupts. What Kafka refuses of an output for good does not keep back the others: in its
place, and in its record's, there is a dead letter.

Source: KIP-447; the group's generation fences a member that was expelled, so `transactional.id` need not tell
partitions apart.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any, NoReturn

from headway.core.ticks import Tick
from headway.errors import DeliveryError, HeadwayError, KafkaError, SerializationError, TransactionError
from headway.kafka.level_consumers import LevelConsumers
from headway.kafka.producer_client import (
    ProducerClient,
    in_slices,
    is_fatal,
    is_out_of_place,
    is_the_records_own,
    refuses_all,
)
from headway.letters import letter_headers
from headway.parallel.dead_letters import Letter
from headway.parallel.dispatch import Dispatch, Job, RecordWork, no_dead_letters
from headway.parallel.outputs import Output, Outputs, send

_WITHIN = 60.0  # seconds; by default the broker, too, waits so long for a transaction to end

_REASON = "Kafka refuses an output"


class _RefusedError(KafkaError):
    """An output was refused for good: which, if that is certain, since Kafka refuses whole batches."""

    def __init__(self, index: int | None, error: str) -> None:
        super().__init__(error)
        self.index = index


class Transactions:
    """At each tick one transaction: the whole outputs of what is done, dead letters too, with the offsets and maps."""

    def __init__(
        self,
        client: ProducerClient,
        outputs: Outputs,
        dispatch: Dispatch,
        levels: LevelConsumers,
        dead_letter_topic: str | None,
    ) -> None:
        self._client = client
        self._outputs = outputs
        self._dispatch = dispatch
        self._levels = levels
        self._dead_letter_topic = dead_letter_topic
        self._committing = False
        self._begun = False  # Ctrl-C may come while a new producer begins
        self.committed: Tick | None = None  # the last one
        self.over = False  # nothing is committed any more

    def begin(self) -> None:
        """Fence off an earlier producer of the same `transactional.id`; raises `KafkaError`."""
        in_slices(self._client.init_transactions)
        self._begun = True

    def settle(self, work: RecordWork, returned: Any) -> Job | None:
        """Take what a handler returned."""
        try:
            outputs = self._outputs.of(work, returned)
        except Exception as error:  # a user's serialiser or iterator too
            return self._dispatch.failed(work, error)
        return self._dispatch.done(work, outputs)

    def send(self, work: RecordWork, error: BaseException, reason: str) -> None:
        """A work's dead letter rides with its offset."""
        self._dispatch.stored(work, None, (self._letter(work, error, reason),))

    def _letter(self, work: RecordWork, error: BaseException, reason: str) -> Output:
        letter = Letter.of(self._dead_letter_topic or "", work.record, letter_headers(work, error, reason))
        return Output(letter, work, None)

    def commit(self, tick: Tick) -> None:
        """Commit outputs, offsets and maps together; `committed` tells, even where Ctrl-C came late.

        Raises:
            KafkaError: Nothing of it was committed, and it may be tried again.
            TransactionError: This producer was fenced off, or cannot go on. Nothing is committed any more.
            HandlerError: Kafka refuses an output, and there is no dead-letter topic. Likewise.
        """
        if self._client.batches_of_one or not self._begun:
            self._renew()
        outputs: Sequence[Output] = tick.outputs
        while (refusal := self._commit(tick, outputs)) is not None:
            # Not by this producer: librdkafka would go on behind the sequence numbers of what was refused, a gap.
            self._renew(batches_of_one=True)
            if refusal.index is not None:
                outputs = self._without(outputs, refusal.index, refusal)

    def _commit(self, tick: Tick, outputs: Sequence[Output]) -> _RefusedError | None:
        """Commit these; or where one was refused nothing of them."""
        delivered: list[tuple[Output, Any]] = []
        self._committing = False
        try:
            self._client.begin_transaction()
            self._send(outputs, delivered)
            commits = {each: commit[:2] for each, commit in tick.commits.items()}
            for offsets, group_metadata in self._levels.for_transaction(commits):
                in_slices(partial(self._client.send_offsets, offsets, group_metadata))
            self._committing = True
            in_slices(self._client.commit_transaction)
            self.committed = tick
        except _RefusedError as refusal:
            return refusal
        except BaseException as error:  # Ctrl-C may come when it is committed, or is about to be
            if self.committed is not tick and self._was_committed(error):
                self.committed = tick
            raise
        for output, message in delivered:
            self._outputs.delivered(output, message)
        return None

    def _send(self, outputs: Sequence[Output], delivered: list[tuple[Output, Any]]) -> None:
        refused: list[HeadwayError] = []
        certain = self._client.batches_of_one or len(outputs) == 1
        for index, output in enumerate(outputs):

            def report(error: Any, message: Any, index: int = index, output: Output = output) -> None:
                if error is None:
                    delivered.append((output, message))
                elif is_the_records_own(error):
                    refused.insert(0, _RefusedError(index if certain else None, error.str()))
                else:
                    refused.append(KafkaError(f"A record for {output.letter.topic}: {error.str()}."))

            try:
                send(self._client, output.letter, report)
            except (DeliveryError, SerializationError) as error:
                if not refuses_all(error):
                    raise _RefusedError(index, str(error)) from error
                refused.append(error)  # the cause is in a report that is still to come
            if refused:
                break
        self._client.await_reports(lambda: bool(refused), _WITHIN)
        if refused:
            raise refused[0]

    def _was_committed(self, error: BaseException) -> bool:
        """End what was interrupted or refused: False if nothing of it is committed, True if all is."""
        if isinstance(error, KafkaError) and is_fatal(error):
            self._give_up(error)
        try:
            self._abort()
        except KafkaError as refused:
            if not is_out_of_place(refused):
                self._give_up(refused)
            return self._committing and self._finish_commit()  # else it had not begun
        return False

    def _abort(self) -> None:
        if self._client.hangs():
            self._renew()
        else:
            in_slices(self._client.abort_transaction)

    def _renew(self, batches_of_one: bool = False) -> None:
        """Go on with a new producer, which ends what the one before has open."""
        self._begun = False
        self._client.renew(batches_of_one)
        try:
            self.begin()
        except KafkaError as refused:
            self._give_up(refused)

    def _finish_commit(self) -> bool:
        """See a commit through that can be aborted no more."""
        try:
            in_slices(self._client.commit_transaction)
        except KafkaError as refused:
            if not is_out_of_place(refused):  # which it is after it has succeeded
                self._give_up(refused)
        return True

    def _give_up(self, error: KafkaError) -> NoReturn:
        self.over = True
        raise TransactionError(
            f"Transactions cannot go on, and what was done since the last commit comes again: {error} If another "
            "process uses the same transactional.id, give each its own."
        ) from error

    def _without(self, outputs: Sequence[Output], index: int, refusal: _RefusedError) -> Sequence[Output]:
        """The same without the refused one: in the place of its record's outputs a dead letter."""
        refused = outputs[index]
        error = DeliveryError(f"An output for {refused.letter.topic} was refused: {refusal}")
        if self._dead_letter_topic is None or refused.output is None:
            self.over = True
            raise no_dead_letters(refused.work, error, _REASON)
        self._dispatch.undeliverable(refused.work, error, _REASON)
        letter = self._letter(refused.work, error, _REASON)
        first = next(place for place, output in enumerate(outputs) if output.work is refused.work)
        return [*outputs[:first], letter, *(output for output in outputs[first:] if output.work is not refused.work)]
