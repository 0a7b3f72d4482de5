"""The calls of a plan (integration/src/plan.rs), by threads, each with a connection of its own: what is common to
clients in Python. In: a plan, and what makes a connection. Out: one JSON line per call on stdout: what was sent and
what came back. Knows nothing of the agent.
"""

import json
import queue
import sys
import threading
import time


def report(call, begun, outcome):
    """`call`, begun at `begun`, has just ended with `outcome`: status, bytes received, handler's time or None."""
    status, received, handler = outcome
    line = {
        "id": call["id"],
        "status": status,
        "request_bytes": call["request_bytes"],
        "response_bytes": received,
        "handler_ns": int(handler) if handler else None,
        "started_ns": begun,
        "ended_ns": time.monotonic_ns(),
    }
    sys.stdout.write(json.dumps(line) + "\n")


def make(plan, connect):
    """`connect()` is a pair: what makes a call and returns its outcome, as report() takes it, and what closes."""
    calls = queue.SimpleQueue()
    for planned in plan["calls"]:
        calls.put(planned)

    def work():
        run, close = connect()
        while True:
            try:
                call = calls.get_nowait()
            except queue.Empty:
                return close()
            begun = time.monotonic_ns()
            report(call, begun, run(call))

    threads = [threading.Thread(target=work) for _ in range(plan["concurrency"])]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
