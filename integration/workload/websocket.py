"""Workload WebSockets on the package `websockets`: `websocket.py serve` and `websocket.py call PLAN`.

A client asks for `/e/ID/101/WHO/CODE/N`: it sends its messages and `done`, gets N messages, then WHO closes with CODE.
With TLS_CERTIFICATE and TLS_KEY, or TLS_AUTHORITY at the client, over TLS. The server prints `ready PORT`; the client one JSON line per socket. Knows nothing of the agent.
"""

import asyncio
import json
import os
import ssl
import sys

import websockets.asyncio.client
import websockets.asyncio.server
from websockets.exceptions import ConnectionClosed


def identity():
    if "TLS_CERTIFICATE" not in os.environ:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(os.environ["TLS_CERTIFICATE"], os.environ["TLS_KEY"])
    return context


def trust():
    if "TLS_AUTHORITY" not in os.environ:
        return None
    return ssl.create_default_context(cafile=os.environ["TLS_AUTHORITY"])


async def serve():
    async def handle(socket):
        _, _, _, _, who, code, count = socket.request.path.split("/")
        async for message in socket:
            if message == "done":
                break
        for nth in range(int(count)):
            await socket.send(bytes(100 * nth))
        if who == "server":
            await socket.close(int(code))
        else:
            await socket.wait_closed()

    serving = websockets.asyncio.server.serve(
        handle, "127.0.0.1", 0, ssl=identity(), compression=None, ping_interval=0.05
    )
    async with serving as server:
        print("ready", server.sockets[0].getsockname()[1], flush=True)
        await asyncio.Future()


async def run(plan, call, context):
    who, code, count = call["closes"], call["code"], call["responses"]
    uri = f"{'wss' if context else 'ws'}://{plan['host']}:{plan['port']}/e/{call['id']}/101/{who}/{code}/{count}"
    done = {"id": call["id"], "client": [0, 0], "server": [0, 0]}

    def note(side, message):
        done[side][0] += 1
        done[side][1] += len(message)

    async with websockets.asyncio.client.connect(uri, ssl=context, compression=None, ping_interval=0.03) as socket:
        for size in call["requests"]:
            await socket.send("x" * size)
            note("client", "x" * size)
        await socket.send("done")
        note("client", "done")
        for _ in range(count):
            note("server", await socket.recv())
        if who == "client":
            await asyncio.sleep(call["lasts_ms"] / 1e3)
            await socket.close(code)
        else:
            try:
                await socket.recv()
            except ConnectionClosed:
                pass
        await socket.wait_closed()
    done["code"] = socket.close_code
    print(json.dumps(done), flush=True)


async def call():
    with open(sys.argv[2], encoding="utf-8") as file:
        plan = json.load(file)
    context = trust()
    await asyncio.gather(*(run(plan, call, context) for call in plan["calls"]))


asyncio.run(serve() if sys.argv[1] == "serve" else call())
