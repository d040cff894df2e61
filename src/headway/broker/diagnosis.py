"""Why a node of a local Apache Kafka did not start, in one sentence, from what it logged."""

import re
from pathlib import Path
from typing import Protocol

_DAMAGED = re.compile(
    r"meta\.properties|Inconsistent ?ClusterId|Invalid cluster\.id|CorruptRecordException|CorruptSnapshot|"
    r"Corrupt index|Error while loading log|InvalidRecordException|bootstrap\.checkpoint|Stored node id"
)
_UNUSABLE_SETTING = re.compile(r"ConfigException: (.+)")
_EXCEPTION = re.compile(r"^(?:Caused by: |Exception in thread \S+ )?([\w.$]+(?:Exception|Error): .+)$", re.MULTILINE)
_ERROR = re.compile(r"^.* (?:ERROR|FATAL) \S+ - (.+)$", re.MULTILINE)


class Failed(Protocol):
    """What is asked of the node."""

    @property
    def id(self) -> int: ...
    @property
    def port(self) -> int: ...
    @property
    def directory(self) -> Path: ...
    @property
    def data_dir(self) -> Path: ...
    @property
    def log_file(self) -> Path: ...


def diagnose(node: Failed) -> str:
    """The sentence for a node that stopped while starting."""
    log = node.log_file.read_text(encoding="utf-8", errors="replace")
    reason = _reason(log)
    if "Address already in use" in log:
        return f"A port of node {node.id} was taken while it started ({reason}). Start again, or choose another port."
    if "Failed to acquire lock" in log:
        return f"{node.data_dir} is in use by another broker. Stop that one, or choose another data directory."
    if _DAMAGED.search(log):
        return (
            f"The data in {node.data_dir} are damaged or of another cluster ({reason}). Restore the directory from a "
            f"backup, or delete {node.directory.parent} to begin anew without its records."
        )
    if refused := _UNUSABLE_SETTING.search(log):
        return f"Apache Kafka does not take the given properties: {refused[1].rstrip('.')}."
    return f"Node {node.id} stopped while starting: {reason}. Its log: {node.log_file}"


def _reason(log: str) -> str:
    """The innermost exception, or else the first error, or else the last line."""
    found = _EXCEPTION.findall(log)[-1:] or _ERROR.findall(log)[:1] or log.strip().splitlines()[-1:]
    return found[0].strip().rstrip(".") if found else "it logged nothing"
