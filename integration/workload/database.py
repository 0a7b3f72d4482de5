"""Clients of databases: `database.py LIBRARY PORT PLAN`.

In: a file with the calls as JSON, `[{"text": ..., "values": [...]}, ...]`; for Redis `[{"words": [...]}, ...]`. Out: a line
of JSON for each call, its place in the plan, the code of its error, when it began and ended (Unix time, ns). Libraries
are the keys of the table at the end. Knows nothing of the agent.
"""

import asyncio
import json
import socket
import sys
import threading
import time

LIBRARY, PORT = sys.argv[1], int(sys.argv[2])
with open(sys.argv[3]) as file:
    CALLS = [{"text": "", "words": [], **call} for call in json.load(file)]


def report(nth, code, started):
    line = json.dumps({"nth": nth, "code": code, "started": started, "ended": time.time_ns()})
    # With its end in one piece: threads report at the same time.
    sys.stdout.write(line + "\n")


def psycopg_calls():
    import psycopg

    with psycopg.connect(f"host=127.0.0.1 port={PORT} user=postgres dbname=postgres", autocommit=True) as connection:
        for nth, call in enumerate(CALLS):
            started, code = time.time_ns(), ""
            try:
                # The fifth time and later a statement is prepared by name; without values it goes as a simple query.
                cursor = connection.execute(call["text"].replace("$1", "%s"), call["values"] or None)
                if cursor.description:
                    cursor.fetchall()
            except psycopg.Error as error:
                code = error.sqlstate
            report(nth, code, started)


def psycopg_pipeline():
    import psycopg

    with psycopg.connect(f"host=127.0.0.1 port={PORT} user=postgres dbname=postgres", autocommit=True) as connection:
        started = time.time_ns()
        with connection.pipeline():
            for call in CALLS:
                connection.execute(call["text"].replace("$1", "%s"), call["values"] or None)
        for nth in range(len(CALLS)):
            report(nth, "", started)


def psycopg_copy():
    """COPY: what a call has as values goes in, a line each; `abandon` breaks off. Of one without values rows come out."""
    import psycopg

    with psycopg.connect(f"host=127.0.0.1 port={PORT} user=postgres dbname=postgres", autocommit=True) as connection:
        for nth, call in enumerate(CALLS):
            started, code = time.time_ns(), ""
            try:
                if "COPY" not in call["text"]:
                    connection.execute(call["text"])
                else:
                    with connection.cursor().copy(call["text"]) as copy:
                        for value in call["values"]:
                            if value == "abandon":
                                raise RuntimeError(value)
                            copy.write(value + "\n")
                        for _ in copy if " TO " in call["text"] else ():
                            pass
            except RuntimeError:
                code = "57014"  # the server's answer to CopyFail, which psycopg keeps to itself
            except psycopg.Error as error:
                code = error.sqlstate
            report(nth, code, started)


def psycopg_cancel():
    """A call is cancelled by the one behind it, over another connection; one without a text is a cancel request."""
    import psycopg

    address = f"host=127.0.0.1 port={PORT} user=postgres dbname=postgres"
    with psycopg.connect(address, autocommit=True) as connection, psycopg.connect(address, autocommit=True) as other:

        def cancel(nth):
            time.sleep(0.3)
            started, text = time.time_ns(), CALLS[nth]["text"]
            if not text:
                connection.cancel_safe()
                return
            other.execute(text.replace("$1", "%s"), [connection.info.backend_pid]).fetchall()
            report(nth, "", started)

        for nth in range(0, len(CALLS), 2):
            thread = threading.Thread(target=cancel, args=[nth + 1])
            thread.start()
            started, code = time.time_ns(), ""
            try:
                connection.execute(CALLS[nth]["text"].replace("$1", "%s"), CALLS[nth]["values"] or None)
            except psycopg.Error as error:
                code = error.sqlstate
            report(nth, code, started)
            thread.join()


def psycopg_notify():
    """NOTIFY goes over a connection of its own, and is awaited on the one that does the rest."""
    import psycopg

    address = f"host=127.0.0.1 port={PORT} user=postgres dbname=postgres"
    with psycopg.connect(address, autocommit=True) as connection, psycopg.connect(address, autocommit=True) as other:
        for nth, call in enumerate(CALLS):
            started, is_notify = time.time_ns(), call["text"].startswith("NOTIFY")
            (other if is_notify else connection).execute(call["text"])
            report(nth, "", started)
            if is_notify and not list(connection.notifies(timeout=10, stop_after=1)):
                raise RuntimeError("no notification came")


def libpq():
    from psycopg import pq

    connection = pq.PGconn.connect(f"host=127.0.0.1 port={PORT} user=postgres dbname=postgres".encode())
    if connection.status != pq.ConnStatus.OK:
        raise RuntimeError(connection.error_message)
    return connection, pq


def code_of(result, pq):
    if result.status == pq.ExecStatus.PIPELINE_ABORTED:
        return "skipped"
    return (result.error_field(pq.DiagnosticField.SQLSTATE) or b"").decode()


def libpq_pipeline():
    """All in one go; a call without a text is a Sync. What is behind an error up to there is skipped."""
    connection, pq = libpq()
    started = time.time_ns()
    connection.enter_pipeline_mode()
    for call in CALLS:
        if call["text"]:
            values = [value.encode() for value in call["values"]]
            connection.send_query_params(call["text"].encode(), values or None)
        else:
            connection.pipeline_sync()
    connection.flush()
    for nth, call in enumerate(CALLS):
        result = connection.get_result()
        if call["text"]:
            report(nth, code_of(result, pq), started)
            connection.get_result()  # none: the end of its results
    connection.finish()


