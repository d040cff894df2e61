"""The markers of the sink, with which a run recognises the rows that an earlier run has already written.

A marker describes the rows that one task has written. The numbers of the task and the micro-batch do not identify these
rows: after a start from an older checkpoint, Spark uses the same numbers for other rows, and with another number of
cores, Spark divides the same rows into other tasks. So a marker also contains a digest of the rows and a sample of
them, and the driver closes each version with a digest of all its rows.

This module does no I/O: it takes markers and digests, and returns decisions and error messages.
"""

from collections.abc import Iterator, Mapping
from typing import NamedTuple, Self

import msgspec

from headway.core.untrusted import Text, read_json
from headway.errors import TransactionError
from headway.spark.sink.digest import RowsDigest, target_of
from headway.spark.sink.row_sample import SampledRows, in_common

MOST_REMEMBERED = 32
"""The number of earlier versions whose digests a marker keeps. The rows of a replay are recognised if its checkpoint is
at most this many micro-batches old."""


class WritePart(NamedTuple):
    """The rows of one Spark partition in one version: a micro-batch of a query, or a `df.write` with a `txnVersion`.

    `run` changes when the query or the program is restarted. All attempts that Spark makes at a task have the same
    `run`.
    """

    app_id: str
    version: int
    partition: int
    run: str = ""
    is_micro_batch: bool = False

    @property
    def slot(self) -> str:
        """The name of the slot, which is the same for this partition in all versions."""
        return f"{self.app_id}/{self.partition}"

    @property
    def key(self) -> bytes:
        """The record key of the slot's markers."""
        return self.slot.encode()

    @property
    def closing_key(self) -> bytes:
        """The record key of the marker that closes a version."""
        return f"{self.app_id}/closed".encode()

    @property
    def misfit_key(self) -> bytes:
        """The record key of the marker for a run whose tasks have different rows from an earlier run's tasks."""
        return f"{self.app_id}/misfit".encode()

    @property
    def version_name(self) -> str:
        """The name of the version in error messages, such as `micro-batch 7`."""
        kind = "micro-batch" if self.is_micro_batch else f"txnAppId {self.app_id}, version"
        return f"{kind} {self.version}"


class Marker(msgspec.Struct, frozen=True):
    """A description of rows that are in Kafka: their number, their digest, and the run that wrote them.

    `what` is the digest of the contents, and `when` is the digest of the due times. `before` contains the digests of
    the slot's earlier versions, newest first. `sample` contains fingerprints of some of the rows. The marker that
    closes a version describes the rows of all its parts.
    """

    version: int
    rows: int
    what: Text = ""
    when: Text = ""
    run: Text = ""
    before: tuple[Text, ...] = ()
    sample: bytes = b""

    @property
    def history(self) -> tuple[str, ...]:
        """The digests of this version and of the earlier versions, newest first."""
        return (self.what + self.when, *self.before)

    def encode(self) -> bytes:
        """Encode the marker as the value of a record."""
        return msgspec.json.encode(self)


_decoder = msgspec.json.Decoder(Marker)


def read_marker(value: bytes) -> Marker:
    """Decode a marker from the value of its record. Raises `UnreadableError` if the value is not a marker."""
    return read_json(value, _decoder, "A marker")


