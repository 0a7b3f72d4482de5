// Workload server on com.sun.net.httpserver. In: requests of the protocol in integration/src/shape.rs. Out: answers
// of exactly that shape, with the handling time in `x-handler-ns`. Prints `ready PORT`. Knows nothing of the agent.

import com.sun.net.httpserver.HttpExchange;
import com.sun.net.httpserver.HttpServer;
import java.io.IOException;
import java.io.OutputStream;
import java.net.InetSocketAddress;
import java.util.concurrent.Executors;

public final class Server {
    private static long option(HttpExchange exchange, String name, long otherwise) {
        String query = exchange.getRequestURI().getQuery();
        if (query != null) {
            for (String pair : query.split("&")) {
                if (pair.startsWith(name + "=")) {
                    return Long.parseLong(pair.substring(name.length() + 1));
                }
            }
        }
        return otherwise;
    }

    private static void pause(long micros) throws IOException {
        try {
            Thread.sleep(micros / 1000, (int) (micros % 1000) * 1000);
        } catch (InterruptedException interrupted) {
            throw new IOException(interrupted);
        }
    }

    private static void answer(HttpExchange exchange) throws IOException {
        long begun = System.nanoTime();
        String[] parts = exchange.getRequestURI().getPath().split("/");
        int status = Integer.parseInt(parts[3]);
        boolean chunked = parts[4].equals("chunked");
        int size = Integer.parseInt(parts[5]);
        int pieces = (int) option(exchange, "p", 1);
        exchange.getRequestBody().readAllBytes();
        pause(option(exchange, "d", 0));
        boolean bodiless = exchange.getRequestMethod().equals("HEAD") || status == 204 || status == 304;
        if (exchange.getRequestMethod().equals("HEAD") && !chunked) {
            exchange.getResponseHeaders().set("Content-Length", Integer.toString(size));
        }
        exchange.getResponseHeaders().set("X-Handler-Ns", Long.toString(System.nanoTime() - begun));
        exchange.sendResponseHeaders(status, bodiless || (!chunked && size == 0) ? -1 : chunked ? 0 : size);
        if (!bodiless) {
            try (OutputStream body = exchange.getResponseBody()) {
                int sent = 0;
                for (int piece = 1; piece <= pieces; piece++) {
                    int end = (int) ((long) size * piece / pieces);
                    body.write(new byte[end - sent]);
                    sent = end;
                    if (piece < pieces) {
                        body.flush();
                        pause(option(exchange, "g", 0));
                    }
                }
            }
        }
        exchange.close();
    }

    public static void main(String[] arguments) throws IOException {
        HttpServer server = HttpServer.create(new InetSocketAddress("127.0.0.1", 0), 1024);
        server.setExecutor(Executors.newCachedThreadPool());
        server.createContext("/", Server::answer);
        server.start();
        System.out.println("ready " + server.getAddress().getPort());
    }
}
