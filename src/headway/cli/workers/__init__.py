"""The processes of `headway worker`: one for each member of a group, and a supervisor that keeps them alive.

The supervisor starts each member as `python -m headway.cli.workers.member` and talks to it over a socket. It sends the
job, and later the order to end; the member sends its progress. The socket closes when either process dies, for any
reason, so each notices the death of the other.
"""
