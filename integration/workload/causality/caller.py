"""Calls of a front to the service behind it, on a connection of their own or on one that their thread has kept."""

import http.client
import random
import threading
import uuid

kept = threading.local()


def call(port):
    """One call `GET /out/ID` with an id drawn here; the id."""
    out = uuid.UUID(int=random.getrandbits(128)).hex
    connection = getattr(kept, "connection", None) if random.random() < 0.7 else None
    if connection is None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        if random.random() < 0.7:
            kept.connection = connection
    connection.request("GET", "/out/" + out)
    response = connection.getresponse()
    response.read()
    assert response.status == 200, response.status
    return out
