"""Processes for handlers that need much CPU.

A process gets jobs in chunks, which share the cost of pickling and of waking it. A second chunk is sent while the
process works on the first. A process that takes long over one job is asked to report its outcomes, and to give back the
jobs that it has not begun, so that other processes can run them. If a process dies, the job that it was running has
failed, and its other unreported jobs run again without a failure.

Only bytes that this package has written are unpickled, from the pipes of the pool. A process ends when its parent ends,
for whatever reason.
"""
