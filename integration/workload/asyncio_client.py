"""Workload client on asyncio streams, pipelining: `asyncio_client.py [GATE] PLAN`. In: a plan
(integration/src/plan.rs). Out: one JSON line per call on stdout: what was sent and what came back. With GATE, each
connection makes `GATE.waiting` after its first answers and goes on when the file GATE exists. Knows nothing of the
agent.
"""

import asyncio
import json
import os
import ssl
import sys
import time

import plan_calls

plan = json.load(open(sys.argv[-1]))
gate = sys.argv[1] if len(sys.argv) > 2 else None
calls = list(plan["calls"])


def request(call):
    head = f"{call['method']} {call['target']} HTTP/1.1\r\nhost: {plan['host']}:{plan['port']}\r\n"
    body = b"q" * call["request_bytes"]
    if call["request_framing"] == "length":
        head += f"content-length: {len(body)}\r\n"
    elif call["request_framing"] == "chunked":
        head += "transfer-encoding: chunked\r\n"
        body = (b"%x\r\n%b\r\n" % (len(body), body) if body else b"") + b"0\r\n\r\n"
    return f"{head}\r\n".encode() + body


async def response(reader, method):
    line, *fields = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").rstrip("\r\n").split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (field.partition(":") for field in fields)}
    status, received = int(line.split(" ")[1]), 0
    if method == "HEAD" or status in (204, 304):
        pass
    elif headers.get("transfer-encoding", "").lower() == "chunked":
        while size := int((await reader.readline()).split(b";")[0], 16):
            received += size
            await reader.readexactly(size + 2)
        while (await reader.readline()).strip():
            pass
    elif "content-length" in headers:
        received = int(headers["content-length"])
        await reader.readexactly(received)
    else:
        received = len(await reader.read())
    return status, received, headers.get("x-handler-ns")


async def work(context):
    reader = writer = None
    while calls:
        batch = [calls.pop() for _ in range(min(plan["depth"], len(calls)))]
        if writer is None:
            address = plan["host"], plan["port"]
            reader, writer = await asyncio.open_connection(*address, ssl=context, limit=1 << 22)
        begun = time.monotonic_ns()
        writer.write(b"".join(map(request, batch)))
        for call in batch:
            plan_calls.report(call, begun, await response(reader, call["method"]))
        await writer.drain()
        if gate and not os.path.exists(gate):
            open(gate + ".waiting", "w").close()
            while not os.path.exists(gate):
                await asyncio.sleep(0.01)
        if reader.at_eof() or "/close/" in batch[-1]["target"]:
            writer.close()
            writer = None
    if writer is not None:
        writer.close()
        await writer.wait_closed()


async def main():
    context = ssl._create_unverified_context() if plan["tls"] else None
    await asyncio.gather(*(work(context) for _ in range(plan["concurrency"])))


asyncio.run(main())
