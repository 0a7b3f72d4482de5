"""Workload client on grpcio: `grpc_client.py PLAN`. In and out: integration/src/rpc/plan.rs. Knows nothing of the agent."""

import json
import queue
import sys
import threading
import time
from concurrent import futures

import grpc


def metadata(call):
    return (("traceparent", f"00-{call['id']}-{call['id'][:16]}-01"), ("shape", call["shape"]))


def run(channel, call):
    begun, wall = time.monotonic_ns(), time.time_ns()
    sent, received, message = [0], 0, bytes(call["bytes"])
    turn = queue.Queue()

    def requests():
        for nth in range(call["requests"]):
            if call["method"] == "Chat" and nth:
                turn.get()
            sent[0] += 1
            yield message
        # A cancelled exchange ends with neither side's end.
        if call["end"] == "cancel" and call["method"] in ("Chat", "Collect"):
            turn.get()
            turn.get()

    timeout = call["timeout_ms"] / 1e3 if call["end"] == "deadline" else None
    path = "/test.Shape/" + call["method"]
    if call["method"] in ("Collect", "Chat"):
        responses = channel.stream_stream(path)(requests(), metadata=metadata(call), timeout=timeout)
    else:
        # The message and the end of the stream go together, as in every unary call.
        sent[0] = 1
        responses = channel.unary_stream(path)(message, metadata=metadata(call), timeout=timeout)
    code = 0
    try:
        if call["end"] == "cancel" and call["responses"] == 0:
            responses.cancel()
        for _ in responses:
            received += 1
            if call["end"] == "cancel" and received == call["responses"]:
                responses.cancel()
            turn.put(None)
    except (grpc.RpcError, futures.CancelledError):
        code = responses.code().value[0]
    turn.put(None)
    turn.put(None)
    ended = wall + time.monotonic_ns() - begun
    line = {"id": call["id"], "code": code, "sent": sent[0], "received": received, "started_ns": wall, "ended_ns": ended}
    sys.stdout.write(json.dumps(line) + "\n")


def main():
    with open(sys.argv[1], encoding="utf-8") as file:
        plan = json.load(file)
    options = [("grpc.enable_retries", 0)]
    if plan["certificate"]:
        with open(plan["certificate"], "rb") as file:
            trust = grpc.ssl_channel_credentials(file.read())
        options.append(("grpc.ssl_target_name_override", plan["authority"]))
        channel = grpc.secure_channel(plan["target"], trust, options)
    else:
        channel = grpc.insecure_channel(plan["target"], options)
    calls = queue.SimpleQueue()
    for call in plan["calls"]:
        calls.put(call)

    def work():
        while True:
            try:
                call = calls.get_nowait()
            except queue.Empty:
                return
            run(channel, call)

    threads = [threading.Thread(target=work) for _ in range(plan["concurrency"])]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    channel.close()


main()
