"""Workload server on grpcio: `grpc_server.py LOG [CERTIFICATE KEY]`. The protocol is that of multiplex/grpc.go.

Prints `ready PORT`; one JSON line per call in LOG. Knows nothing of the agent.
"""

import json
import sys
import threading
import time
from concurrent import futures

import grpc


class Shape:
    def __init__(self, metadata):
        values = dict(metadata)
        responses, size, code, delay, hold = values["shape"].split("/")
        self.id = values["traceparent"].split("-")[1]
        self.responses, self.message, self.code = int(responses), bytes(int(size)), int(code)
        self.delay, self.hold = int(delay) / 1e6, hold == "1"


class Handlers(grpc.GenericRpcHandler):
    def __init__(self, log):
        self.log, self.lock = log, threading.Lock()

    def service(self, details):
        kind = details.method.removeprefix("/test.Shape/")
        if kind not in ("Unary", "Collect", "Expand", "Chat"):
            return None
        return grpc.stream_stream_rpc_method_handler(lambda requests, context: self.handle(kind, requests, context))

    def handle(self, kind, requests, context):
        begun = time.monotonic_ns()
        shape = Shape(context.invocation_metadata())
        ended = threading.Event()
        context.add_callback(ended.set)
        done = {"id": shape.id, "received": 0, "sent": 0}
        try:
            for _ in requests:
                done["received"] += 1
                if kind == "Chat":
                    done["sent"] += 1
                    yield shape.message
                elif kind in ("Unary", "Expand"):
                    break
            time.sleep(shape.delay)
            while kind == "Expand" and done["sent"] < shape.responses:
                done["sent"] += 1
                yield shape.message
            if shape.hold:
                ended.wait()
                return
            if shape.code:
                # A client may lose messages that a failure follows closely; one that does ends its side when it has them.
                if kind == "Expand":
                    for _ in requests:
                        pass
                context.set_code(list(grpc.StatusCode)[shape.code])
                context.set_details("as asked: 100% \u00fc")
            elif kind in ("Unary", "Collect"):
                done["sent"] += 1
                yield shape.message
        except Exception:  # the client is gone
            if not shape.hold:
                raise
        finally:
            done["handler_ns"] = time.monotonic_ns() - begun
            with self.lock:
                self.log.write(json.dumps(done) + "\n")
                self.log.flush()


def main():
    log = open(sys.argv[1], "w", encoding="utf-8")
    options = [("grpc.so_reuseport", 0), ("grpc.max_concurrent_streams", 4096)]
    server = grpc.server(futures.ThreadPoolExecutor(128), handlers=[Handlers(log)], options=options)
    if len(sys.argv) > 2:
        certificate, key = (open(name, "rb").read() for name in sys.argv[2:4])
        port = server.add_secure_port("127.0.0.1:0", grpc.ssl_server_credentials([(key, certificate)]))
    else:
        port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    print("ready", port, flush=True)
    server.wait_for_termination()


main()
