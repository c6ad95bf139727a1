"""The clock of a federation by a queue of events, in another way than `killick.federated.event_clock`."""

import heapq
import itertools


def simulate(rounds, *, wait_free, aggregation=0.0):
    """When each round ends."""
    ends = [0.0] * len(rounds)
    missing = [len(each) for each in rounds]  # uploads
    model = [dict.fromkeys(each, number == 0) for number, each in enumerate(rounds)]
    busy = set()  # clients that still compute
    begun = set()
    order = itertools.count()
    queue = []

    def after(now, seconds, event, number, client=-1):
        heapq.heappush(queue, (now + seconds, next(order), event, number, client))

    def begin(now, client):
        """Begin the client's next round, if it can."""
        for number, ready in enumerate(model):
            if ready.get(client) and (number, client) not in begun and client not in busy:
                begun.add((number, client))
                busy.add(client)
                after(now, rounds[number][client].generic, "generic", number, client)

    for client in rounds[0] if rounds else ():
        begin(0.0, client)
    while queue:
        now, _, event, number, client = heapq.heappop(queue)
        times = rounds[number].get(client)
        if event == "aggregated":
            ends[number] = max(ends[number], now + max(t.down for t in rounds[number].values()))
            for other, own in (rounds[number + 1] if number + 1 < len(rounds) else {}).items():
                after(now, own.down, "download", number + 1, other)
            continue
        if event == "generic":
            after(now, times.personal, "personal", number, client)
        if event == ("generic" if wait_free else "personal"):
            after(now, times.up, "upload", number, client)
        if event == "personal":
            busy.discard(client)
            ends[number] = max(ends[number], now)
        elif event == "upload":
            missing[number] -= 1
            if missing[number] == 0:
                after(now, aggregation, "aggregated", number)
        elif event == "download":
            model[number][client] = True
        begin(now, client)
    return ends
