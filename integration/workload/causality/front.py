"""A service that calls another one: `front.py MODEL BACK_PORT LOG [CALLS_AT_MOST]`.

Each request `GET /KIND/ID` makes some calls `GET /out/ID` to the port, each with an id drawn here, and is answered.
LOG gets a line `REQUEST CALL` once the answer to the call has come; `- CALL` for calls that no request makes, and
`late REQUEST CALL` for those that a request makes after its own answer. Prints `ready PORT`. Knows nothing of the
agent; ids are in no trace header. SIGTERM ends `pool` when its requests and calls are over, the others at once.

Models, by who runs the code of a request:
  threading   a thread for each connection
  pool        four threads that accept, each with one connection at a time
  prefork     four processes that accept, each with one connection at a time
  handover    the thread that reads a request hands it to another, which calls and answers
  continued   a pool of four threads; `/sync/…` stays on its reader, `/async/…` goes on with any of them
  asyncio     one thread, an event loop; calls one by one, or all at once
"""

import http.server
import os
import queue
import random
import select
import signal
import socket
import socketserver
import sys
import threading
import time
import uuid

import caller

MODEL, BACK, LOG = sys.argv[1], int(sys.argv[2]), sys.argv[3]
MOST = int(sys.argv[4]) if len(sys.argv) > 4 else 3

log = os.open(LOG, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
begun, ending = threading.Event(), threading.Event()


def note(*words):
    os.write(log, (" ".join(words) + "\n").encode())


def call(*cause):
    note(*cause, caller.call(BACK))


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    open = 0
    changed = threading.Condition()

    def do_GET(self):
        begun.set()
        request = self.path.split("/")[2]
        self.count(1)
        self.handle_request(request)
        if random.random() < 0.1:
            call("late", request)
        self.count(-1)

    @classmethod
    def count(cls, n):
        with cls.changed:
            Handler.open += n
            cls.changed.notify()

    @classmethod
    def settle(cls):
        with cls.changed:
            cls.changed.wait_for(lambda: Handler.open == 0)

    def handle_request(self, request):
        for _ in range(random.randint(0, MOST)):
            if random.random() < 0.3:
                time.sleep(random.random() * 0.003)
            call(request)
        self.answer()

    def answer(self):
        self.send_response(200)
        self.send_header("content-length", "2")
        self.end_headers()
        self.wfile.write(b"ok")

    def log_message(self, *_):
        pass


class HandedOver(Handler):
    """The reader waits until another thread has called and answered."""

    jobs = queue.Queue()

    def do_GET(self):
        begun.set()
        done = threading.Event()
        self.jobs.put((self, self.path.split("/")[2], done))
        done.wait()

    @classmethod
    def work(cls):
        while True:
            handler, request, done = cls.jobs.get()
            handler.handle_request(request)
            done.set()


def background():
    """Calls that no request makes, from the first request on."""
    begun.wait()
    while not ending.is_set():
        time.sleep(random.random() * 0.05)
        call("-")


def listen():
    listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
    return listener


def ready(port):
    print("ready", port, flush=True)


def accept_for_ever(listener):
    while True:
        connection, peer = listener.accept()
        Handler(connection, peer, None)
        connection.close()


class Threading(socketserver.ThreadingMixIn, http.server.HTTPServer):
    daemon_threads = True
    request_queue_size = 1024


def serve_continued():
    """A selector finds connections that can be read; who reads a request goes on with it, or leaves it to the pool."""
    listener, tasks = listen(), queue.SimpleQueue()
    poll = select.epoll()
    connections = {}

    def read(connection):
        head = b""
        while b"\r\n\r\n" not in head:
            piece = connection.recv(4096)
            if not piece:
                connection.close()
                return
            head += piece
        _, kind, request = head.split(b" ", 2)[1].decode().split("/")
        if kind == "sync":
            serve(connection, request)
        else:
            tasks.put((serve, connection, request))

    def serve(connection, request):
        for _ in range(random.randint(0, MOST)):
            call(request)
        connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")
        poll.modify(connection.fileno(), select.EPOLLIN | select.EPOLLONESHOT)

    def work():
        while True:
            task, *arguments = tasks.get()
            task(*arguments)

    for _ in range(4):
        threading.Thread(target=work, daemon=True).start()
    poll.register(listener.fileno(), select.EPOLLIN)
    ready(listener.getsockname()[1])
    while True:
        for descriptor, _ in poll.poll():
            if descriptor == listener.fileno():
                connection, _ = listener.accept()
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                connections[connection.fileno()] = connection
                poll.register(connection.fileno(), select.EPOLLIN | select.EPOLLONESHOT)
            else:
                tasks.put((read, connections[descriptor]))


def serve_asyncio():
    import asyncio

    async def call_on(request):
        out = uuid.UUID(int=random.getrandbits(128)).hex
        reader, writer = await asyncio.open_connection("127.0.0.1", BACK)
        writer.write(f"GET /out/{out} HTTP/1.1\r\nhost: back\r\nconnection: close\r\n\r\n".encode())
        await reader.read()
        writer.close()
        note(request, out)

    async def handle(reader, writer):
        while head := await reader.readline():
            while (await reader.readline()).strip():
                pass
            request = head.split(b" ")[1].decode().split("/")[2]
            calls = [call_on(request) for _ in range(random.randint(0, MOST))]
            if random.random() < 0.5:
                await asyncio.gather(*calls)
            else:
                for one in calls:
                    await one
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")
            await writer.drain()
        writer.close()

    async def main():
        server = await asyncio.start_server(handle, "127.0.0.1", 0, backlog=1024)
        ready(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    asyncio.run(main())


def main():
    if MODEL == "asyncio":
        return serve_asyncio()
    if MODEL == "continued":
        return serve_continued()
    if MODEL in ("threading", "handover"):
        handler = Handler if MODEL == "threading" else HandedOver
        server = Threading(("127.0.0.1", 0), handler)
        if MODEL == "handover":
            for _ in range(8):
                threading.Thread(target=HandedOver.work, daemon=True).start()
        threading.Thread(target=background, daemon=True).start()
        ready(server.server_port)
        return server.serve_forever()
    listener = listen()
    if MODEL == "prefork":
        for _ in range(3):
            if os.fork() == 0:
                random.seed()
                break
        else:
            ready(listener.getsockname()[1])
        return accept_for_ever(listener)
    assert MODEL == "pool", MODEL
    signal.signal(signal.SIGTERM, lambda *_: ending.set())
    for _ in range(4):
        threading.Thread(target=accept_for_ever, args=(listener,), daemon=True).start()
    ready(listener.getsockname()[1])
    background()
    Handler.settle()


main()
