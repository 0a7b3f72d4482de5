// Clients of PostgreSQL by JDBC: `Database LIBRARY PORT PLAN`. In: a file with a line for each call, its statement and its
// values apart by tabs, with Java's escapes. Out: as database.py. Libraries: jdbc (prepared, by name from the fifth time
// on), jdbc-simple (no message of the extended protocol), jdbc-batch (calls in a row of the same text are one batch).
// Knows nothing of the agent.

import java.nio.file.Files;
import java.nio.file.Path;
import java.sql.BatchUpdateException;
import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.PreparedStatement;
import java.sql.SQLException;
import java.time.Instant;
import java.util.Arrays;
import java.util.List;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

public final class Database {
    // The counts of a batch that failed do not say where, but its message does.
    private static final Pattern ENTRY = Pattern.compile("^Batch entry (\\d+) ");

    private record Call(String text, List<String> values) {
        static Call read(String line) {
            List<String> fields = Arrays.stream(line.split("\t")).map(String::translateEscapes).toList();
            return new Call(fields.get(0).replace("$1", "?"), fields.subList(1, fields.size()));
        }

        void bind(PreparedStatement statement) throws SQLException {
            for (int nth = 0; nth < values.size(); nth++) {
                statement.setString(nth + 1, values.get(nth));
            }
        }
    }

    private static long now() {
        Instant now = Instant.now();
        return now.getEpochSecond() * 1_000_000_000L + now.getNano();
    }

    private static void report(int nth, String code, long started) {
        String line = "{\"nth\": %d, \"code\": \"%s\", \"started\": %d, \"ended\": %d}";
        System.out.println(line.formatted(nth, code, started, now()));
    }

    private static void oneByOne(Connection connection, List<Call> calls) throws SQLException {
        for (int nth = 0; nth < calls.size(); nth++) {
            Call call = calls.get(nth);
            long started = now();
            String code = "";
            try (PreparedStatement statement = connection.prepareStatement(call.text)) {
                call.bind(statement);
                statement.execute();
            } catch (SQLException failed) {
                code = failed.getSQLState();
            }
            report(nth, code, started);
        }
    }

    private static void batches(Connection connection, List<Call> calls) throws SQLException {
        for (int from = 0, to; from < calls.size(); from = to) {
            String text = calls.get(from).text;
            long started = now();
            int failed = Integer.MAX_VALUE;
            String code = "";
            try (PreparedStatement statement = connection.prepareStatement(text)) {
                for (to = from; to < calls.size() && calls.get(to).text.equals(text); to++) {
                    calls.get(to).bind(statement);
                    statement.addBatch();
                }
                try {
                    statement.executeBatch();
                } catch (BatchUpdateException error) {
                    code = error.getSQLState();
                    Matcher entry = ENTRY.matcher(error.getMessage());
                    failed = entry.find() ? from + Integer.parseInt(entry.group(1)) : from;
                }
            }
            for (int nth = from; nth < to; nth++) {
                report(nth, nth < failed ? "" : nth == failed ? code : "skipped", started);
            }
        }
    }

    public static void main(String[] arguments) throws Exception {
        String library = arguments[0];
        String address = "jdbc:postgresql://127.0.0.1:" + arguments[1] + "/postgres?user=postgres&sslmode=disable";
        if (library.equals("jdbc-simple")) {
            address += "&preferQueryMode=simple";
        }
        List<Call> calls = Files.readAllLines(Path.of(arguments[2])).stream().map(Call::read).toList();
        try (Connection connection = DriverManager.getConnection(address)) {
            if (library.equals("jdbc-batch")) {
                batches(connection, calls);
            } else {
                oneByOne(connection, calls);
            }
        }
    }
}
