import com.sun.net.httpserver.HttpExchange;
import com.sun.net.httpserver.HttpServer;
import io.opentelemetry.api.common.AttributeKey;
import io.opentelemetry.api.common.Attributes;
import io.opentelemetry.api.metrics.LongCounter;
import io.opentelemetry.api.trace.Span;
import io.opentelemetry.api.trace.SpanKind;
import io.opentelemetry.api.trace.Tracer;
import io.opentelemetry.api.trace.propagation.W3CTraceContextPropagator;
import io.opentelemetry.context.Context;
import io.opentelemetry.context.propagation.TextMapGetter;
import io.opentelemetry.sdk.OpenTelemetrySdk;
import io.opentelemetry.sdk.autoconfigure.AutoConfiguredOpenTelemetrySdk;
import java.io.IOException;
import java.net.HttpURLConnection;
import java.net.InetSocketAddress;
import java.net.URI;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.util.List;
import java.util.concurrent.Executors;

/** A service with an OpenTelemetry SDK, as `service.py orders` is: `Service LEDGER STOCK_URL`. Sends as variables say. */
public final class Service {
    private static final W3CTraceContextPropagator W3C = W3CTraceContextPropagator.getInstance();
    private static final TextMapGetter<HttpExchange> HEADERS = new TextMapGetter<>() {
        @Override
        public Iterable<String> keys(HttpExchange exchange) {
            return exchange.getRequestHeaders().keySet();
        }

        @Override
        public String get(HttpExchange exchange, String key) {
            return exchange.getRequestHeaders().getFirst(key);
        }
    };
    private static final Attributes SAID =
        Attributes.builder().put("http.request.method", "GET").put("http.response.status_code", 200).build();

    private final Path ledger;
    private final URI stock;
    private final Tracer tracer;
    private final LongCounter served;

    private Service(Path ledger, URI stock, OpenTelemetrySdk sdk) {
        this.ledger = ledger;
        this.stock = stock;
        tracer = sdk.getTracer("workload", "1.0");
        served = sdk.getMeter("workload").counterBuilder("orders.served").build();
    }

    private void serve(HttpExchange exchange) throws IOException {
        String path = exchange.getRequestURI().getPath();
        Context parent = W3C.extract(Context.root(), exchange, HEADERS);
        Span server = tracer.spanBuilder("handle").setParent(parent).setSpanKind(SpanKind.SERVER)
            .setAllAttributes(SAID).setAttribute("url.path", path).setAttribute("http.route", "/order/{id}")
            .setAttribute(AttributeKey.stringArrayKey("test.list"), List.of("a", "b"))
            .setAttribute("test.share", 0.25).startSpan();
        Context within = parent.with(server);
        Span work = tracer.spanBuilder("work").setParent(within).startSpan();
        Context below = within.with(work);
        Span client = tracer.spanBuilder("ask stock").setParent(below).setSpanKind(SpanKind.CLIENT)
            .setAllAttributes(SAID).setAttribute("server.address", stock.getHost())
            .setAttribute("server.port", stock.getPort()).startSpan();
        HttpURLConnection ask = (HttpURLConnection) stock.resolve(path).toURL().openConnection();
        W3C.inject(below.with(client), ask, HttpURLConnection::setRequestProperty);
        ask.getInputStream().readAllBytes();
        client.end();
        work.end();
        server.end();
        served.add(1);
        write(path, server, work, client);
        exchange.sendResponseHeaders(200, 2);
        exchange.getResponseBody().write("ok".getBytes());
        exchange.close();
    }

    private synchronized void write(String path, Span server, Span work, Span client) throws IOException {
        String line = String.join(" ", path, server.getSpanContext().getTraceId(),
            server.getSpanContext().getSpanId(), work.getSpanContext().getSpanId(),
            client.getSpanContext().getSpanId()) + "\n";
        Files.writeString(ledger, line, StandardOpenOption.CREATE, StandardOpenOption.APPEND);
    }

    public static void main(String[] arguments) throws IOException {
        OpenTelemetrySdk sdk = AutoConfiguredOpenTelemetrySdk.initialize().getOpenTelemetrySdk();
        Service service = new Service(Path.of(arguments[0]), URI.create(arguments[1]), sdk);
        HttpServer server = HttpServer.create(new InetSocketAddress("127.0.0.1", 0), 0);
        server.createContext("/", service::serve);
        server.setExecutor(Executors.newFixedThreadPool(4));
        server.start();
        System.out.println("ready " + server.getAddress().getPort());
    }
}
