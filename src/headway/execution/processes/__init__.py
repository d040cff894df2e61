"""Runs CPU-bound handlers in a pool of processes.

A process gets jobs in chunks, so that the cost of pickling and of waking the process is shared by many jobs. The pool
sends the next chunk while the process works on the current one. If a job takes a long time, the pool requests the
outcomes that the process already has, and the jobs that it has not begun, so that other processes can run these jobs.
If a process dies, the job that was running counts as failed. All other jobs whose outcomes the process has not reported
run again, and this does not count as a retry.

For security, the package unpickles only bytes that it has written into the pipes of the pool itself. When the parent
process ends, for whatever reason, its child processes end too.
"""
