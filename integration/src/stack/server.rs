//! A server over HTTP/1 with a thread per connection, whose routes have hot functions of their own.
//!
//! In: a seeded generator. Out: a running server, its routes and what they spend their time in. Refuses to know who
//! asks.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::process::Command;

use anyhow::Context as _;
use fastrand::Rng;
use tempfile::TempDir;

use super::Language;
use super::build::native;
use super::tree::word;
use crate::process::{Program, READY};

/// A path of the server, and the function that only it calls.
#[derive(Debug, Clone)]
pub struct Route {
    /// As it is asked for.
    pub path: String,
    /// Name of what it spends its time in.
    pub hot: String,
}

/// It runs. Dropping it kills it.
#[derive(Debug)]
pub struct HotServer {
    /// Name of its executable, and so its service.
    pub service: String,
    /// Where it listens.
    pub address: SocketAddr,
    /// What it serves.
    pub routes: Vec<Route>,
    _program: Program,
    _folder: TempDir,
}

const SOURCE: &str = r#"
#include <arpa/inet.h>
#include <netinet/in.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#define KEEP __attribute__((noinline, noipa, used))
typedef unsigned long word;
static volatile word sink;
ROUTES
static void *serve(void *argument) {
	int connection = (int)(long)argument;
	char request[4096];
	const char answer[] = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";
	/* Asked with one segment, answered with one. */
	for (ssize_t n; (n = recv(connection, request, sizeof(request) - 1, 0)) > 0;) {
		char *rounds = memchr(request, '?', (size_t)n);
		request[n] = 0;
		work(request, rounds ? strtoul(rounds + 1, 0, 10) : 0);
		if (send(connection, answer, sizeof(answer) - 1, MSG_NOSIGNAL) < 0)
			break;
	}
	close(connection);
	return 0;
}
int main(void) {
	struct sockaddr_in address = { .sin_family = AF_INET, .sin_addr = { htonl(INADDR_LOOPBACK) } };
	socklen_t length = sizeof(address);
	int listener = socket(AF_INET, SOCK_STREAM, 0), connection;
	pthread_attr_t detached;
	pthread_attr_init(&detached);
	pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED);
	bind(listener, (struct sockaddr *)&address, sizeof(address));
	listen(listener, 100);
	getsockname(listener, (struct sockaddr *)&address, &length);
	printf("ready %d\n", ntohs(address.sin_port)); fflush(stdout);
	while ((connection = accept(listener, 0, 0)) >= 0) {
		pthread_t thread;
		if (pthread_create(&thread, &detached, serve, (void *)(long)connection)) close(connection);
	}
	return 1;
}
"#;

impl HotServer {
    /// Compiles and starts one with two routes. `/NAME?ROUNDS` spins so many rounds of some nanoseconds.
    ///
    /// # Errors
    /// When the compiler is missing, or the server does not start.
    pub fn start(rng: &mut Rng) -> anyhow::Result<Self> {
        let service = format!("h{:010x}", rng.u64(..1 << 40));
        let routes: Vec<Route> =
            (0..2).map(|_| Route { path: format!("/{}", word(rng)), hot: word(rng) }).collect();
        let folder = tempfile::tempdir().context("make a folder for a server")?;
        let path = folder.path().join(&service);
        let text = SOURCE.replace("ROUTES", &definitions(&routes));
        native(folder.path(), Language::C, &text, &path, &["-O2", "-fomit-frame-pointer"])?;
        let mut program = Program::spawn(&service, Command::new(&path))?;
        let port: u16 = program.await_line("ready ", READY)?.parse().context("a port")?;
        let address = SocketAddr::from(([127, 0, 0, 1], port));
        Ok(Self { service, address, routes, _program: program, _folder: folder })
    }
}

fn definitions(routes: &[Route]) -> String {
    let mut text = String::new();
    let mut choice = String::from("static void work(const char *request, word n) {\n");
    for (number, Route { path, hot }) in routes.iter().enumerate() {
        let _ = writeln!(
            text,
            "KEEP static word {hot}(word n) {{\n\tword x = n;\n\tfor (word i = 0; i < n; i++)\n\
             \t\tx = x * 6364136223846793005ul + i;\n\treturn x + {number};\n}}"
        );
        let _ = writeln!(
            choice,
            "\tif (!strncmp(request, \"GET {path}?\", {})) sink += {hot}(n);",
            path.len() + 5
        );
    }
    text + &choice + "}\n"
}
