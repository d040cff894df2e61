"""Runs handlers that need much CPU in a pool of processes.

A process gets jobs in chunks, because pickling a chunk and waking the process then costs little for each job. A second
chunk is sent while the process works on the first. If a job takes a long time, the process is asked to report the
outcomes that it has, and to give back the jobs that it has not begun, so that other processes can run them. If a
process dies, the job that it was running has failed. Its other unreported jobs run again, which does not count as a
retry.

Only bytes that this package has written into the pipes of the pool are unpickled. A process ends when its parent ends,
for whatever reason the parent ends.
"""
