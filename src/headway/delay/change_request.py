"""The request that `Scheduler.cancel` and `Scheduler.reschedule` return."""

import asyncio
from concurrent.futures import Future
from typing import Any

from headway.core.delay.changes import Settled
from headway.declarations import checked_timeout
from headway.delay.commands import ANSWER_WITHIN, settled_in_loop, settled_within
from headway.errors import ConfigError, KafkaError


class ChangeRequest:
    """A request to cancel or reschedule a schedule, which `Scheduler.cancel` or `Scheduler.reschedule` has sent.

    Once the request is stored, a running relay carries it out, or the next relay that starts does. To get the outcome,
    wait for `settled`. To make sure only that the request is not lost, wait for `stored`, which does not need a running
    relay.
    """

    __slots__ = ("_handle", "answer", "future")

    def __init__(self, handle: str, future: Future[Any], answer: Future[Settled] | None) -> None:
        self._handle = handle
        self.future = future
        """Resolves when the request is stored."""
        self.answer = answer
        """Resolves to the relay's answer. None if no answer was requested."""

    def stored(self, timeout: float = ANSWER_WITHIN) -> None:
        """Wait until Kafka has stored the request.

        Raises:
            DeliveryError: Kafka refused the request, so it has no effect.
            KafkaError: The request was not stored within `timeout` seconds, but might be stored later. Sending the
                request again is harmless.
        """
        timeout = checked_timeout(timeout)
        try:
            self.future.result(timeout)
        except TimeoutError:
            raise self._not_stored(timeout) from None

    def settled(self, timeout: float = ANSWER_WITHIN) -> Settled:
        """Wait until a relay has decided, and return its decision about the schedule.

        Raises:
            NoRelayError: No relay has answered within `timeout` seconds. The next relay that runs will still carry out
                the request, unless the record has been delivered by then.
            DeliveryError: Kafka refused the request, so it has no effect.
            ConfigError: The request was sent with `answered=False`.
        """
        timeout = checked_timeout(timeout)
        return settled_within(self._awaited(), timeout, timeout)

    async def stored_async(self, timeout: float) -> None:
        """Wait as `stored` does, without blocking the event loop."""
        timeout = checked_timeout(timeout)
        try:
            async with asyncio.timeout(timeout):
                await asyncio.wrap_future(self.future)
        except TimeoutError:
            raise self._not_stored(timeout) from None

    async def settled_async(self, timeout: float) -> Settled:
        """Wait as `settled` does, without blocking the event loop."""
        return await settled_in_loop(self._awaited(), checked_timeout(timeout))

    def _awaited(self) -> Future[Settled]:
        if self.answer is None:
            raise ConfigError(
                f"The request about the schedule {self._handle} was sent with answered=False, so no relay answers it. "
                "To get the outcome, leave out answered=False."
            )
        return self.answer

    def _not_stored(self, timeout: float) -> KafkaError:
        return KafkaError(
            f"The request about the schedule {self._handle} is not stored yet: Kafka has not answered within "
            f"{timeout:g} s. The request may still be stored later. Check that a broker is running, and try again."
        )


class AsyncChangeRequest:
    """A request that `AsyncScheduler.cancel` or `AsyncScheduler.reschedule` has stored."""

    def __init__(self, request: ChangeRequest) -> None:
        self._request = request

    async def settled(self, timeout: float = ANSWER_WITHIN) -> Settled:
        """Wait until a relay has decided; see `ChangeRequest.settled`."""
        return await self._request.settled_async(timeout)
