"""A service with an OpenTelemetry SDK, and one without that it calls.

`service.py orders LEDGER STOCK_URL`: each GET is a SERVER span, in it an INTERNAL one, in that a CLIENT one around a call of
STOCK_URL. Where spans go, the standard variables say. A line of LEDGER for each: path, trace, ids of the three spans.
`service.py stock LEDGER`: answers, and writes down the path and the `traceparent` that came.
"""

import sys
import threading
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

role, ledger = sys.argv[1], open(sys.argv[2], "a", buffering=1)
lock = threading.Lock()


def write(*words):
    with lock:
        print(*words, file=ledger)


if role == "orders":
    import os

    from opentelemetry import metrics, propagate, trace
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    if os.environ["OTEL_EXPORTER_OTLP_PROTOCOL"] == "grpc":
        from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
    else:
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

    provider = TracerProvider()
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    trace.set_tracer_provider(provider)
    metrics.set_meter_provider(MeterProvider([PeriodicExportingMetricReader(OTLPMetricExporter())]))
    tracer = trace.get_tracer("workload", "1.0")
    served = metrics.get_meter("workload").create_counter("orders.served")


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        if role == "orders":
            self.serve()
        else:
            write(self.path, self.headers.get("traceparent", ""))
        self.send_response(200)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"ok")

    def serve(self):
        context = propagate.extract(dict(self.headers))
        kinds = trace.SpanKind
        http = {"http.request.method": "GET", "http.response.status_code": 200}
        attributes = {"url.path": self.path, "test.list": ["a", "b"], "test.share": 0.25, **http}
        attributes["http.route"] = "/order/{id}"
        host, port = sys.argv[3].removeprefix("http://").split(":")
        called = {"server.address": host, "server.port": int(port), **http}
        start = tracer.start_as_current_span
        with start("handle", context=context, kind=kinds.SERVER, attributes=attributes) as server:
            with start("work") as work, start("ask stock", kind=kinds.CLIENT, attributes=called) as client:
                headers = {}
                propagate.inject(headers)
                request = urllib.request.Request(sys.argv[3] + self.path, headers=headers)
                urllib.request.urlopen(request).read()
        served.add(1)
        ids = [f"{span.get_span_context().span_id:016x}" for span in (server, work, client)]
        write(self.path, f"{server.get_span_context().trace_id:032x}", *ids)

    def log_message(self, *_):
        pass


server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
print("ready", server.server_port, flush=True)
server.serve_forever()
