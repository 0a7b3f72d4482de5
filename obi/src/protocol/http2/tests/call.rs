//! Calls over gRPC and gRPC-Web.

use super::*;
use crate::protocol::wire::Wire;
use obi_ebpf::{FLAG_MESSAGE_END, MESSAGE_REQUEST, MESSAGE_RESPONSE};

#[test]
fn remote_procedure_calls() {
    let mut c = Connection::server(7);
    let records = [
        c.at(20).headers(Client, 1, false, &CALL),
        c.at(21).data_end(Client, 1, 17, 2),
        c.at(22).headers(Server, 1, false, &RPC_OK),
        {
            let fields = [("grpc-status", "5"), ("grpc-message", "no%20such")];
            let payload = c.encoder(Server).encode(&fields, Coding::Eager);
            let flags = END_HEADERS | END_STREAM;
            let trailers = Frame { kind: HEADERS, flags, stream: 1, payload, body_bytes: 33, messages: 3 };
            c.at(30).frame(Server, &trailers)
        },
    ];
    let called =
        "Server 1 POST /s.S/M? 200 17/33 20-20-30  rpc Some(5) no%20such Some(2)/Some(3) Some(2000000)";
    check(&records, &[called]);
    // Trailers only; more messages than can be counted.
    let mut c = Connection::client(7);
    let only = [&RPC_OK[..], &[("grpc-status", "12")]].concat();
    let records = [
        c.at(20).headers(Client, 1, false, &CALL),
        c.at(21).data_end(Client, 1, 5, u32::MAX),
        c.at(30).headers(Server, 1, true, &only),
    ];
    check(&records, &["Client 1 POST /s.S/M? 200 5/0 20-20-30  rpc Some(12)  None/Some(0) Some(2000000)"]);
    // The client gives up; so does its connection. Nothing was answered, or something, or how much is not known.
    let begun: fn(&mut Connection) -> _ = |c| vec![c.reported(Client, 1, 34, 2)];
    let answered: fn(&mut Connection) -> _ = |c| {
        vec![c.headers(Server, 1, false, &RPC_OK), c.reported(Client, 1, 34, 2), c.reported(Server, 1, 51, 3)]
    };
    let unreported: fn(&mut Connection) -> _ = |c| vec![c.headers(Server, 1, false, &RPC_OK)];
    for (carried, bytes, messages) in [
        (begun, "none 34/0", "Some(2)/Some(0)"),
        (answered, "200 34/51", "Some(2)/Some(3)"),
        (unreported, "200 ?/?", "None/None"),
    ] {
        for is_reset in [true, false] {
            let mut c = Connection::server(7);
            let mut records = vec![c.at(20).headers(Client, 1, false, &CALL)];
            records.extend(carried(c.at(25)));
            let gone =
                if is_reset { c.at(30).reset(Client, 1, 8) } else { c.at(30).close(CLOSE_REMOTE, |_| {}) };
            records.push(gone);
            let expected = format!(
                "Server 1 POST /s.S/M? {bytes} 20-20-30 connection_closed rpc None  {messages} Some(2000000) cancelled"
            );
            check(&records, &[&expected]);
        }
    }
    // gRPC-Web: its status is in the body, but for trailers-only.
    let mut c = Connection::server(7);
    let web = [(":method", "POST"), (":path", "/s.S/M"), ("content-type", "application/grpc-web+proto")];
    let head = [(":status", "200"), ("content-type", "application/grpc-web+proto")];
    let records = [
        c.at(20).headers(Client, 1, false, &web),
        c.at(21).data_end(Client, 1, 9, 1),
        c.at(22).headers(Server, 1, false, &head),
        c.at(30).data_end(Server, 1, 9, 2),
        c.at(20).headers(Client, 3, true, &web),
        c.at(30).headers(Server, 3, true, &[&head[..], &[("grpc-status", "7")]].concat()),
    ];
    check(
        &records,
        &[
            "Server 1 POST /s.S/M? 200 9/9 20-20-30  rpc None  Some(1)/None None web",
            "Server 2 POST /s.S/M? 200 0/0 20-20-30  rpc Some(7)  Some(0)/None None web",
        ],
    );
}

#[test]
fn grpc_web_over_http1() {
    let server = Wire::server(7 << ORDINAL_BITS);
    let asked = "POST /s.S/M HTTP/1.1\r\nContent-Type: application/grpc-web\r\nGrpc-Timeout: 1S\r\n\r\n";
    let answered = "HTTP/1.1 200 OK\r\ngrpc-status: 3\r\ngrpc-message: bad\r\n\r\n";
    let plain = "HTTP/1.1 200 OK\r\n\r\n";
    for (answer, status) in [(answered, "Some(3) bad"), (plain, "None ")] {
        let records = vec![
            server.at(20).head(MESSAGE_REQUEST, FLAG_MESSAGE_END, asked),
            server.at(30).head(MESSAGE_RESPONSE, FLAG_MESSAGE_END, answer),
        ];
        let expected =
            format!("Server 0 POST /s.S/M? 200 0/0 20-20-30  rpc {status} None/None Some(1000000000) web");
        check(&[records], &[&expected]);
    }
}