class Marked(NamedTuple):
    """The markers of an application, as a task has read them from Kafka.

    `own` is the marker in the slot of the task's part, and `others` are the markers in the other slots. `closed` is the
    marker that closed the last version. `misfit` is the marker of the last run that did not match an earlier run.
    """

    own: Marker | None = None
    others: tuple[Marker, ...] = ()
    closed: Marker | None = None
    misfit: Marker | None = None

    @classmethod
    def read(cls, markers: Mapping[bytes, bytes], part: WritePart) -> Self:
        """Decode the markers that `CommitMarkers.newest` returned."""
        read = {slot: read_marker(value) for slot, value in markers.items()}
        own, closed, misfit = (read.pop(key, None) for key in (part.key, part.closing_key, part.misfit_key))
        return cls(own, tuple(read.values()), closed, misfit)

    def _all(self) -> Iterator[Marker]:
        yield from filter(None, (self.own, self.closed))
        yield from self.others

    @property
    def newest(self) -> int:
        """The newest version that has a marker, or -1 if there are no markers."""
        return max((marker.version for marker in self._all()), default=-1)

    def is_by_this_run(self, part: WritePart) -> bool:
        """Return whether another attempt of this run at the same task has written the part.

        The rows that the other attempt wrote may differ from the rows that the task has now.
        """
        return self.own is not None and (self.own.version, self.own.run) == (part.version, part.run)

    def is_open(self, part: WritePart) -> bool:
        """Return whether the task is still permitted to write the part.

        The task is no longer permitted to write if its slot has a marker of this version, if any slot has a marker of a
        later version, if this version is closed, or if the rows of some task of this run do not match an earlier run.
        """
        done = max((marker.version for marker in (self.own, self.closed) if marker), default=-1)
        return done < part.version and self.newest <= part.version and not self.is_misfit(part)

    def is_misfit(self, part: WritePart) -> bool:
        """Return whether some task of this run has rows that do not match those of an earlier run."""
        return self.misfit is not None and (self.misfit.version, self.misfit.run) == (part.version, part.run)

    def may_be_closed(self, part: WritePart) -> bool:
        """Return whether the version can still be closed: it is not closed yet, and no later version has a marker."""
        done = -1 if self.closed is None else self.closed.version
        return done < part.version and self.newest <= part.version

    def has(self, part: WritePart, digest: RowsDigest, keep_version: int | None) -> bool:
        """Return whether Kafka already has the rows with this digest in the part's slot, or rows that replace them.

        Within the same version, due times are not compared, because they are usually computed from the current time. In
        the version `keep_version`, any rows that Kafka has replace the task's rows.
        """
        own, closed = self.own, self.closed
        if keep_version == part.version and any(each and each.version == part.version for each in (own, closed)):
            return True
        if own is None:
            return False
        if own.version == part.version:
            return digest.what == own.what
        return digest.what + digest.when in own.history

    def of_other_runs(self, part: WritePart) -> list[Marker]:
        """Return the markers of this version that another run has written in other slots."""
        return [each for each in self.others if each.version == part.version and each.run != part.run]

    def written_elsewhere(self, part: WritePart) -> SampledRows:
        """Return samples of the rows of this version that another run has written in other slots."""
        return SampledRows(each.sample for each in self.of_other_runs(part))

    def since(self, earlier: "Marked", part: WritePart, digest: RowsDigest) -> bool:
        """Return whether another run has written some of the rows in the digest since the markers `earlier` were read.

        Only markers of other slots count.
        """
        known = {each.sample for each in earlier.of_other_runs(part)}
        own = digest.sample.encode()
        return any(in_common(own, each.sample) for each in self.of_other_runs(part) if each.sample not in known)

    def report(
        self,
        part: WritePart,
        digest: RowsDigest,
        keep_version: int | None,
        *,
        is_new: bool = False,
        doubt: "Doubt | None" = None,
    ) -> "WriteReport":
        """Return a task's report on its part.

        If Kafka already has the part, the report contains the digest of the rows in Kafka.
        """
        own = self.own
        is_kept = keep_version == part.version
        there = own if own is not None and own.version == part.version and not doubt and not is_new else None
        what, when = (digest.what, digest.when) if there is None else (there.what, there.when)
        runs = {each.run for each in self._all() if each.version == part.version}
        is_again = bool(runs - {part.run})
        return WriteReport(part, what, when, is_new, doubt, self.closed, self.newest, is_again, is_kept)

    def with_this(self, part: WritePart, rows: int, digest: RowsDigest) -> Marker:
        """Return the marker to write with the part's rows, including the digests of the slot's earlier versions."""
        before = () if self.own is None else self.own.history
        known = before[:MOST_REMEMBERED]
        return Marker(part.version, rows, digest.what, digest.when, part.run, known, digest.sample.encode())

    def for_another_target(self, part: WritePart, target: str) -> TransactionError | None:
        """Return an error if another run wrote rows of this version to other topics or another cluster, or None."""
        found = [each for each in self._all() if each.version == part.version and each.run != part.run]
        if all(target_of(each.what) == target for each in found):
            return None
        return TransactionError(
            f"Task {part.partition} of {part.version_name} would write to other topics, or another cluster, than an "
            f"earlier run did, so it writes none of its rows. {_OTHER_TARGET}"
            + (_COPIED if part.is_micro_batch else "")
            + _KEEP_OTHERS.format(part.version)
        )

    def refusal(self, part: WritePart, digest: RowsDigest, marker_topic: str) -> "Doubt":
        """Return the doubt to report for a task that must not write its rows, although `has` did not find the rows."""
        if self.is_misfit(part) and (self.own is None or self.own.version < part.version):
            return Doubt(0, f"The rows of another task of {part.version_name} do not match those of an earlier run.")
        who = f"Task {part.partition} of"
        sentence = _refusal(who, part, digest.rows, self.own, self.newest, marker_topic)
        if self.may_be_closed(part):
            sentence += f" If the same rows are now divided into other tasks, {_DIVIDE_ALIKE}"
        return Doubt(1, sentence)


