// A service with an OpenTelemetry SDK, as `service.py orders` is: `sdk LEDGER STOCK_URL`. Sends over gRPC.
package main

import (
	"context"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"sync"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlpmetric/otlpmetricgrpc"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/propagation"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
)

type service struct {
	stock  *url.URL
	port   int
	tracer trace.Tracer
	served metric.Int64Counter
	lock   sync.Mutex
	ledger *os.File
}

var (
	w3c = propagation.TraceContext{}
	said     = []attribute.KeyValue{
		attribute.String("http.request.method", "GET"), attribute.Int("http.response.status_code", 200),
	}
)

func must[T any](value T, err error) T {
	if err != nil {
		log.Fatal(err)
	}
	return value
}

func (s *service) ServeHTTP(out http.ResponseWriter, request *http.Request) {
	ctx := w3c.Extract(request.Context(), propagation.HeaderCarrier(request.Header))
	attributes := append([]attribute.KeyValue{
		attribute.String("url.path", request.URL.Path), attribute.String("http.route", "/order/{id}"),
		attribute.StringSlice("test.list", []string{"a", "b"}), attribute.Float64("test.share", 0.25),
	}, said...)
	ctx, server := s.tracer.Start(ctx, "handle", trace.WithSpanKind(trace.SpanKindServer), trace.WithAttributes(attributes...))
	ctx, work := s.tracer.Start(ctx, "work")
	called := append([]attribute.KeyValue{
		attribute.String("server.address", s.stock.Hostname()), attribute.Int("server.port", s.port),
	}, said...)
	ctx, client := s.tracer.Start(ctx, "ask stock", trace.WithSpanKind(trace.SpanKindClient), trace.WithAttributes(called...))
	ask := must(http.NewRequestWithContext(ctx, http.MethodGet, s.stock.String()+request.URL.Path, nil))
	w3c.Inject(ctx, propagation.HeaderCarrier(ask.Header))
	answer := must(http.DefaultClient.Do(ask))
	must(io.Copy(io.Discard, answer.Body))
	answer.Body.Close()
	for _, span := range []trace.Span{client, work, server} {
		span.End()
	}
	s.served.Add(ctx, 1)
	id := func(span trace.Span) string { return span.SpanContext().SpanID().String() }
	s.lock.Lock()
	fmt.Fprintln(s.ledger, request.URL.Path, server.SpanContext().TraceID(), id(server), id(work), id(client))
	s.lock.Unlock()
	io.WriteString(out, "ok")
}

func main() {
	ctx := context.Background()
	tracers := sdktrace.NewTracerProvider(sdktrace.WithBatcher(must(otlptracegrpc.New(ctx))))
	reader := sdkmetric.NewPeriodicReader(must(otlpmetricgrpc.New(ctx)))
	meter := sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader)).Meter("workload")
	stock := must(url.Parse(os.Args[2]))
	s := &service{
		stock:  stock,
		port:   must(strconv.Atoi(stock.Port())),
		tracer: tracers.Tracer("workload", trace.WithInstrumentationVersion("1.0")),
		served: must(meter.Int64Counter("orders.served")),
		ledger: must(os.OpenFile(os.Args[1], os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)),
	}
	listener := must(net.Listen("tcp", "127.0.0.1:0"))
	fmt.Println("ready", listener.Addr().(*net.TCPAddr).Port)
	log.Fatal(http.Serve(listener, s))
}
