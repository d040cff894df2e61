"""Explains in one sentence, from its log, why a node of a local Apache Kafka does not start."""

import re
from pathlib import Path
from typing import Protocol

from headway.errors import LocalBrokerError, PortTakenError

_REFUSED_SETTING = re.compile(r"ConfigException: (.+)")
_EXCEPTION = re.compile(r"^(?:Caused by: |Exception in thread \S+ )?[\w.$]+(?:Exception|Error): (.+)$", re.MULTILINE)
_ERROR = re.compile(r"^.* ERROR \S+ - (.+)$", re.MULTILINE)


class Failed(Protocol):
    """What a diagnosis needs to know about a failed node."""

    @property
    def id(self) -> int: ...
    @property
    def directory(self) -> Path: ...
    @property
    def data_dir(self) -> Path: ...
    @property
    def log_file(self) -> Path: ...


def diagnose(node: Failed) -> LocalBrokerError:
    """Return the error for a node that stopped during its start."""
    log = _log(node)
    if "Address already in use" in log:
        return PortTakenError(
            f"A port of node {node.id} was taken by another process while it was starting. Start again, or choose "
            "another port."
        )
    return LocalBrokerError(_sentence(node, log))


def _sentence(node: Failed, log: str) -> str:
    if "Failed to acquire lock" in log:
        return f"{node.data_dir} is in use by another broker. Stop that one, or choose another data directory."
    if refused := _REFUSED_SETTING.search(log):
        return f"Apache Kafka refuses a property: {refused[1].rstrip('.')}. Correct it and start again."
    return (
        f"Node {node.id} stopped during its start ({_reason(log)}). If its data are damaged, {_begin_anew(node)}. "
        f"Its log is {node.log_file}."
    )


def missing_metadata(node: Failed) -> str | None:
    """Return a sentence about a node that is serving but has lost its topics, or None.

    If a metadata log is damaged, Kafka drops everything after the damage and continues with the rest, even if that is
    nothing.
    """
    topics = (path for path in node.data_dir.glob("*-*/") if not path.name.startswith("__cluster_metadata"))
    if "The metadata log appears to be empty" in _log(node) and any(topics):
        return f"The metadata in {node.data_dir} were damaged, so its topics are gone: {_begin_anew(node)}."
    return None


def _begin_anew(node: Failed) -> str:
    return f"restore {node.directory.parent} from a backup, or delete it to start without its records"


def _log(node: Failed) -> str:
    return node.log_file.read_text(encoding="utf-8", errors="replace")


def _reason(log: str) -> str:
    """Return the first sentence of the innermost exception, or else the first error, or else the last line."""
    found = _EXCEPTION.findall(log)[-1:] or _ERROR.findall(log)[:1] or log.strip().splitlines()[-1:]
    return found[0].split(". ")[0].strip().rstrip(".") if found else "it logged nothing"
