"""Lifespans that other processes can import: they note what they do in the file that the settings name."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from headway import ConsumerRecord, Context


def _note(settings: dict[str, Any], word: str) -> None:
    with Path(settings["client.id"]).open("a") as notes:
        notes.write(f"{os.getpid()} {word}\n")


@contextmanager
def noted(settings: dict[str, Any]) -> Iterator[dict[str, Any]]:
    _note(settings, "start")
    yield settings
    _note(settings, "end")


@contextmanager
def refusing() -> Iterator[None]:
    if not os.environ.get("THERE_IS_A_DATABASE"):
        raise ConnectionError("there is no database")
    yield


@contextmanager
def failing_at_the_end() -> Iterator[None]:
    yield
    raise RuntimeError("not all was flushed")


def note_state(record: ConsumerRecord, context: Context) -> None:
    _note(context.state, f"handle {record.raw_value!r}")


def note_states(records: Sequence[ConsumerRecord], contexts: Sequence[Context]) -> None:
    for record, context in zip(records, contexts, strict=True):
        note_state(record, context)