class Doubt(NamedTuple):
    """The error message for a task if the markers do not show whether its rows are in Kafka.

    The driver raises an error with this message, unless the digests of all tasks show that the rows are in Kafka. If
    several tasks report doubts, the driver raises the doubt with the highest rank.
    """

    rank: int
    sentence: str


def divided_otherwise(part: WritePart) -> Doubt:
    """Return the doubt to report for a task if other tasks of an earlier run have written some of its rows."""
    return Doubt(
        2,
        f"Task {part.partition} of {part.version_name} has rows that an earlier run has written in another task, so it "
        f"writes none of its rows: the same rows are now divided into other tasks. To avoid this, {_DIVIDE_ALIKE}"
        + _KEEP_ALIKE.format(part.version),
    )


class WriteReport(NamedTuple):
    """A task's report to the driver on its part: the digest of the rows, and in `is_new` whether the task wrote them.

    There is a `doubt` if the markers do not show whether the rows are in Kafka. `closed` is the marker that closed the
    last version, and `newest` the newest version that has a marker. `is_again` means that another run has also written
    rows of this version, and `is_kept` means that the option `keepVersion` names this version.
    """

    part: WritePart
    what: str
    when: str
    is_new: bool = False
    doubt: Doubt | None = None
    closed: Marker | None = None
    newest: int = -1
    is_again: bool = False
    is_kept: bool = False


def _refusal(who: str, part: WritePart, rows: int, there: Marker | None, newest: int, marker_topic: str) -> str:
    how_to_write = _WRITE_MICRO_BATCH.format(marker_topic) if part.is_micro_batch else _WRITE.format(newest)
    if there is not None and there.version == part.version:
        found, how_to_keep = f"Kafka has {there.rows:,} different ones", _KEEP.format(part.version)
    else:
        found, how_to_keep = f"Kafka already has other rows, up to version {newest}", ""
    return f"{who} {part.version_name} has {rows:,} rows, but {found}, so it writes none. {how_to_write}{how_to_keep}"


def refusal_of_all(part: WritePart, rows: int, closed: Marker, newest: int, marker_topic: str) -> str:
    """Format the error for a version that is closed, or older than a closed version, but now has different rows."""
    return _refusal("In total,", part, rows, closed, newest, marker_topic)


_WRITE_MICRO_BATCH = (
    "If the checkpoint is an older copy, continue from the latest checkpoint. Or write all rows since the copy, some "
    'of them a second time, with .option("markerTopic", "{}-2") from now on.'
)
_WRITE = "If these are new rows, write them under another txnAppId, or with a txnVersion above {}."
_KEEP = (
    " If they are the same rows, but their contents differ on each run, keep the rows in Kafka with "
    '.option("keepVersion", "{}"). Rows with an `identity` column do not need this.'
)
_DIVIDE_ALIKE = (
    "divide them as before, with the same number of cores, or whatever else determines the tasks. For later versions, "
    'put repartition(n, "key") with a fixed n before the write.'
)
_KEEP_ALIKE = (
    ' If these are different rows that only look alike, write the missing ones with .option("keepVersion", "{}").'
)
_OTHER_TARGET = "Use the same topics as before to complete this version."
_COPIED = (
    " If this is a second query that started with a copy of the first query's checkpoint, give the second query its "
    "own markerTopic from its first start on."
)
_KEEP_OTHERS = (
    " To write only the rows that Kafka does not have yet, and no rows of that version to the new topics, use "
    '.option("keepVersion", "{}").'
)
