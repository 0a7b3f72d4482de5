"""Workload client on http.client: `client.py PLAN`. In: a plan (integration/src/plan.rs). Out: one JSON line per
call on stdout: what was sent and what came back. Knows nothing of the agent.
"""

import http.client
import json
import queue
import ssl
import sys
import threading
import time

plan = json.load(open(sys.argv[1]))
calls = queue.SimpleQueue()
for planned in plan["calls"]:
    calls.put(planned)


def run(call, connection):
    body, headers = None, {}
    if call["request_framing"] == "length":
        body = b"q" * call["request_bytes"]
    elif call["request_framing"] == "chunked":
        body = iter([b"q" * call["request_bytes"]] if call["request_bytes"] else [])
        headers["transfer-encoding"] = "chunked"
    connection.request(call["method"], call["target"], body, headers, encode_chunked=True)
    response = connection.getresponse()
    received = len(response.read())
    return response.status, received, response.headers.get("x-handler-ns")


def work():
    if plan["tls"]:
        context = ssl._create_unverified_context()
        connection = http.client.HTTPSConnection(plan["host"], plan["port"], timeout=60, context=context)
    else:
        connection = http.client.HTTPConnection(plan["host"], plan["port"], timeout=60)
    while True:
        try:
            call = calls.get_nowait()
        except queue.Empty:
            return connection.close()
        begun = time.monotonic_ns()
        status, received, handler = run(call, connection)
        line = json.dumps(
            {
                "id": call["id"],
                "status": status,
                "request_bytes": call["request_bytes"],
                "response_bytes": received,
                "handler_ns": int(handler) if handler else None,
                "started_ns": begun,
                "ended_ns": time.monotonic_ns(),
            }
        )
        sys.stdout.write(line + "\n")


threads = [threading.Thread(target=work) for _ in range(plan["concurrency"])]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
