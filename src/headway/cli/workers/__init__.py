"""The processes of `headway worker`: a process for each member of a group, and a supervisor that keeps them running.

The supervisor starts each member as `python -m headway.cli.workers.member`, and is connected to it by a socket. The
supervisor sends the job and, later, the order to end. The member sends its progress. When one of the two processes dies
for any reason, the socket is closed, so the other process notices it.
"""
