"""The shortest time that a list scheduler needs: whenever a slot is free it takes the oldest record that may run."""

from collections import defaultdict
from collections.abc import Hashable, Iterable
from heapq import heapify, heappop, heappush


def shortest_makespan(work: Iterable[tuple[Hashable, float]], slots: int) -> float:
    """Return the makespan of (lane, seconds) in the order of arrival. Of each lane one record runs at a time, in order.

    >>> shortest_makespan([("a", 2.0), ("a", 2.0), ("b", 1.0), ("b", 1.0)], slots=2)
    4.0
    >>> shortest_makespan([(i, 1.0) for i in range(6)], slots=4)
    2.0
    """
    lanes: dict[Hashable, list[tuple[int, float]]] = defaultdict(list)
    for number, (lane, seconds) in enumerate(work):
        lanes[lane].append((number, seconds))
    for waiting in lanes.values():
        waiting.reverse()
    ready = [(waiting[-1][0], lane) for lane, waiting in lanes.items()]
    ready.sort(key=lambda entry: entry[0])
    heads = [(number, index) for index, (number, _) in enumerate(ready)]
    heapify(heads)
    names = [lane for _, lane in ready]
    running: list[tuple[float, int]] = []
    now = 0.0
    while heads or running:
        while heads and len(running) < slots:
            _, index = heappop(heads)
            heappush(running, (now + lanes[names[index]].pop()[1], index))
        now, index = heappop(running)
        if waiting := lanes[names[index]]:
            heappush(heads, (waiting[-1][0], index))
    return now
