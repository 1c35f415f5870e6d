"""Work over ranks so that all end at about the same time: Karmarkar and Karp's largest differencing method.

Giving each piece to the lightest rank, longest first, is off by up to a third of a rank's load; differencing keeps
pieces of equal size apart until the end, and is usually off by less than one small piece.
"""

import heapq
from collections.abc import Sequence


def balance(costs: Sequence[int], parts: int) -> list[list[int]]:
    """Places of `costs` in `parts` lists whose sums are about equal, each in rising order."""
    # a state is a way to split some of the pieces: (sum, places) of each part, heaviest first. Its spread decides who
    # is merged next; the counter breaks ties alike on every rank
    heap: list[tuple[int, int, list[tuple[int, list[int]]]]] = []
    for place, cost in enumerate(costs):
        heap.append((-cost, place, [(cost, [place])] + [(0, [])] * (parts - 1)))
    if not heap:
        return [[] for _ in range(parts)]
    heapq.heapify(heap)
    number = len(costs)
    while len(heap) > 1:
        _, _, first = heapq.heappop(heap)
        _, _, second = heapq.heappop(heap)
        # the heaviest part of one goes with the lightest of the other
        merged = [(a + b, left + right) for (a, left), (b, right) in zip(first, reversed(second), strict=True)]
        merged.sort(key=lambda part: -part[0])
        heapq.heappush(heap, (merged[-1][0] - merged[0][0], number, merged))
        number += 1
    return [sorted(places) for _, places in heap[0][2]]
