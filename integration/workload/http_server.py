"""Workload server on http.server: `http_server.py threading|forking`.

In: requests of the protocol in integration/src/shape.rs. Out: answers of exactly that shape, with the handling
time in `x-handler-ns`. With TLS_CERTIFICATE and TLS_KEY over TLS. Prints `ready PORT`. Knows nothing of the agent.
"""

import http.server
import os
import socketserver
import ssl
import sys
import time
import urllib.parse


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def read_body(self):
        if self.headers.get("transfer-encoding", "").lower() == "chunked":
            while size := int(self.rfile.readline().split(b";")[0], 16):
                self.rfile.read(size + 2)
            while self.rfile.readline().strip():
                pass
        elif length := int(self.headers.get("content-length", 0)):
            self.rfile.read(length)

    def answer(self):
        begun = time.monotonic_ns()
        target = urllib.parse.urlsplit(self.path)
        _, _, _, status, framing, size = target.path.split("/")
        query = dict(urllib.parse.parse_qsl(target.query))
        status, size, pieces = int(status), int(size), int(query.get("p", 1))
        self.read_body()
        time.sleep(int(query.get("d", 0)) / 1e6)
        self.send_response(status)
        bodiless = self.command == "HEAD" or status in (204, 304)
        if framing == "close":
            self.close_connection = True
            self.send_header("connection", "close")
        elif framing == "chunked":
            self.send_header("transfer-encoding", "chunked")
        elif status not in (204, 304):
            self.send_header("content-length", str(size))
        self.send_header("x-handler-ns", str(time.monotonic_ns() - begun))
        self.end_headers()
        if bodiless:
            return
        sent = 0
        for piece in range(1, pieces + 1):
            part = b"b" * (size * piece // pieces - sent)
            sent += len(part)
            if framing == "chunked" and part:
                part = b"%x\r\n%b\r\n" % (len(part), part)
            if part:
                self.wfile.write(part)
            if piece < pieces:
                time.sleep(int(query.get("g", 0)) / 1e6)
        if framing == "chunked":
            self.wfile.write(b"0\r\n\r\n")

    do_GET = do_POST = do_PUT = do_DELETE = do_PATCH = do_OPTIONS = do_HEAD = answer

    def log_message(self, *_):
        pass


class Forking(socketserver.ForkingMixIn, http.server.HTTPServer):
    max_children = 400
    request_queue_size = 1024


class Threading(http.server.ThreadingHTTPServer):
    request_queue_size = 1024


if __name__ == "__main__":
    kind = {"forking": Forking, "threading": Threading}[sys.argv[1]]
    server = kind(("127.0.0.1", 0), Handler)
    if "TLS_CERTIFICATE" in os.environ:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(os.environ["TLS_CERTIFICATE"], os.environ["TLS_KEY"])
        # The handshake comes with the first read, in the thread that serves the connection.
        server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    print("ready", server.server_address[1], flush=True)
    server.serve_forever(poll_interval=0.05)
