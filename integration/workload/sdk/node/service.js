// A service with an OpenTelemetry SDK, as `service.py orders` is: `service.js LEDGER STOCK_URL`. Sends JSON.
'use strict';

const fs = require('fs');
const http = require('http');

const { context, propagation, trace, SpanKind } = require('@opentelemetry/api');
const { OTLPMetricExporter } = require('@opentelemetry/exporter-metrics-otlp-http');
const { OTLPTraceExporter } = require('@opentelemetry/exporter-trace-otlp-http');
const { detectResources, envDetector } = require('@opentelemetry/resources');
const { MeterProvider, PeriodicExportingMetricReader } = require('@opentelemetry/sdk-metrics');
const { BatchSpanProcessor, NodeTracerProvider } = require('@opentelemetry/sdk-trace-node');

const [ledger, stock] = process.argv.slice(2);
const resource = detectResources({ detectors: [envDetector] });
const spanProcessors = [new BatchSpanProcessor(new OTLPTraceExporter())];
const provider = new NodeTracerProvider({ resource, spanProcessors });
provider.register();
const exportIntervalMillis = Number(process.env.OTEL_METRIC_EXPORT_INTERVAL);
const exportTimeoutMillis = exportIntervalMillis;
const exporter = new OTLPMetricExporter();
const readers = [new PeriodicExportingMetricReader({ exporter, exportIntervalMillis, exportTimeoutMillis })];
const served = new MeterProvider({ resource, readers }).getMeter('workload').createCounter('orders.served');
const tracer = provider.getTracer('workload', '1.0');
const said = { 'http.request.method': 'GET', 'http.response.status_code': 200 };
const { hostname, port } = new URL(stock);

function serve(request, response) {
  const parent = propagation.extract(context.active(), request.headers);
  const attributes = {
    'url.path': request.url, 'http.route': '/order/{id}', 'test.list': ['a', 'b'], 'test.share': 0.25, ...said,
  };
  const server = tracer.startSpan('handle', { kind: SpanKind.SERVER, attributes }, parent);
  const within = trace.setSpan(parent, server);
  const work = tracer.startSpan('work', {}, within);
  const below = trace.setSpan(within, work);
  const called = { 'server.address': hostname, 'server.port': Number(port), ...said };
  const client = tracer.startSpan('ask stock', { kind: SpanKind.CLIENT, attributes: called }, below);
  const headers = {};
  propagation.inject(trace.setSpan(below, client), headers);
  http.get(stock + request.url, { headers, agent: false }, (answer) => {
    answer.resume();
    answer.on('end', () => {
      for (const span of [client, work, server]) span.end();
      served.add(1);
      const ids = [server, work, client].map((span) => span.spanContext().spanId);
      fs.appendFileSync(ledger, `${request.url} ${server.spanContext().traceId} ${ids.join(' ')}\n`);
      response.end('ok');
    });
  });
}

const server = http.createServer(serve);
server.listen(0, '127.0.0.1', () => console.log('ready', server.address().port));
