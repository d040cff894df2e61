"""A move from three plain topics, as jobs-low, jobs and jobs-urgent, to one worker that knows their priority.

Before, programs read these topics, all in the group `jobs-workers`. Stop them, and start this one. The topics and the
group keep their names: with `group.per.level=false` one member of the group reads all levels, and goes on at the
offsets that the programs have committed. Whoever sends needs no change.

    headway worker moved --processes 2

The way back is the same: stop it with SIGTERM, and start the programs. If it was killed, they repeat what it had done
out of order, above the committed offsets: they do not read offset maps.
"""

import os

from headway import ConsumerRecord, worker

PREFIX = os.environ.get("JOBS", "jobs")
LOG = os.environ.get("JOBS_LOG", "jobs.log")


@worker(
    {f"{PREFIX}-low": 0, PREFIX: 1, f"{PREFIX}-urgent": 2},  # a topic at each level, by its own name
    group=f"{PREFIX}-workers",
    levels=3,
    max_concurrency=4,
    config={"group.per.level": False},
)
def do(record: ConsumerRecord) -> None:
    """Do a job; the urgent ones have most of the slots while there are any."""
    with open(LOG, "a", encoding="utf-8") as log:
        log.write(f"{record.level} {record.value.decode()}\n")
