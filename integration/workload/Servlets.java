// A servlet in Tomcat that calls another service: `Servlets BACK_PORT LOG`.
//
// Each request `GET /KIND/ID` makes some calls `GET /out/ID` to the port, each with an id drawn here, and is answered.
// LOG gets a line `REQUEST CALL` once the answer to the call has come, and `- CALL` for calls of a thread that serves
// nothing. Prints `ready PORT`. Knows nothing of the agent; ids are in no trace header.

import jakarta.servlet.http.HttpServlet;
import jakarta.servlet.http.HttpServletRequest;
import jakarta.servlet.http.HttpServletResponse;
import java.io.FileOutputStream;
import java.io.IOException;
import java.io.InputStream;
import java.net.HttpURLConnection;
import java.net.URI;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.util.UUID;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ThreadLocalRandom;
import org.apache.catalina.startup.Tomcat;

public final class Servlets extends HttpServlet {
    private final CountDownLatch begun = new CountDownLatch(1);
    private final String back;
    private final FileOutputStream log;

    private Servlets(String back, FileOutputStream log) {
        this.back = back;
        this.log = log;
    }

    /** One call; the JDK keeps connections for all threads. */
    private void call(String cause) throws IOException {
        String out = UUID.randomUUID().toString().replace("-", "");
        var connection = (HttpURLConnection) URI.create(back + out).toURL().openConnection();
        try (InputStream body = connection.getInputStream()) {
            body.readAllBytes();
        }
        synchronized (log) {
            log.write((cause + " " + out + "\n").getBytes(StandardCharsets.US_ASCII));
        }
    }

    private void callInTheBackground() {
        try {
            begun.await();
            while (true) {
                Thread.sleep(ThreadLocalRandom.current().nextInt(50));
                call("-");
            }
        } catch (InterruptedException | IOException error) {
            throw new IllegalStateException(error);
        }
    }

    @Override
    protected void doGet(HttpServletRequest request, HttpServletResponse response) throws IOException {
        begun.countDown();
        String id = request.getRequestURI().split("/")[2];
        int calls = ThreadLocalRandom.current().nextInt(4);
        for (int nth = 0; nth < calls; nth++) {
            call(id);
        }
        response.setContentLength(2);
        response.getOutputStream().write(new byte[] {'o', 'k'});
    }

    public static void main(String[] arguments) throws Exception {
        var servlet = new Servlets(
            "http://127.0.0.1:" + arguments[0] + "/out/", new FileOutputStream(arguments[1], true));
        var background = new Thread(servlet::callInTheBackground);
        background.setDaemon(true);
        background.start();
        var tomcat = new Tomcat();
        tomcat.setBaseDir(Files.createTempDirectory("servlets").toString());
        tomcat.setHostname("127.0.0.1");
        tomcat.setPort(0);
        var context = tomcat.addContext("", null);
        Tomcat.addServlet(context, "servlet", servlet);
        context.addServletMappingDecoded("/*", "servlet");
        tomcat.getConnector().setProperty("maxKeepAliveRequests", "-1");
        tomcat.start();
        System.out.println("ready " + tomcat.getConnector().getLocalPort());
        tomcat.getServer().await();
    }
}
