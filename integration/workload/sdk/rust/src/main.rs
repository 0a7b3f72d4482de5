//! A service with an OpenTelemetry SDK, as `service.py orders` is: `sdk LEDGER STOCK_URL`. Sends protobuf over HTTP.

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::{env, thread};

use anyhow::Context as _;
use opentelemetry::metrics::{Counter, MeterProvider as _};
use opentelemetry::propagation::TextMapPropagator as _;
use opentelemetry::trace::{Span as _, SpanKind, TraceContextExt as _, Tracer as _, TracerProvider as _};
use opentelemetry::{Array, Context, InstrumentationScope, KeyValue, StringValue, Value};
use opentelemetry_otlp::{MetricExporter, SpanExporter};
use opentelemetry_sdk::metrics::SdkMeterProvider;
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::trace::{SdkTracer, SdkTracerProvider};

struct Service {
    ledger: Mutex<File>,
    /// Host and port of the stock.
    stock: String,
    tracer: SdkTracer,
    served: Counter<u64>,
}

impl Service {
    fn serve(&self, mut stream: TcpStream) -> anyhow::Result<()> {
        let mut lines = BufReader::new(stream.try_clone()?).lines();
        let first = lines.next().context("a request")??;
        let path = first.split(' ').nth(1).context("a path")?.to_owned();
        let mut headers = HashMap::new();
        for line in lines {
            let line = line?;
            let Some((name, value)) = line.split_once(": ") else { break };
            headers.insert(name.to_lowercase(), value.to_owned());
        }
        let ids = self.work(&path, &headers)?;
        self.served.add(1, &[]);
        writeln!(self.ledger.lock().expect("no thread has failed"), "{path} {ids}")?;
        stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\nok")?;
        Ok(())
    }

    /// Three spans, one in the other; the ids of their trace and of each.
    fn work(&self, path: &str, headers: &HashMap<String, String>) -> anyhow::Result<String> {
        let w3c = TraceContextPropagator::new();
        let parent = w3c.extract(headers);
        let list = Value::Array(Array::String(vec![StringValue::from("a"), StringValue::from("b")]));
        let said = || {
            [KeyValue::new("http.request.method", "GET"), KeyValue::new("http.response.status_code", 200)]
        };
        let attributes = [
            KeyValue::new("url.path", path.to_owned()),
            KeyValue::new("http.route", "/order/{id}"),
            KeyValue::new("test.list", list),
            KeyValue::new("test.share", 0.25),
        ];
        let server = self.tracer.span_builder("handle").with_kind(SpanKind::Server);
        let server = server.with_attributes(attributes.into_iter().chain(said()));
        let within = parent.with_span(server.start_with_context(&self.tracer, &parent));
        let below = within.with_span(self.tracer.start_with_context("work", &within));
        let (host, port) = self.stock.split_once(':').context("a port")?;
        let called = [
            KeyValue::new("server.address", host.to_owned()),
            KeyValue::new("server.port", port.parse::<i64>()?),
        ];
        let client = self.tracer.span_builder("ask stock").with_kind(SpanKind::Client);
        let client = client.with_attributes(called.into_iter().chain(said()));
        let asking = below.with_span(client.start_with_context(&self.tracer, &below));
        self.ask(path, &asking, &w3c)?;
        let ids = |context: &Context| context.span().span_context().clone();
        let (a, b, c) = (ids(&within), ids(&below), ids(&asking));
        for context in [asking, below, within] {
            context.span().end();
        }
        Ok(format!("{} {} {} {}", a.trace_id(), a.span_id(), b.span_id(), c.span_id()))
    }

    fn ask(&self, path: &str, context: &Context, w3c: &TraceContextPropagator) -> anyhow::Result<()> {
        let mut headers = HashMap::new();
        w3c.inject_context(context, &mut headers);
        let mut stream = TcpStream::connect(&self.stock)?;
        let lines: String = headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
        write!(stream, "GET {path} HTTP/1.1\r\nhost: stock\r\n{lines}connection: close\r\n\r\n")?;
        stream.read_to_end(&mut Vec::new())?;
        Ok(())
    }
}

fn main() -> anyhow::Result<()> {
    let [ledger, stock] = env::args().skip(1).collect::<Vec<_>>().try_into().ok().context("two arguments")?;
    let spans = SpanExporter::builder().with_http().build()?;
    let tracers = SdkTracerProvider::builder().with_batch_exporter(spans).build();
    let metrics = MetricExporter::builder().with_http().build()?;
    let meters = SdkMeterProvider::builder().with_periodic_exporter(metrics).build();
    let scope = InstrumentationScope::builder("workload").with_version("1.0").build();
    let service = Arc::new(Service {
        ledger: Mutex::new(OpenOptions::new().create(true).append(true).open(ledger)?),
        stock: stock.trim_start_matches("http://").to_owned(),
        tracer: tracers.tracer_with_scope(scope),
        served: meters.meter("workload").u64_counter("orders.served").build(),
    });
    let listener = TcpListener::bind("127.0.0.1:0")?;
    println!("ready {}", listener.local_addr()?.port());
    for stream in listener.incoming() {
        let (service, stream) = (Arc::clone(&service), stream?);
        thread::spawn(move || {
            if let Err(error) = service.serve(stream) {
                eprintln!("{error:#}");
            }
        });
    }
    Ok(())
}
