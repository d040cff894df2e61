"""A member of a group without members, so that edits are carried out."""

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from headway.errors import HeadwayError
from headway.parallel.consumer import ParallelConsumer
from headway.records.record_types import ConsumerRecord
from headway.settings.config import Config
from headway.waiting.unfinished_log import LevelOfGroup

log = logging.getLogger(__name__)


@contextmanager
def standing_in(config: Config, group: str, topic: str, sources: list[LevelOfGroup]) -> Iterator[None]:
    """Be a member of the group during a `with` block. This member handles no records."""
    member = _make_member(config, group, topic, sources)
    member.pause()
    thread = threading.Thread(target=_run, args=(member,), name="headway-stand-in", daemon=True)
    thread.start()
    try:
        yield
    finally:
        member.close(drain=False)
        thread.join()


def _make_member(config: Config, group: str, topic: str, sources: list[LevelOfGroup]) -> ParallelConsumer:
    # A partition without a commit is left alone, because only the handlers' settings say where it begins.
    settings: dict[str, Any] = {**config, "group.id": group, "auto.offset.reset": "error"}
    levels = 1 + max(source.level for source in sources)
    is_plain = sources[0].topic == topic
    if not is_plain or levels > 1:
        settings["levels"] = levels
        settings["group.per.level"] = sources[0].group != group
    member = ParallelConsumer(settings, steered=True, commit_mode="transactional")
    member.subscribe({topic: sources[0].level} if is_plain and levels > 1 else topic)
    return member


def _run(member: ParallelConsumer) -> None:
    """Run a member that is paused, so it handles no records."""
    try:
        member.run(_handle_nothing)
    except HeadwayError as error:
        log.warning("This process could not carry out the edits as a member of the group: %s", error)


def _handle_nothing(record: ConsumerRecord) -> None:
    raise HeadwayError("This member must not handle records.")
