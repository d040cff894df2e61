"""`headway worker` at work: one process for each member of a group, and one that keeps them alive.

The supervisor starts each member as `python -m headway.cli.workers.member` and talks with it over a socket: it says
what to run and when to end, the member says how far it is. The socket closes when either dies, however it went.
"""
