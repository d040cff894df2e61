"""The time limits of waits for Kafka, in seconds: one for each kind of thing that is waited for."""

CALL_SLICE = 0.5
"""The longest wait inside librdkafka, where Ctrl-C is not seen."""

RECORDS_AWAITED_FOR = 0.1
"""The longest wait for records of a reader that also has to see when to stop, and when nothing comes any more."""

BROKER_ANSWERS_WITHIN = 20.0
"""One answer of a broker that is up, which nothing else waits for: about groups, rights, or a topic of one partition.

A group's coordinator may have to be chosen for it, and then reads what is stored before it answers.
"""

PARTITIONS_TOLD_WITHIN = 5.0
"""The number of a topic's partitions, before a record is sent there; without an answer the send shows what is wrong."""

LOG_BOUNDS_TOLD_WITHIN = 30.0
"""The offsets at which a partition begins and ends: of its leader, so an election is waited for."""

BROKER_RESTARTS_WITHIN = 60.0
"""A broker that restarts: what is asked of it meanwhile is asked again, and what it is to send is waited for."""

ROWS_STORED_WITHIN = 120.0
"""Rows of a task of Spark's, through two restarts of a broker: a task that fails begins with its first row again."""

CREATED_TOPIC_KNOWN_WITHIN = 10.0
"""A topic of Headway's own that was just created: brokers hear of it one after the other."""

MISSING_TOPIC_COMES_WITHIN = 5.0
"""A topic of the user's: it may have been created a moment ago. After that it counts as missing, and somebody waits."""

TOPIC_CHANGED_WITHIN = 30.0
"""The creation or deletion of topics by all brokers."""

COMMIT_ANSWERED_WITHIN = 10.0
"""A commit, plain or in a transaction, and an output in it: after that the level counts as failed, and tries again."""

TRANSACTION_CALL_ANSWERED_WITHIN = 60.0
"""A call that begins or ends a transaction: brokers, too, wait so long by default for a transaction to end."""

OPEN_TRANSACTION_ENDS_WITHIN = 90.0
"""A transaction that nobody will end: brokers end it after a minute by default, and look for such ones now and then."""

RIGHTS_ASKED_FOR_EVERY = 1.0
"""The pause between questions whether a lost right is granted again: somebody grants it, and looks whether all is well.
"""

ONLINE_WITHIN = 0.5
"""The seconds for which records wait for a partition whose leader is known, and does not answer for it yet."""
