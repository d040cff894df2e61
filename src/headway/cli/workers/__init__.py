"""`headway worker` at work: one process for each member of a group, and one that keeps them alive.

The supervisor starts each member as `python -m headway.cli.workers.member` and talks with it over a socket. The
supervisor says what to run and when to end, the member reports its progress. The socket closes when either dies, for
any reason.
"""
