"""A service on gunicorn that calls another one, as its application and as its configuration.

`BACK` is the port that it calls, `LOG` its log. Each request `GET /KIND/ID` makes some calls `GET /out/ID`, each with an
id drawn here, and is answered. KIND: `in` calls itself, `copied` in a copy of its context, `spawned` has each call made
by a thread that it starts and waits for. LOG gets a line `REQUEST CALL` once the answer to the call has come, and
`- CALL` for calls of a thread that serves nothing. Prints `ready PORT`. Knows nothing of the agent; ids are in no trace
header.
"""

import contextvars
import os
import random
import threading
import time

bind = "127.0.0.1:0"
loglevel = "error"
keepalive = 60
log = os.open(os.environ["LOG"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
first = threading.Semaphore()
# As frameworks have, for what belongs to a request.
served = contextvars.ContextVar("served")


def when_ready(server):
    print("ready", server.LISTENERS[0].sock.getsockname()[1], flush=True)


def call(cause):
    # Not before a worker runs: it may have replaced threads by greenlets.
    import caller

    os.write(log, f"{cause} {caller.call(int(os.environ['BACK']))}\n".encode())


def background():
    while True:
        time.sleep(random.random() * 0.05)
        call("-")


def one_call(kind, request):
    if kind == "copied":
        contextvars.copy_context().run(call, request)
    elif kind == "spawned":
        thread = threading.Thread(target=call, args=(request,))
        thread.start()
        thread.join()
    else:
        call(request)


def app(environ, start_response):
    # A worker's own: threads do not survive a fork.
    if first.acquire(blocking=False):
        threading.Thread(target=background, daemon=True).start()
    kind, request = environ["PATH_INFO"].split("/")[1:3]
    served.set(request)
    for _ in range(random.randint(0, 3)):
        if random.random() < 0.3:
            time.sleep(random.random() * 0.003)
        one_call(kind, request)
    start_response("200 OK", [("content-length", "2")])
    return [b"ok"]
