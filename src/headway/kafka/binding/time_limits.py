"""The time limits of waits for Kafka, in seconds, one for each kind of event."""

CALL_SLICE = 0.5
"""The longest single wait inside librdkafka, because Python cannot handle Ctrl-C during such a wait."""

RECORDS_AWAITED_FOR = 0.1
"""How long a reader waits for records before it checks again whether it should stop."""

BROKER_ANSWERS_WITHIN = 20.0
"""How long to wait for a running broker's answer about groups, permissions, or a topic with one partition.

Kafka may first have to choose a group's coordinator, which then loads the group's stored state before it answers. No
record is delayed by this wait.
"""

PARTITIONS_TOLD_WITHIN = 5.0
"""How long a send waits for the topic's number of partitions.

If there is no answer in time, the record is sent anyway, and the outcome of the send shows the problem.
"""

LOG_BOUNDS_TOLD_WITHIN = 30.0
"""How long to wait for the first and the last offset of a partition.

The leader of the partition answers, so the limit leaves time for an election.
"""

BROKER_RESTARTS_WITHIN = 60.0
"""How long the restart of a broker may take. Requests to the broker are repeated for this long."""

ROWS_STORED_WITHIN = 120.0
"""How long storing the rows of a Spark task may take.

The limit covers two restarts of a broker, because a task that fails has to start from the beginning.
"""

CREATED_TOPIC_KNOWN_WITHIN = 10.0
"""How long it may take until all brokers list a topic that Headway has created."""

MISSING_TOPIC_COMES_WITHIN = 5.0
"""How long to wait for a topic of the user, which may have just been created, before it counts as missing."""

TOPIC_CHANGED_WITHIN = 30.0
"""How long it may take until all brokers have created or deleted a topic."""

COMMIT_ANSWERED_WITHIN = 10.0
"""How long to wait for the answer to a commit, in a transaction or not, and to an output in a transaction.

After this time, the level counts as failed, and the commit or output is tried again.
"""

TRANSACTION_CALL_ANSWERED_WITHIN = 60.0
"""How long to wait for the answer to a call that begins or ends a transaction.

By default, brokers also abort a transaction that has been open for this long.
"""

OPEN_TRANSACTION_ENDS_WITHIN = 90.0
"""How long it may take until an abandoned transaction ends.

By default, brokers abort a transaction after a minute, but they check only at intervals.
"""

PERMISSIONS_ASKED_FOR_EVERY = 1.0
"""The interval of the checks whether a missing permission has been granted.

The interval is short, because a user may be waiting for the new permission to take effect.
"""

ONLINE_WITHIN = 0.5
"""How long a record waits for a partition whose leader was elected but is not ready to accept records yet."""
