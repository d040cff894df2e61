"""Finds the offsets at which newly assigned partitions begin, in a separate thread.

If librdkafka 2.16 itself requests committed offsets and the request fails at the wrong moment, librdkafka never reads
that partition, and also loses later revocations. So Headway passes a start offset with every partition that it assigns.
"""

import logging
import threading
import time
from collections.abc import Collection, Mapping

from headway.core.offsets.lost_place import RESETS, Reset
from headway.errors import ClosedError, ConfigError, KafkaError, OffsetError
from headway.kafka.binding.capi import Partition
from headway.kafka.binding.error_causes import librdkafka_error
from headway.kafka.binding.retrying import is_transient
from headway.kafka.consumer.group_client import GroupClient
from headway.kafka.consumer.other_commits import OtherCommits
from headway.kafka.consumer.start_questions import StartOffset, StartQuestions
from headway.runtime.wakeup import Wakeup

log = logging.getLogger(__name__)

_SILENT_FOR = 5.0  # seconds before a transient error is reported, which gives a broker time to restart
_REPORT_AGAIN_AFTER = 10.0
_ASK_AGAIN_AFTER = 1.0  # seconds after an unexpected error


class StartOffsets:
    """Finds the start of each partition: its committed offset or, without a commit, the offset of `auto.offset.reset`.

    A partition that was added to a topic while the member was reading the topic begins at its first record. If it began
    at "latest", records that are sent to it before the next rebalance would be skipped.

    The thread runs only while it is looking for starts. It repeats its requests until there is an answer or the
    partition is forgotten. A partition without an answer does not delay the others. An answer wakes the client's user.

    A missing permission is reported to the client at once, and a transient error after some seconds. There is at most
    one report every ten seconds. The client also gets the reason if a partition cannot begin at all: either `others`
    have commits that would be skipped, or `auto.offset.reset` demands an error for a partition without a commit.
    """

    def __init__(self, client: GroupClient, others: OtherCommits | None = None) -> None:
        self._client = client
        self._consumer = client.consumer  # a client that replaces this consumer also replaces this `StartOffsets`
        self._ids = client.ids
        self._others = others
        self._lock = threading.Lock()  # protects the requests and answers that the threads share
        # For each partition, the number of the latest call of `ask` with that partition.
        self._asked: dict[Partition, int] = {}
        self._questions = 0
        self._found: dict[Partition, StartOffset] = {}
        self._thread: threading.Thread | None = None
        self._wake: Wakeup | None = None  # wakes the thread
        self._closed = False
        self._failing_since: float | None = None
        self._reported_at = 0.0

    def ask(self, partitions: Collection[Partition]) -> None:
        """Look for the starts of these partitions. Answers to earlier calls about them no longer count."""
        with self._lock:
            if self._closed or not partitions:
                return
            self._questions += 1
            self._asked |= dict.fromkeys(partitions, self._questions)
            for partition in partitions:
                self._found.pop(partition, None)
            if self._wake is None:
                self._wake = Wakeup()
                args = (self._wake,)
                self._thread = threading.Thread(target=self._answer, args=args, name="headway-starts", daemon=True)
                self._thread.start()
            self._wake.set()

    def forget(self, partitions: Collection[Partition]) -> None:
        """Stop looking for the starts of these partitions."""
        with self._lock:
            for partition in partitions:
                self._asked.pop(partition, None)
                self._found.pop(partition, None)
            if self._wake and not self._asked:
                self._wake.set()

    def take(self) -> dict[Partition, StartOffset]:
        """Return the starts that were found since the last call."""
        if not self._found:
            return {}
        with self._lock:
            found, self._found = self._found, {}
            return found

    def close(self) -> None:
        """Stop looking for starts, and wait until the thread no longer uses the client."""
        if thread := self._end():
            thread.join()

    def _end(self) -> threading.Thread | None:
        with self._lock:
            self._closed = True
            self._asked.clear()
            if self._wake:
                self._wake.set()
            return self._thread

    # Methods that run in the thread

    def _answer(self, wake: Wakeup) -> None:
        config = self._client.config
        questions = StartQuestions(self._consumer, config, self._ids.is_new, wake.fd, self._may_reset, self._fail)
        try:
            while asked := self._questions_left(questions):
                try:
                    found = questions.turn(asked, time.monotonic())
                    due = questions.next_turn()
                except ClosedError:
                    raise
                except Exception:  # the thread must continue, because no partition could begin without it
                    log.exception("The look-up of start offsets raised an unexpected error, and is repeated.")
                    questions.forget()
                    found, due = {}, time.monotonic() + _ASK_AGAIN_AFTER
                self._note(asked, found)
                if not found:
                    wake.wait(None if due is None else max(0.0, due - time.monotonic()))
        except ClosedError:
            self._end()
            self._questions_left(questions)
        finally:
            questions.close()
            wake.close()

    def _questions_left(self, questions: StartQuestions) -> dict[Partition, int]:
        with self._lock:
            if not self._asked:
                # before `_thread` is cleared: after that, `close` does not wait for this thread
                questions.forget()
                self._wake = self._thread = None
            return dict(self._asked)

    def _note(self, asked: Mapping[Partition, int], found: Mapping[Partition, StartOffset]) -> None:
        with self._lock:
            answered = {each: start for each, start in found.items() if self._asked.get(each) == asked[each]}
            for partition in answered:
                del self._asked[partition]
            self._found |= answered
            if not self._asked:
                self._failing_since = None
        if answered:
            self._client.wake()

    def _may_reset(self, missing: Collection[Partition]) -> bool:
        """Return whether these partitions can begin without a commit. If they cannot, the reason is reported."""
        reset = str(self._client.config.get("auto.offset.reset", "latest"))
        if RESETS.get(reset.lower(), Reset.ERROR) is Reset.ERROR:
            topic, number = next(iter(missing))
            if self._is_due():
                self._client.report(
                    OffsetError(
                        f"Partition {number} of {topic} has no committed offset in the group, but needs one, because "
                        f"auto.offset.reset is {reset}. Commit an offset, for example with `headway offsets reset`, "
                        "or set auto.offset.reset to earliest or latest."
                    )
                )
            return False
        if self._others is None:
            return True
        try:
            self._others.check(missing)
        except ConfigError as refusal:
            if self._is_due():
                self._client.report(refusal)
            return False
        except KafkaError as error:
            self._fail(error, next(iter(missing))[0])
            return False
        return True

    def _fail(self, error: KafkaError, topic: str) -> None:
        code = librdkafka_error(error)
        now = time.monotonic()
        if self._failing_since is None:
            self._failing_since = now
        is_passing = code is not None and is_transient(code)
        is_reported = not is_passing or now - self._failing_since > _SILENT_FOR
        if is_reported and self._is_due():
            self._client.report_failure(str(error), topic, code)

    def _is_due(self) -> bool:
        now = time.monotonic()
        is_due = not self._reported_at or now - self._reported_at > _REPORT_AGAIN_AFTER
        if is_due:
            self._reported_at = now
        return is_due
