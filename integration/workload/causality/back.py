"""Answers `GET` of any path with 200, after up to three milliseconds: `back.py [CERTIFICATE KEY]`. Prints `ready PORT`.

Below `/often/` one of four is answered with 503, and one of ten after a fifth of a second.
"""

import http.server
import random
import socketserver
import ssl
import sys
import time


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    # Head and body are written together: nginx cuts an answer of which the rest comes later than its timeout.
    wbufsize = -1

    def do_GET(self):
        drawn = random.random() if self.path.startswith("/often/") else 0
        time.sleep(0.2 if drawn > 0.9 else random.random() * 0.003)
        self.send_response(503 if 0.6 < drawn < 0.85 else 200)
        self.send_header("content-length", "2")
        self.end_headers()
        self.wfile.write(b"ok")

    def log_message(self, *_):
        pass


class Server(socketserver.ThreadingMixIn, http.server.HTTPServer):
    daemon_threads = True
    request_queue_size = 1024


server = Server(("127.0.0.1", 0), Handler)
if sys.argv[1:]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*sys.argv[1:])
    # The handshake is the business of the connection's own thread.
    server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
print("ready", server.server_port, flush=True)
server.serve_forever()
