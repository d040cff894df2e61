"""Processes for handlers that need the processor.

Records go to a process in chunks, to share the cost of pickling and of waking. A second chunk is on its way while the
process works on the first. A chunk's records are of different lanes. A process that takes long over one record is asked
for its outcomes. It also gives back the jobs that it has not begun, so that others may have them. If a process dies,
the record that it worked on has failed; those that it did not report run again, unfailed.

Only bytes that this package itself wrote are unpickled, from the pipes of the pool. A process ends when its parent
ends, for whatever reason.
"""
