"""The time limits of waits for Kafka, in seconds, one for each kind of event."""

CALL_SLICE = 0.5
"""The longest single wait inside librdkafka, because Python cannot handle Ctrl-C during such a wait."""

RECORDS_AWAITED_FOR = 0.1
"""The longest single wait for records of a reader that also has to check whether it should stop."""

BROKER_ANSWERS_WITHIN = 20.0
"""The time for one answer of a running broker about groups, permissions, or a topic with one partition.

Kafka may first have to choose a group's coordinator, which then loads the group's stored state before it answers. No
record has to wait for these answers.
"""

PARTITIONS_TOLD_WITHIN = 5.0
"""The time for a topic's number of partitions, which is requested before a send.

If there is no answer, the send itself shows the problem.
"""

LOG_BOUNDS_TOLD_WITHIN = 30.0
"""The time for the first and the last offset of a partition. Its leader answers, so this includes an election."""

BROKER_RESTARTS_WITHIN = 60.0
"""The time in which a broker restarts. Requests to it are repeated for this long."""

ROWS_STORED_WITHIN = 120.0
"""The time in which the rows of a Spark task must be stored.

It covers two restarts of a broker, because a task that fails has to start from the beginning.
"""

CREATED_TOPIC_KNOWN_WITHIN = 10.0
"""The time after which all brokers know a topic that Headway has just created."""

MISSING_TOPIC_COMES_WITHIN = 5.0
"""The time to wait for a topic of the user, which may have just been created. Afterwards it counts as missing."""

TOPIC_CHANGED_WITHIN = 30.0
"""The time in which all brokers create or delete a topic."""

COMMIT_ANSWERED_WITHIN = 10.0
"""The time for a commit, whether plain or in a transaction, and for an output in a transaction.

After this time, the level counts as failed, and tries again.
"""

TRANSACTION_CALL_ANSWERED_WITHIN = 60.0
"""The time for a call that begins or ends a transaction.

This is also the default time for which brokers keep a transaction open.
"""

OPEN_TRANSACTION_ENDS_WITHIN = 90.0
"""The time in which an abandoned transaction ends.

By default, brokers abort a transaction after a minute, but they check only at intervals.
"""

RIGHTS_ASKED_FOR_EVERY = 1.0
"""The number of seconds between checks that look whether a missing permission was granted.

It is short, because a user may be waiting for the effect of the new permission.
"""

ONLINE_WITHIN = 0.5
"""The longest wait of a record for a partition whose leader is known but is not ready to accept records yet."""
