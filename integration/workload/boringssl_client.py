"""Workload client on curl_cffi, a Python extension with curl and BoringSSL compiled in: `boringssl_client.py VERSION
PLAN`, VERSION `v1` or `v2` of HTTP. In and out: plan_calls.py, without request bodies in chunks. Without a plan it
says `ready` and waits, with the library in memory. Knows nothing of the agent.
"""

import json
import sys
import time

from curl_cffi import requests

import plan_calls

if len(sys.argv) < 3:
    print("ready", flush=True)
    time.sleep(1000)

version, plan = sys.argv[1], json.load(open(sys.argv[2]))


def connect():
    session = requests.Session(verify=False, http_version=version, default_headers=False, timeout=60)

    def run(call):
        body = b"q" * call["request_bytes"] if call["request_framing"] == "length" else None
        url = f"https://{plan['host']}:{plan['port']}{call['target']}"
        response = session.request(call["method"], url, data=body, allow_redirects=False)
        return response.status_code, len(response.content), response.headers.get("x-handler-ns")

    return run, session.close


plan_calls.make(plan, connect)
