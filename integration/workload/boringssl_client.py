"""Workload client on curl_cffi, a Python extension with curl and BoringSSL compiled in: `boringssl_client.py VERSION
PLAN`, VERSION `v1` or `v2` of HTTP. In: a plan (integration/src/plan.rs), of requests without bodies in chunks. Out:
one JSON line per call on stdout. Without a plan it says `ready` and waits, with the library in memory. Knows nothing
of the agent.
"""

import json
import queue
import sys
import threading
import time

from curl_cffi import requests

if len(sys.argv) < 3:
    print("ready", flush=True)
    time.sleep(1000)

version, plan = sys.argv[1], json.load(open(sys.argv[2]))
calls = queue.SimpleQueue()
for planned in plan["calls"]:
    calls.put(planned)


def work():
    session = requests.Session(verify=False, http_version=version, default_headers=False, timeout=60)
    while True:
        try:
            call = calls.get_nowait()
        except queue.Empty:
            return session.close()
        body = b"q" * call["request_bytes"] if call["request_framing"] == "length" else None
        url = f"https://{plan['host']}:{plan['port']}{call['target']}"
        begun = time.monotonic_ns()
        response = session.request(call["method"], url, data=body, allow_redirects=False)
        line = json.dumps(
            {
                "id": call["id"],
                "status": response.status_code,
                "request_bytes": call["request_bytes"],
                "response_bytes": len(response.content),
                "handler_ns": None,
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
