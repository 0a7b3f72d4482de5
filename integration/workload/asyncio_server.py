"""Workload server, hand-made on asyncio streams: one thread, one event loop, many connections.

In: requests of the protocol in integration/src/shape.rs, pipelined or not. Out: answers of exactly that shape,
with the handling time in `x-handler-ns`. With TLS_CERTIFICATE and TLS_KEY over TLS, through memory BIOs. Prints `ready PORT`. Knows nothing of the agent.
"""

import asyncio
import os
import ssl
import time
import urllib.parse


async def read_request(reader):
    head = await reader.readuntil(b"\r\n\r\n")
    begun = time.monotonic_ns()
    line, *fields = head.decode("latin-1").rstrip("\r\n").split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (field.partition(":") for field in fields)}
    if headers.get("transfer-encoding", "").lower() == "chunked":
        while size := int((await reader.readline()).split(b";")[0], 16):
            await reader.readexactly(size + 2)
        while (await reader.readline()).strip():
            pass
    else:
        await reader.readexactly(int(headers.get("content-length", 0)))
    return begun, *line.split(" ")[:2], headers


async def answer(writer, begun, method, target):
    target = urllib.parse.urlsplit(target)
    _, _, _, status, framing, size = target.path.split("/")
    query = dict(urllib.parse.parse_qsl(target.query))
    status, size, pieces = int(status), int(size), int(query.get("p", 1))
    await asyncio.sleep(int(query.get("d", 0)) / 1e6)
    head = f"HTTP/1.1 {status} Status\r\n"
    if framing == "close":
        head += "connection: close\r\n"
    elif framing == "chunked":
        head += "transfer-encoding: chunked\r\n"
    elif status not in (204, 304):
        head += f"content-length: {size}\r\n"
    writer.write(f"{head}x-handler-ns: {time.monotonic_ns() - begun}\r\n\r\n".encode())
    if method != "HEAD" and status not in (204, 304):
        sent = 0
        for piece in range(1, pieces + 1):
            part = b"b" * (size * piece // pieces - sent)
            sent += len(part)
            if framing == "chunked" and part:
                part = b"%x\r\n%b\r\n" % (len(part), part)
            writer.write(part)
            await writer.drain()
            if piece < pieces:
                await asyncio.sleep(int(query.get("g", 0)) / 1e6)
        if framing == "chunked":
            writer.write(b"0\r\n\r\n")
    await writer.drain()
    return framing != "close"


async def serve(reader, writer):
    try:
        while True:
            begun, method, target, headers = await read_request(reader)
            keep = await answer(writer, begun, method, target)
            if not keep or headers.get("connection", "").lower() == "close":
                break
    except (asyncio.IncompleteReadError, ConnectionError):
        pass
    finally:
        writer.close()


async def main():
    context = None
    if "TLS_CERTIFICATE" in os.environ:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(os.environ["TLS_CERTIFICATE"], os.environ["TLS_KEY"])
    server = await asyncio.start_server(serve, "127.0.0.1", 0, limit=1 << 20, backlog=1024, ssl=context)
    print("ready", server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


asyncio.run(main())
