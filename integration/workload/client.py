"""Workload client on http.client: `client.py PLAN`. In and out: plan_calls.py. Knows nothing of the agent."""

import http.client
import json
import ssl
import sys

import plan_calls

plan = json.load(open(sys.argv[1]))


def connect():
    if plan["tls"]:
        context = ssl._create_unverified_context()
        connection = http.client.HTTPSConnection(plan["host"], plan["port"], timeout=60, context=context)
    else:
        connection = http.client.HTTPConnection(plan["host"], plan["port"], timeout=60)

    def run(call):
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

    return run, connection.close


plan_calls.make(plan, connect)
