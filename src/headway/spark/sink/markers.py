"""Marked parts: which rows a marker of the sink stands for, and whether the present rows are the same.

The numbers of a task and a batch do not suffice. Spark reuses them for other rows after a start from an older
checkpoint, and divides the same rows into other tasks on other cores. So a marker also has a digest of its rows, and a
sample of them; and the driver closes a version with the digest of all rows. Pure: markers and digests in, an answer or
a sentence out.
"""

from collections.abc import Iterator, Mapping
from typing import NamedTuple, Self

import msgspec

from headway.core.untrusted import Text, read_json
from headway.errors import TransactionError
from headway.spark.sink.digest import RowsDigest, target_of
from headway.spark.sink.row_sample import SampledRows, in_common

MOST_REMEMBERED = 32


class Part(NamedTuple):
    """The rows of one partition in one version of an application's writes; for a query, in one micro-batch.

    `run` is the same for all attempts at its task that Spark makes before a restart.
    """

    app_id: str
    version: int
    partition: int
    run: str = ""
    is_micro_batch: bool = False

    @property
    def slot(self) -> str:
        """The name that all versions of this part share."""
        return f"{self.app_id}/{self.partition}"

    @property
    def key(self) -> bytes:
        """The key of the slot's markers."""
        return self.slot.encode()

    @property
    def closing_key(self) -> bytes:
        """The key of the marker that closes a version."""
        return f"{self.app_id}/closed".encode()

    @property
    def misfit_key(self) -> bytes:
        """The key of the marker of a run whose tasks do not have the rows that an earlier run's tasks had."""
        return f"{self.app_id}/misfit".encode()

    @property
    def version_name(self) -> str:
        """The version in sentences."""
        kind = "micro-batch" if self.is_micro_batch else f"txnAppId {self.app_id}, version"
        return f"{kind} {self.version}"


class Marker(msgspec.Struct, frozen=True):
    """The rows of a part that are in Kafka: their number, their digest, and the run of the write that wrote them.

    `what` and `when` are the two parts of the digest. `before` has both for the slot's earlier versions, newest first.
    `sample` has some of the rows. The marker that closes a version stands for the rows of all parts.
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
        """The digests of this version and of the earlier ones."""
        return (self.what + self.when, *self.before)

    def encode(self) -> bytes:
        """Return the value for Kafka."""
        return msgspec.json.encode(self)


_decoder = msgspec.json.Decoder(Marker)


def read_marker(value: bytes) -> Marker:
    """Return a marker from the value of its record; raise `UnreadableError` if no sink wrote the value."""
    return read_json(value, _decoder, "A marker")


class Marked(NamedTuple):
    """The existing markers of an application, as a part sees them.

    `own` is that of the part's own slot, `others` are those of other slots, `closed` is that of the last version of
    which all is there, and `misfit` that of the last run which did not fit to an earlier one.
    """

    own: Marker | None = None
    others: tuple[Marker, ...] = ()
    closed: Marker | None = None
    misfit: Marker | None = None

    @classmethod
    def read(cls, markers: Mapping[bytes, bytes], part: Part) -> Self:
        """Return the markers from the result of `CommitMarkers.newest`."""
        read = {slot: read_marker(value) for slot, value in markers.items()}
        own, closed, misfit = (read.pop(key, None) for key in (part.key, part.closing_key, part.misfit_key))
        return cls(own, tuple(read.values()), closed, misfit)

    def _all(self) -> Iterator[Marker]:
        yield from filter(None, (self.own, self.closed))
        yield from self.others

    @property
    def newest(self) -> int:
        """The newest version that any slot has; -1 for none."""
        return max((marker.version for marker in self._all()), default=-1)

    def is_by_this_run(self, part: Part) -> bool:
        """Return whether another attempt at this task has written the part; its rows may differ from these."""
        return self.own is not None and (self.own.version, self.own.run) == (part.version, part.run)

    def is_open(self, part: Part) -> bool:
        """Return whether the part may still be written.

        Not if its slot has this version, if any slot has a later one, if all of this version is there, or after another
        task of this run did not fit to an earlier run.
        """
        done = max((marker.version for marker in (self.own, self.closed) if marker), default=-1)
        return done < part.version and self.newest <= part.version and not self.is_misfit(part)

    def is_misfit(self, part: Part) -> bool:
        """Return whether some task of the part's run has other rows than an earlier run's tasks suggest."""
        return self.misfit is not None and (self.misfit.version, self.misfit.run) == (part.version, part.run)

    def may_be_closed(self, part: Part) -> bool:
        """Return whether no marker says that the part's version, or a later one, is done."""
        done = -1 if self.closed is None else self.closed.version
        return done < part.version and self.newest <= part.version

    def has(self, part: Part, digest: RowsDigest, keep_version: int | None) -> bool:
        """Return whether Kafka has the rows with this digest in the part's slot, or rows that are to count as theirs.

        In the same version the rows may have other due times, which mostly come from a clock.
        """
        own, closed = self.own, self.closed
        if keep_version == part.version and any(each and each.version == part.version for each in (own, closed)):
            return True
        if own is None:
            return False
        if own.version == part.version:
            return digest.what == own.what
        return digest.what + digest.when in own.history

    def of_other_runs(self, part: Part) -> list[Marker]:
        """Return the markers of other slots that another run of this very version has written."""
        return [each for each in self.others if each.version == part.version and each.run != part.run]

    def written_elsewhere(self, part: Part) -> SampledRows:
        """Return the rows of this version that another run may have written under another task's number."""
        return SampledRows(each.sample for each in self.of_other_runs(part))

    def since(self, earlier: "Marked", part: Part, digest: RowsDigest) -> bool:
        """Return whether another run has written some of these rows since the earlier look."""
        known = {each.sample for each in earlier.of_other_runs(part)}
        own = digest.sample.encode()
        return any(in_common(own, each.sample) for each in self.of_other_runs(part) if each.sample not in known)

    def report(
        self,
        part: Part,
        digest: RowsDigest,
        keep_version: int | None,
        *,
        is_new: bool = False,
        doubt: "Doubt | None" = None,
    ) -> "Report":
        """Return what a task reports of its part; of a part that Kafka has, the rows that Kafka has."""
        own = self.own
        is_kept = keep_version == part.version
        there = own if own is not None and own.version == part.version and not doubt and not is_new else None
        what, when = (digest.what, digest.when) if there is None else (there.what, there.when)
        runs = {each.run for each in self._all() if each.version == part.version}
        is_again = bool(runs - {part.run})
        return Report(part, what, when, is_new, doubt, self.closed, self.newest, is_again, is_kept)

    def with_this(self, part: Part, rows: int, digest: RowsDigest) -> Marker:
        """Return the marker for a part that is written now."""
        before = () if self.own is None else self.own.history
        known = before[:MOST_REMEMBERED]
        return Marker(part.version, rows, digest.what, digest.when, part.run, known, digest.sample.encode())

    def for_another_target(self, part: Part, target: str) -> TransactionError | None:
        """Return the error for a version of which rows are in Kafka that went elsewhere, else None."""
        found = [each for each in self._all() if each.version == part.version and each.run != part.run]
        if all(target_of(each.what) == target for each in found):
            return None
        return TransactionError(
            f"Task {part.partition} of {part.version_name} writes to other topics, or another cluster, than an earlier "
            f"run of it did, so it writes none of its rows. {_OTHER_TARGET}"
            + (_COPIED if part.is_micro_batch else "")
            + _KEEP_OTHERS.format(part.version)
        )

    def refusal(self, part: Part, digest: RowsDigest, marker_topic: str) -> "Doubt":
        """Return the doubt of a task about rows that must not be written and that `has` does not find."""
        if self.is_misfit(part) and (self.own is None or self.own.version < part.version):
            return Doubt(0, f"Another task of {part.version_name} does not fit to what an earlier run has written.")
        who = f"Task {part.partition} of"
        sentence = _refusal(who, part, digest.rows, self.own, self.newest, marker_topic)
        if self.may_be_closed(part):
            sentence += f" If the same rows are divided into other tasks than then, {_DIVIDE_ALIKE}"
        return Doubt(1, sentence)


