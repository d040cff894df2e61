"""The offsets at which newly assigned partitions begin: read in a thread of ours, never by librdkafka.

If librdkafka 2.16 reads committed offsets itself and an OffsetFetch fails at a bad moment, it never reads that
partition. It then also swallows later revocations. Headway therefore gives it every partition with its start offset.
"""

import threading
import time
from collections.abc import Collection, Mapping

from headway.core.offsets.lost_place import RESETS, Reset
from headway.errors import ClosedError, ConfigError, KafkaError, OffsetError
from headway.kafka.binding.capi import Partition
from headway.kafka.binding.error_causes import cause_of
from headway.kafka.binding.retrying import is_transient
from headway.kafka.consumer.group_client import GroupClient
from headway.kafka.consumer.other_commits import OtherCommits
from headway.kafka.consumer.start_questions import Start, StartQuestions
from headway.runtime.wakeup import Wakeup

_SILENT_FOR = 5.0  # a broker that restarts is not worth a report
_TELL_AGAIN_AFTER = 10.0


class StartOffsets:
    """The start of each partition asked for: its committed offset, or without one the offset that `reset` says.

    A partition that `is_new`, as it was added to a topic that the member reads, begins at its first record: with
    "latest" what is sent to it before the group has met would be passed over.

    Its thread runs only while there are questions. It asks until it has an answer or the partition is forgotten, and a
    partition without an answer holds up no other. An answer wakes the client's user. The client gets a refusal at once,
    an error that may pass after some seconds, and each at most every ten seconds. It also gets the reason why a
    partition never begins: `others` have commits that would be passed over, or the user wants an error for a partition
    without a commit.
    """

    def __init__(self, client: GroupClient, others: OtherCommits | None = None) -> None:
        self._client = client
        self._consumer = client.consumer  # it may be replaced, with this object
        self._ids = client.ids
        self._others = others
        self._lock = threading.Lock()
        self._asked: dict[Partition, int] = {}  # each with the number of its question
        self._questions = 0
        self._found: dict[Partition, Start] = {}
        self._thread: threading.Thread | None = None
        self._wake: Wakeup | None = None  # of the thread
        self._closed = False
        self._failing_since: float | None = None
        self._told_at = 0.0

    def ask(self, partitions: Collection[Partition]) -> None:
        """Look up the starts of partitions; an answer to an earlier question about them does not count any more."""
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
        """Ask no longer about these partitions."""
        with self._lock:
            for partition in partitions:
                self._asked.pop(partition, None)
                self._found.pop(partition, None)
            if self._wake and not self._asked:
                self._wake.set()

    def take(self) -> dict[Partition, Start]:
        """Return the starts that were found since the last call."""
        if not self._found:
            return {}
        with self._lock:
            found, self._found = self._found, {}
            return found

    def close(self) -> None:
        """Ask nothing more, and wait until the thread does not use the client any more."""
        if thread := self._end():
            thread.join()

    def _end(self) -> threading.Thread | None:
        with self._lock:
            self._closed = True
            self._asked.clear()
            if self._wake:
                self._wake.set()
            return self._thread

    # In the thread

    def _answer(self, wake: Wakeup) -> None:
        config = self._client.config
        questions = StartQuestions(self._consumer, config, self._ids.is_new, wake.fd, self._may_reset, self._fail)
        try:
            while asked := self._questions_left(questions):
                found = questions.turn(asked, time.monotonic())
                self._note(asked, found)
                if not found:
                    due = questions.next_turn()
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
                questions.forget()  # nobody waits for the end of this thread from now on
                self._wake = self._thread = None
            return dict(self._asked)

    def _note(self, asked: Mapping[Partition, int], found: Mapping[Partition, Start]) -> None:
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
        """Return whether these partitions may begin without a commit; a refusal is told."""
        reset = str(self._client.config.get("auto.offset.reset", "latest"))
        if RESETS.get(reset.lower(), Reset.ERROR) is Reset.ERROR:
            topic, number = next(iter(missing))
            if self._is_due():
                self._client.report(
                    OffsetError(
                        f"Partition {number} of {topic} has no committed offset in the group, and with "
                        f"auto.offset.reset={reset} it does not begin without one. Commit an offset, for example by "
                        "`headway offsets reset`, or set auto.offset.reset to earliest or latest."
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
        code = cause_of(error)
        now = time.monotonic()
        if self._failing_since is None:
            self._failing_since = now
        may_pass = code is not None and is_transient(code)
        is_told = not may_pass or now - self._failing_since > _SILENT_FOR
        if is_told and self._is_due():
            self._client.report_failure(str(error), topic, code)

    def _is_due(self) -> bool:
        now = time.monotonic()
        is_due = not self._told_at or now - self._told_at > _TELL_AGAIN_AFTER
        if is_due:
            self._told_at = now
        return is_due
