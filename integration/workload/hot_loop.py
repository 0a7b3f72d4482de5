"""An event loop with two routes, `/a` and `/b`, each with a hot function of its own: `hot_loop.py [gevent]`.

A request takes four turns of its function and waits a little after each, so that others go on in between: in a task of
asyncio, or in gevent's greenlet of its connection. Prints `ready PORT`. Knows nothing of the agent.
"""

import asyncio
import random
import sys

ROUNDS = 15_000


def burn_a():
    total = 0
    for nth in range(ROUNDS):
        total += nth * nth
    return total


def burn_b():
    total = 1
    for nth in range(ROUNDS):
        total ^= nth + total
    return total


BURN = {b"/a": burn_a, b"/b": burn_b}


class Requests(asyncio.Protocol):
    def connection_made(self, transport):
        self.transport, self.head = transport, b""

    def data_received(self, piece):
        self.head += piece
        if b"\r\n\r\n" in self.head:
            path = self.head.split(b" ", 2)[1]
            self.head = b""
            self.task = asyncio.get_running_loop().create_task(self.handle(BURN[path]))

    async def handle(self, burn):
        for _ in range(4):
            burn()
            await asyncio.sleep(random.random() * 0.004)
        self.transport.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")


def serve_greenlets():
    import gevent
    from gevent.server import StreamServer

    def serve(connection, _):
        head = b""
        while piece := connection.recv(4096):
            head += piece
            if b"\r\n\r\n" in head:
                burn = BURN[head.split(b" ", 2)[1]]
                head = b""
                for _ in range(4):
                    burn()
                    gevent.sleep(random.random() * 0.004)
                connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")

    server = StreamServer(("127.0.0.1", 0), serve)
    server.start()
    print("ready", server.server_port, flush=True)
    server.serve_forever()


async def main():
    server = await asyncio.get_running_loop().create_server(Requests, "127.0.0.1", 0)
    print("ready", server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if "gevent" in sys.argv:
    serve_greenlets()
else:
    asyncio.run(main())
