"""Asks over TLS: `ask.py PORT CLIENTS REQUESTS KIND...`.

So many clients at once, each one `GET /KIND/ID` after the other on one connection, each with an id drawn here, which is
printed once it was answered.
"""

import http.client
import random
import ssl
import sys
import threading
import uuid

port, clients, requests = map(int, sys.argv[1:4])
kinds = sys.argv[4:]
context = ssl.create_default_context()
context.check_hostname, context.verify_mode = False, ssl.CERT_NONE


def ask():
    connection = http.client.HTTPSConnection("127.0.0.1", port, timeout=60, context=context)
    for nth in range(requests):
        request = uuid.UUID(int=random.getrandbits(128)).hex
        connection.request("GET", f"/{kinds[nth % len(kinds)]}/{request}")
        connection.getresponse().read()
        sys.stdout.write(request + "\n")
    connection.close()


asking = [threading.Thread(target=ask) for _ in range(clients)]
for thread in asking:
    thread.start()
for thread in asking:
    thread.join()
