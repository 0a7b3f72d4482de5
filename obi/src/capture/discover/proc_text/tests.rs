//! Texts as kernels and programs write them.

use proptest::prelude::*;

use super::*;

#[test]
fn stat_survives_any_name() {
    fn check(comm: &str, state: &str, flags: u64, kernel: bool, ended: bool) {
        let text = format!("42 ({comm}) {state} 7 42 42 0 -1 {flags} 1 2 3 4 5 6 7 8 20 0 1 0 123456 1 2 3");
        let expected = Stat { comm: comm.to_owned(), parent: 7, start: 123_456, kernel, ended };
        assert_eq!(stat(text.as_bytes()), Some(expected), "{text}");
    }
    check("nginx", "S", 4_194_304, false, false);
    check("a) S 9 (b", "R", 0, false, false);
    check("", "R", 0, false, false);
    check("kworker/0:1", "I", 0x0420_8060 | KERNEL_THREAD, true, false);
    check("python3", "Z", 0, false, true);
    for broken in ["", "42", "42 (a", "42 (a) S", ") (", "42 (a) S x 1 2 3"] {
        assert_eq!(stat(broken.as_bytes()), None, "{broken:?}");
    }
}

#[test]
fn the_control_group_that_tells_most() {
    fn check(text: &str, expected: &str) {
        assert_eq!(cgroup(text.as_bytes()), expected, "{text:?}");
    }
    check("0::/system.slice/nginx.service\n", "/system.slice/nginx.service");
    check("12:pids:/a/long/path\n1:name=systemd:/system.slice/x.service\n0::/\n", "/system.slice/x.service");
    check("1:name=systemd:/old\n0::/new\n", "/new");
    check("4:memory:/docker/0123\n3:cpu:/docker\n", "/docker/0123");
    check("0::/a:b\n", "/a:b");
    check("0::/\n", "");
    check("nonsense", "");
    check("", "");
}

#[test]
fn command_lines() {
    fn check(bytes: &[u8], expected: &[&str]) {
        assert_eq!(command(bytes), expected, "{:?}", String::from_utf8_lossy(bytes));
    }
    check(b"python3\0-m\0http.server\0", &["python3", "-m", "http.server"]);
    check(b"sh\0-c\0\0", &["sh", "-c"]);
    check(b"nginx: worker process\0\0\0\0", &["nginx: worker process"]);
    check(b"a\0\0b\0", &["a", "", "b"]);
    check(b"no end", &["no end"]);
    check(b"", &[]);
    check(b"\0\0\0", &[]);
    check(b"a\nb\0", &["a\u{fffd}b"]);
    let class_path = [b"java\0-cp\0".as_slice(), &[b'x'; 50_000], b"\0Main\0"].concat();
    let java = command(&class_path);
    assert_eq!((java.len(), java[2].len(), java[3].as_str()), (4, 512, "Main"));
}

#[test]
fn environments() {
    fn check(text: &str, whole: bool, expected: (&str, &str, &str, bool)) {
        let found = environment(text.replace(' ', "\0").as_bytes(), whole);
        let found = (
            found.service_name.as_str(),
            found.resource_attributes.as_str(),
            found.host_name.as_str(),
            found.kubernetes,
        );
        assert_eq!(found, expected, "{text}");
    }
    check("PATH=/bin OTEL_SERVICE_NAME=shop TOKEN=secret", true, ("shop", "", "", false));
    check("OTEL_SERVICE_NAME=a OTEL_SERVICE_NAME=b", true, ("a", "", "", false));
    check("OTEL_RESOURCE_ATTRIBUTES=a=b,c=d HOSTNAME=h", true, ("", "a=b,c=d", "", false));
    check("HOSTNAME=cart-0 KUBERNETES_SERVICE_HOST=10.0.0.1 ", true, ("", "", "cart-0", true));
    check("A=1 OTEL_SERVICE_NAME=sh", false, ("", "", "", false));
    check("OTEL_EXPORTER_OTLP_HEADERS=key=secret", true, ("", "", "", false));
    check("nonsense =x", true, ("", "", "", false));
    check("", false, ("", "", "", false));
}

const TCP: &str = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 12345 1 0 100 0 0 10 0
   1: 00000000000000000000000000000000:0050 00000000000000000000000000000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 12346 1
   2: 0100007F:1F91 0100007F:9999 01 00000000:00000000 00:00000000 00000000     0        0 12347 1
   3: 0100007F:1F92 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 12348 1
";

#[test]
fn listening_sockets_come_first() {
    let expected = [Listener { port: 8080, inode: 12345 }, Listener { port: 80, inode: 12346 }];
    assert_eq!(listeners(TCP.as_bytes()), expected);
    assert_eq!(listeners(b""), []);
    assert_eq!(listeners(b"header\n   0: garbage\n"), []);
}

#[test]
fn links() {
    assert_eq!(socket_inode(b"socket:[77]"), Some(77));
    for other in [b"pipe:[77]".as_slice(), b"socket:[]", b"socket:[x]", b"/dev/null", b""] {
        assert_eq!(socket_inode(other), None);
    }
    assert_eq!(executable(b"/usr/bin/nginx (deleted)"), "/usr/bin/nginx");
    assert_eq!(executable(b"/opt/a b"), "/opt/a b");
    assert_eq!(comm(b"curl\0\0\0\0garbage"), "curl");
}

proptest! {
    #[test]
    fn nothing_panics_and_everything_is_bounded(bytes in proptest::collection::vec(any::<u8>(), 0..6_000), whole: bool) {
        stat(&bytes);
        prop_assert!(cgroup(&bytes).len() <= 4096);
        // A replacement character takes three bytes.
        prop_assert!(command(&bytes).iter().map(String::len).sum::<usize>() <= COMMAND_BYTES);
        let found = environment(&bytes, whole);
        prop_assert!(found.service_name.len() <= COMMAND_BYTES);
        listeners(&bytes);
        socket_inode(&bytes);
        executable(&bytes);
        comm(&bytes);
    }

    #[test]
    fn arguments_come_back(arguments in proptest::collection::vec("[a-z ./=:-]{1,60}", 1..30)) {
        let bytes = arguments.iter().flat_map(|argument| argument.bytes().chain([0])).collect::<Vec<u8>>();
        prop_assert_eq!(command(&bytes), arguments);
    }

    #[test]
    fn a_variable_is_found_among_others(
        before in proptest::collection::vec("[A-Z_]{1,20}=[a-z=]{0,40}", 0..20),
        value in "[a-z0-9-]{1,60}",
    ) {
        let bytes = format!("{}\0OTEL_SERVICE_NAME={value}\0Z=1\0", before.join("\0"));
        prop_assert_eq!(environment(bytes.as_bytes(), true).service_name, value);
    }
}
