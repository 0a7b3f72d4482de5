"""A service on asyncio that calls another one: `front_asyncio.py MODEL BACK_PORT LOG`.

Each request `GET /KIND/ID` makes some calls `GET /out/ID` to the port, each with an id drawn here, and is answered. LOG
gets a line `REQUEST CALL` once the answer to the call has come, `- CALL` for calls that no request makes, and `late
REQUEST CALL` for those after the answer. Prints `ready PORT`. Knows nothing of the agent; ids are in no trace header.
SIGTERM ends it when all its calls are over.

Models: `protocol`, a protocol of its own that makes a task for each request; `streams`, a task for each connection;
`aiohttp`, whose server does so too, with its client; `uvicorn`, with httpx. With `+uvloop` behind it, on that loop
(uvicorn then with httptools and the aiohttp client), with `+around` on it in a context around it.

Kinds: `sequence`, `gather`, `semaphore` (one for all requests), `nested` (tasks that make tasks), `to_thread`, `after`
(a task that goes on behind the answer), `queue` (a worker that was there before), `executor` (a thread that gets no
context).
"""

import asyncio
import contextvars
import http.client
import os
import random
import signal
import sys
import uuid

MODEL, _, LOOP = sys.argv[1].partition("+")
BACK, LOG = int(sys.argv[2]), sys.argv[3]

