"""A thread per connection; each request says what its thread is to do, the answer what that took.

`GET /spend/ID/sleep.2000-spin.1000`: the tasks of `src/bin/waiting_server.rs`, in microseconds, as far as they are here.
"""

import http.server
import json
import mmap
import os
import select
import socket
import tempfile
import threading
import time


def clocks():
    """Wall, CPU, and waiting for a CPU, of this thread, ns."""
    with open("/proc/thread-self/schedstat") as file:
        delay = int(file.read().split()[1])
    return time.clock_gettime_ns(time.CLOCK_MONOTONIC), time.thread_time_ns(), delay


def later(seconds, act):
    def run():
        time.sleep(seconds)
        act()

    threading.Thread(target=run, daemon=True).start()


def spin(seconds):
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


def condition(seconds):
    event = threading.Event()
    later(seconds, event.set)
    event.wait()


def poll(seconds):
    reader, writer = os.pipe()
    poller = select.poll()
    poller.register(reader, select.POLLIN)
    poller.poll(seconds * 1000)
    os.close(reader)
    os.close(writer)


def network(seconds):
    ours, other = socket.socketpair()
    later(seconds, lambda: other.send(b"x"))
    ours.recv(1)
    ours.close()


def pipe(seconds):
    reader, writer = os.pipe()
    later(seconds, lambda: os.write(writer, b"x"))
    os.read(reader, 1)
    os.close(reader)


def child(seconds):
    pid = os.posix_spawn("/bin/sleep", ["sleep", str(seconds)], {})
    os.waitpid(pid, 0)


def sync(_):
    with tempfile.TemporaryFile(dir=".") as file:
        file.write(b"x" * 65536)
        file.flush()
        os.fsync(file.fileno())


def touch(seconds):
    """As many pages of new memory as microseconds were said."""
    pages = round(seconds * 1e6)
    with mmap.mmap(-1, pages * 4096, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        for page in range(pages):
            memory[page * 4096] = 1


TASKS = {
    "spin": spin, "sleep": time.sleep, "condition": condition, "poll": poll, "network": network, "pipe": pipe,
    "child": child, "sync": sync, "touch": touch,
}


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        begun = clocks()
        tasks = []
        for task in self.path.rsplit("/", 1)[1].split("-"):
            name, microseconds = task.split(".")
            before = clocks()
            TASKS[name](int(microseconds) / 1e6)
            tasks.append([name, *(after - at for after, at in zip(clocks(), before))])
        whole = [after - at for after, at in zip(clocks(), begun)]
        body = json.dumps({"whole": whole, "tasks": tasks}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True


server = Server(("127.0.0.1", 0), Handler)
print(f"ready {server.server_port}", flush=True)
server.serve_forever()
