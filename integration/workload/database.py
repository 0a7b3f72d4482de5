"""Clients of databases: `database.py LIBRARY PORT PLAN`.

In: a file with the calls as JSON, `[{"text": ..., "values": [...]}, ...]`; for Redis `[{"words": [...]}, ...]`. Out: a line
of JSON for each call, its place in the plan, the code of its error, when it began and ended (Unix time, ns). Libraries:
psycopg, psycopg-pipeline, asyncpg, redis, redis-pipeline, redis-subscribe. Knows nothing of the agent.
"""

import asyncio
import json
import sys
import time

LIBRARY, PORT = sys.argv[1], int(sys.argv[2])
with open(sys.argv[3]) as file:
    CALLS = json.load(file)


def report(nth, code, started):
    print(json.dumps({"nth": nth, "code": code, "started": started, "ended": time.time_ns()}))


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


{
    "psycopg": psycopg_calls,
    "psycopg-pipeline": psycopg_pipeline,
    "asyncpg": lambda: asyncio.run(asyncpg_calls()),
    "redis": redis_calls,
    "redis-pipeline": redis_pipeline,
    "redis-subscribe": redis_subscribe,
}[LIBRARY]()