class Doubt(NamedTuple):
    """A sentence, for a task whose rows are neither known to be in Kafka nor known to be missing there.

    Of several tasks' doubts, one of the highest rank is told.
    """

    rank: int
    sentence: str


def divided_otherwise(part: Part) -> Doubt:
    """Return the doubt of a task with rows that another run has written in other tasks."""
    return Doubt(
        2,
        f"Task {part.partition} of {part.version_name} has rows that an earlier run has written in another task, so it "
        f"writes none: the same rows are divided into other tasks than then. So {_DIVIDE_ALIKE}"
        + _KEEP_ALIKE.format(part.version),
    )


class Report(NamedTuple):
    """What a task tells the driver of its part: the digest of its rows, and whether it has written them.

    There is a `doubt` if neither the task's own marker shows that the rows are in Kafka, nor those of others that they
    are not. `closed` is the marker of the last version of which all is there, and `newest` the newest version of any
    slot. `is_again` says that an earlier run has written some of this version, and `is_kept` that this is to stand.
    """

    part: Part
    what: str
    when: str
    is_new: bool = False
    doubt: Doubt | None = None
    closed: Marker | None = None
    newest: int = -1
    is_again: bool = False
    is_kept: bool = False


def _refusal(who: str, part: Part, rows: int, there: Marker | None, newest: int, marker_topic: str) -> str:
    how_to_write = _WRITE_MICRO_BATCH.format(marker_topic) if part.is_micro_batch else _WRITE.format(newest)
    if there is not None and there.version == part.version:
        found, how_to_keep = f"Kafka has {there.rows:,} others of it", _KEEP.format(part.version)
    else:
        found, how_to_keep = f"Kafka has others, up to number {newest}", ""
    return f"{who} {part.version_name} has {rows:,} rows, and {found}, so it writes none. {how_to_write}{how_to_keep}"


def refusal_of_all(part: Part, rows: int, closed: Marker, newest: int, marker_topic: str) -> str:
    """Return the sentence for the rows of a version that is closed, or behind a closed one, and has others."""
    return _refusal("As a whole,", part, rows, closed, newest, marker_topic)


_WRITE_MICRO_BATCH = (
    "If the checkpoint is an older copy, go on from the latest; or write all that came since the copy, some of it a "
    'second time, with .option("markerTopic", "{}-2") from now on.'
)
_WRITE = "If these are new rows, write them under another txnAppId, or with a txnVersion above {}."
_KEEP = (
    " If they are the same rows, which come out otherwise each time, keep those in Kafka with "
    '.option("keepVersion", "{}"); rows with a column identity need no such help.'
)
_DIVIDE_ALIKE = (
    "divide them as then, which needs as many cores, or what else decides on the tasks; for later versions put "
    'repartition(n, "key") with a fixed n before the write.'
)
_KEEP_ALIKE = (
    " If these are rows of their own, which only look like others, write what is missing with "
    '.option("keepVersion", "{}").'
)
_OTHER_TARGET = "Name the topics as then, and go on from there."
_COPIED = (
    " If this is a second query, with a copy of the checkpoint of the first, give it a markerTopic of its own from its "
    "first start on."
)
_KEEP_OTHERS = (
    " If only what is not there yet is to be written, and no row of that version to the new topics, say "
    '.option("keepVersion", "{}").'
)