def libpq_copy():
    """COPY asked by messages of the extended protocol: libpq sends a Sync behind the question and one behind the rows."""
    connection, pq = libpq()
    for nth, call in enumerate(CALLS):
        started = time.time_ns()
        result = connection.exec_params(call["text"].encode(), None)
        if result.status == pq.ExecStatus.COPY_IN:
            for value in call["values"]:
                connection.put_copy_data((value + "\n").encode())
            connection.put_copy_end()
            result = connection.get_result()
        while result.status == pq.ExecStatus.COPY_OUT:
            while connection.get_copy_data(0)[0] > 0:
                pass
            result = connection.get_result()
        report(nth, code_of(result, pq), started)
        while connection.get_result():
            pass
    connection.finish()


async def asyncpg_calls():
    import asyncpg

    connection = await asyncpg.connect(host="127.0.0.1", port=PORT, user="postgres", database="postgres")
    for nth, call in enumerate(CALLS):
        started, code = time.time_ns(), ""
        try:
            await connection.fetch(call["text"], *call["values"])
        except asyncpg.PostgresError as error:
            code = error.sqlstate
        report(nth, code, started)
    await connection.close()


def redis_calls():
    import redis

    client = redis.Redis(port=PORT, lib_name=None, lib_version=None)
    for nth, call in enumerate(CALLS):
        started, code = time.time_ns(), ""
        try:
            client.execute_command(*call["words"])
        except redis.ResponseError as error:
            code = "error"
        report(nth, code, started)
    client.close()


def redis_pipeline():
    import redis

    client = redis.Redis(port=PORT, lib_name=None, lib_version=None)
    started = time.time_ns()
    pipeline = client.pipeline(transaction=False)
    for call in CALLS:
        pipeline.execute_command(*call["words"])
    for nth, answer in enumerate(pipeline.execute(raise_on_error=False)):
        report(nth, "error" if isinstance(answer, Exception) else "", started)
    client.close()


def redis_subscribe():
    """Messages come that nobody asked for, on a connection of their own; commands go over another."""
    import redis

    client = redis.Redis(port=PORT, lib_name=None, lib_version=None)
    subscription = client.pubsub()
    subscription.subscribe("news")
    for nth, call in enumerate(CALLS):
        started = time.time_ns()
        client.execute_command(*call["words"])
        report(nth, "", started)
        subscription.get_message(timeout=0.01)
    subscription.close()
    client.close()


def redis_transaction():
    """MULTI, what is queued, EXEC."""
    import redis

    client = redis.Redis(port=PORT, lib_name=None, lib_version=None)
    started = time.time_ns()
    pipeline = client.pipeline(transaction=True)
    for call in CALLS:
        pipeline.execute_command(*call["words"])
    answers = pipeline.execute(raise_on_error=False)
    if len(answers) != len(CALLS):
        raise RuntimeError(answers)
    for nth in range(len(CALLS)):
        report(nth, "", started)
    client.close()


def redis_pushes():
    """RESP 3, with a subscription beside the commands."""
    import redis

    client = redis.Redis(port=PORT, protocol=3, lib_name=None, lib_version=None)
    subscription = client.pubsub()
    subscription.subscribe("news")
    for nth, call in enumerate(CALLS):
        started = time.time_ns()
        client.execute_command(*call["words"])
        report(nth, "", started)
        subscription.get_message(timeout=0.01)
    subscription.close()
    client.close()


class Answers:
    """Replies of RESP 2 and 3. Pushes are passed over, but for the one that answers a subscription."""

    def __init__(self, connection):
        self.file = connection.makefile("rb")

    def value(self):
        line = self.file.readline()
        kind, rest = line[:1], line[1:-2]
        if kind in b"$=!":
            return kind, self.file.read(int(rest) + 2)[:-2] if int(rest) >= 0 else None
        if kind in b"*~>%":
            return kind, [self.value() for _ in range(int(rest) * (2 if kind == b"%" else 1))]
        return kind, rest

    def reply(self):
        while True:
            kind, value = self.value()
            if kind != b">":
                return value.split()[0].decode() if kind == b"-" else ""

    def subscription(self):
        while True:
            kind, value = self.value()
            if kind != b">":
                raise RuntimeError(f"{value} is no push")
            if value[0][1].endswith(b"subscribe"):
                return


def redis_socket():
    """Bytes as they are: a call with words is an array, one with a text a line. RESP 3 answers subscriptions by pushes."""
    with socket.create_connection(("127.0.0.1", PORT)) as connection:
        answers = Answers(connection)
        for nth, call in enumerate(CALLS):
            words = call["words"]
            question = f"*{len(words)}\r\n".encode()
            for word in words:
                question += f"${len(word.encode())}\r\n{word}\r\n".encode()
            started, code = time.time_ns(), ""
            connection.sendall(question if words else f"{call['text']}\r\n".encode())
            if words and "SUBSCRIBE" in words[0]:
                answers.subscription()
            else:
                code = answers.reply()
            report(nth, code, started)


{
    "psycopg": psycopg_calls,
    "psycopg-pipeline": psycopg_pipeline,
    "psycopg-copy": psycopg_copy,
    "psycopg-cancel": psycopg_cancel,
    "psycopg-notify": psycopg_notify,
    "libpq-pipeline": libpq_pipeline,
    "libpq-copy": libpq_copy,
    "asyncpg": lambda: asyncio.run(asyncpg_calls()),
    "redis": redis_calls,
    "redis-pipeline": redis_pipeline,
    "redis-subscribe": redis_subscribe,
    "redis-transaction": redis_transaction,
    "redis-pushes": redis_pushes,
    "redis-socket": redis_socket,
}[LIBRARY]()
