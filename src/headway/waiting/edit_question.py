"""Asks the members of a group for an edit, and collects their answers."""

import time
from collections.abc import Callable, Collection, Iterable, Sequence

from headway.core.waiting.requests import FINAL, EditAnswer, EditRequest, RecordFate, read_message
from headway.errors import UnreadableError
from headway.kafka.reading.requests_topic import RequestMessages
from headway.waiting.unfinished_record import RecordAddress

_ASK_AGAIN_AFTER = 1.0  # how long an asker waits for an answer before it asks again, in seconds

OnFate = Callable[[RecordFate], None]
"""Called with what became of each record, as soon as it is known. Records that wait for their turn are reported too."""


class EditQuestion:
    """One edit that is being asked for: what is decided, and what must be asked again."""

    def __init__(
        self,
        requests: Sequence[EditRequest],
        records: Collection[RecordAddress],
        send: Callable[[Iterable[EditRequest]], None],
        on_fate: OnFate | None,
    ) -> None:
        self._requests = {request.id: request for request in requests}
        self._undecided = set(records)
        self._send = send
        self._on_fate = on_fate
        self._fates: dict[RecordAddress, RecordFate] = {}

    def answers(self, messages: RequestMessages, deadline: float) -> list[RecordFate]:
        """Ask, and ask again, until each record is decided or the time is over."""
        ask_at = 0.0
        while self._undecided and (now := time.monotonic()) < deadline:
            if now >= ask_at:
                self._send(each for each in self._requests.values() if self._is_open(each))
                ask_at = time.monotonic() + _ASK_AGAIN_AFTER
            if (message := messages.take()) is not None:
                self._take(*message)
        return [self._fates[place] for place in sorted(self._fates)]

    def _is_open(self, request: EditRequest) -> bool:
        return any(
            (each.topic, each.partition, offset) in self._undecided
            for each in request.records
            for offset in each.offsets
        )

    def _take(self, key: str, value: bytes) -> None:
        if key not in self._requests:
            return
        try:
            answer = read_message(key, value)
        except UnreadableError:
            return
        for fate in answer.fates if isinstance(answer, EditAnswer) else ():
            place = (fate.topic, fate.partition, fate.offset)
            if place not in self._undecided:
                continue  # the first answer counts: that of an edit comes before "gone"
            if fate.fate in FINAL:
                self._undecided.discard(place)
                self._fates[place] = fate
            if self._on_fate:
                self._on_fate(fate)
