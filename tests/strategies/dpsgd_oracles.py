"""DPSGD as plain NumPy: a server and workers of known speeds, event by event."""

import heapq

import numpy as np


def with_a_server(x0, gradient, speeds, steps, *, period, pushes_per_update, eta, rate):
    """Workers 1, 2, ... of a server that only serves; ``gradient(worker, x)`` is stochastic, each drawn in order.

    No two events may fall on one moment. Gives the server's model, and for each push how many folds it was late.
    """
    v, version, late = np.array(x0, dtype=float), 0, []
    workers = range(1, len(speeds) + 1)
    u, given = ({w: v.copy() for w in workers} for _ in range(2))
    versions, taken = dict.fromkeys(workers, 0), dict.fromkeys(workers, 0)
    g = {w: gradient(w, u[w]) for w in workers}
    events = [(speeds[w - 1], w) for w in workers]
    heapq.heapify(events)
    gathered, working = {}, set(workers)
    while events:
        now, w = heapq.heappop(events)
        u[w] = u[w] - eta * g[w]
        taken[w] += 1
        if taken[w] % period and taken[w] < steps:
            go_on = [w]
        else:
            gathered[w] = u[w] - given[w]
            go_on = []
            if len(gathered) >= pushes_per_update or working <= set(gathered):
                for other, change in gathered.items():
                    late.append(version - versions[other])
                    v = v + rate * change
                version += 1
                for other in gathered:
                    u[other], given[other], versions[other] = v.copy(), v.copy(), version
                go_on, gathered = list(gathered), {}
                working -= {other for other in go_on if taken[other] == steps}
        for other in go_on:
            if taken[other] < steps:
                g[other] = gradient(other, u[other])
                heapq.heappush(events, (now + speeds[other - 1], other))
    return v, late


def hogwild(x0, gradient, times, steps, *, threads, period, eta):
    """One node's crew: ``gradient(member, x)``, ``times(member)`` the seconds of its next gradient.

    Members read when they begin and add when they are done; all wait for each other after ``period`` each.
    """
    x, begun, now, events = np.array(x0, dtype=float), 0, 0.0, []
    left = dict.fromkeys(range(threads), 0)

    def begin(member):
        nonlocal begun
        if left[member] and begun < steps:
            begun += 1
            left[member] -= 1
            g = gradient(member, x)
            heapq.heappush(events, (now + times(member), member, tuple(g)))

    while begun < steps:
        for member in left:
            left[member] = period
        for member in left:
            begin(member)
        while events:
            now, member, g = heapq.heappop(events)
            x = x - eta * np.array(g)
            begin(member)
    return x
