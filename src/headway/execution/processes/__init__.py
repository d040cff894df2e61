"""Handlers that need the processor, in processes of their own.

Records go to a process in chunks, so that the cost of pickling and of waking is shared, and a second chunk is on its
way while it works on the first. A chunk's records are of different lanes. A process that is long at one record is asked
for what it has done, and to give back what it has not begun, so that others may have it. Where a process dies, the
record that it was at has failed; those that it did not report run again, unfailed.

Only what this package itself wrote is unpickled, from the pipes of the pool. A process ends when the one that started
it does, however that ended.
"""
