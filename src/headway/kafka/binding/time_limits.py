"""Time limits for waiting for Kafka, in seconds: one for each kind of event."""

CALL_SLICE = 0.5
"""The longest single wait inside librdkafka, because Ctrl-C is not noticed there."""

RECORDS_AWAITED_FOR = 0.1
"""The longest wait for records by a reader that also checks when to stop, and whether records still arrive."""

BROKER_ANSWERS_WITHIN = 20.0
"""A single answer of a running broker about groups, rights, or a topic of one partition, for which no record waits.

Kafka may have to choose a group's coordinator first, which then reads the group's stored state before it answers.
"""

PARTITIONS_TOLD_WITHIN = 5.0
"""The number of partitions of a topic, asked before a send. Without an answer, the send itself shows what is wrong."""

LOG_BOUNDS_TOLD_WITHIN = 30.0
"""The first and the last offset of a partition. Its leader answers, so this includes an election."""

BROKER_RESTARTS_WITHIN = 60.0
"""The restart of a broker, during which requests to it are repeated."""

ROWS_STORED_WITHIN = 120.0
"""The storage of a Spark task's rows. It covers two restarts of a broker, since a failed task starts all over."""

CREATED_TOPIC_KNOWN_WITHIN = 10.0
"""A topic of Headway that was just created: the brokers learn of it one after the other."""

MISSING_TOPIC_COMES_WITHIN = 5.0
"""A topic of the user, which may have just been created. After this time it counts as missing."""

TOPIC_CHANGED_WITHIN = 30.0
"""The creation or deletion of topics by all brokers."""

COMMIT_ANSWERED_WITHIN = 10.0
"""A commit, plain or in a transaction, or an output in one. After this time the level has failed, and retries."""

TRANSACTION_CALL_ANSWERED_WITHIN = 60.0
"""A call that begins or ends a transaction. By default, brokers also wait this long for a transaction to end."""

OPEN_TRANSACTION_ENDS_WITHIN = 90.0
"""An abandoned transaction. By default brokers abort it after a minute, and they check for it at intervals."""

RIGHTS_ASKED_FOR_EVERY = 1.0
"""The pause between checks whether a missing right was granted, short enough for somebody who watches the result."""

ONLINE_WITHIN = 0.5
"""The longest wait of records for a partition whose leader is known but does not answer for it yet."""