log = os.open(LOG, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
limit, begun, work = asyncio.Semaphore(2), asyncio.Event(), None
behind, client = set(), None


def note(*words):
    os.write(log, (" ".join(words) + "\n").encode())


def draw():
    return uuid.UUID(int=random.getrandbits(128)).hex


idle = []


async def call(*cause):
    """One call, on a connection of its own or on one that others have used."""
    out = draw()
    if client:
        await client(f"http://127.0.0.1:{BACK}/out/{out}")
        return note(*cause, out)
    reader, writer = idle.pop() if idle else await asyncio.open_connection("127.0.0.1", BACK)
    writer.write(f"GET /out/{out} HTTP/1.1\r\nhost: back\r\n\r\n".encode())
    await reader.readuntil(b"\r\n\r\n")
    await reader.readexactly(2)
    idle.append((reader, writer))
    note(*cause, out)


def call_blocking(request):
    out = draw()
    connection = http.client.HTTPConnection("127.0.0.1", BACK, timeout=60)
    connection.request("GET", "/out/" + out)
    connection.getresponse().read()
    connection.close()
    note(request, out)


async def limited(request):
    async with limit:
        await call(request)


async def nested(request, depth):
    if depth:
        await asyncio.sleep(0)
        return await asyncio.create_task(nested(request, depth - 1))
    await call(request)


async def later(request, answered):
    await answered
    await asyncio.sleep(random.random() * 0.01)
    await call("late", request)


async def serve(kind, request, answered):
    begun.set()
    if kind == "sequence":
        for _ in range(random.randint(1, 3)):
            await asyncio.sleep(random.random() * 0.002)
            await call(request)
    elif kind == "gather":
        await asyncio.gather(*[call(request) for _ in range(3)])
    elif kind == "semaphore":
        await asyncio.gather(*[limited(request) for _ in range(2)])
    elif kind == "nested":
        await asyncio.gather(*[nested(request, depth) for depth in range(3)])
    elif kind == "to_thread":
        await asyncio.to_thread(call_blocking, request)
    elif kind == "executor":
        await asyncio.get_running_loop().run_in_executor(None, call_blocking, request)
    elif kind == "after":
        task = asyncio.create_task(later(request, answered))
        behind.add(task)
        task.add_done_callback(behind.discard)
    elif kind == "queue":
        done = asyncio.get_running_loop().create_future()
        work.put_nowait((request, done))
        await done
    else:
        raise ValueError(kind)


async def worker():
    while True:
        request, done = await work.get()
        await call(request)
        done.set_result(None)


async def background(ending):
    """Calls that no request makes, from the first request on."""
    await begun.wait()
    while not ending.is_set():
        await asyncio.sleep(random.random() * 0.05)
        await call("-")


ANSWER = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"


class Requests(asyncio.Protocol):
    def connection_made(self, transport):
        self.transport, self.head = transport, b""

    def data_received(self, piece):
        self.head += piece
        if b"\r\n\r\n" in self.head:
            _, kind, request = self.head.split(b" ", 2)[1].decode().split("/")
            self.head = b""
            task = asyncio.get_running_loop().create_task(self.handle(kind, request))
            behind.add(task)
            task.add_done_callback(behind.discard)

    async def handle(self, kind, request):
        answered = asyncio.get_running_loop().create_future()
        await serve(kind, request, answered)
        self.transport.write(ANSWER)
        answered.set_result(None)


async def stream(reader, writer):
    while head := await reader.readline():
        while (await reader.readline()).strip():
            pass
        _, kind, request = head.split(b" ", 2)[1].decode().split("/")
        answered = asyncio.get_running_loop().create_future()
        await serve(kind, request, answered)
        writer.write(ANSWER)
        answered.set_result(None)
    writer.close()


async def application(scope, receive, send):
    assert scope["type"] == "http", scope
    _, kind, request = scope["path"].split("/")
    answered = asyncio.get_running_loop().create_future()
    await serve(kind, request, answered)
    head = [(b"content-length", b"2")]
    await send({"type": "http.response.start", "status": 200, "headers": head})
    await send({"type": "http.response.body", "body": b"ok"})
    answered.set_result(None)


def by_httpx():
    import httpx

    session = httpx.AsyncClient(timeout=60, trust_env=False)

    async def get(url):
        answer = await session.get(url)
        assert answer.status_code == 200

    return get


def by_aiohttp():
    import aiohttp

    session = aiohttp.ClientSession()

    async def get(url):
        async with session.get(url) as answer:
            assert answer.status == 200 and await answer.read() == b"ok"

    return get


async def answer(request):
    """A handler of aiohttp's server."""
    from aiohttp import web

    _, kind, name = request.path.split("/")
    answered = asyncio.get_running_loop().create_future()
    await serve(kind, name, answered)
    response = web.Response(text="ok")
    await response.prepare(request)
    await response.write_eof()
    answered.set_result(None)
    return response


async def start():
    """What ends serving."""
    global client
    loop = asyncio.get_running_loop()
    if MODEL == "aiohttp":
        from aiohttp import web

        client, app = by_aiohttp(), web.Application()
        app.router.add_get("/{kind}/{request}", answer)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0, backlog=1024).start()
        print("ready", runner.addresses[0][1], flush=True)
        return runner.cleanup
    if MODEL == "uvicorn":
        import uvicorn

        client = by_aiohttp() if LOOP else by_httpx()
        options = {"port": 0, "loop": "none", "lifespan": "off", "log_level": "error"}
        server = uvicorn.Server(uvicorn.Config(application, http="httptools" if LOOP else "h11", **options))
        server.install_signal_handlers = lambda: None
        server.capture_signals = __import__("contextlib").nullcontext
        running = asyncio.create_task(server.serve())
        while not server.started:
            await asyncio.sleep(0.01)
        print("ready", server.servers[0].sockets[0].getsockname()[1], flush=True)

        async def end():
            server.should_exit = True
            await running

        return end
    if MODEL == "protocol":
        server = await loop.create_server(Requests, "127.0.0.1", 0, backlog=1024)
    else:
        server = await asyncio.start_server(stream, "127.0.0.1", 0, backlog=1024)
    print("ready", server.sockets[0].getsockname()[1], flush=True)

    async def end():
        server.close()

    return end


async def main():
    global work
    work, ending = asyncio.Queue(), asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ending.set)
    worker_task = asyncio.create_task(worker())
    unasked = asyncio.create_task(background(ending))
    end = await start()
    await ending.wait()
    begun.set()
    await unasked
    while behind:
        await asyncio.wait(set(behind))
    worker_task.cancel()
    await end()


if LOOP:
    import uvloop

    run = contextvars.copy_context().run if LOOP == "around" else lambda function, *arguments: function(*arguments)
    run(uvloop.run, main())
else:
    asyncio.run(main())
