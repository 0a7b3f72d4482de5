//! What a program was given when it began, as the kernel reported it then.
//!
//! In: the arguments and the environment of an exec. Out: [`ExecArguments`], which completes the [`Facts`] of a process
//! that had ended before the agent could look into `/proc`. Of the environment only a few variables are kept.

use super::facts::Facts;
use super::proc_text::{self, Variables};

/// Arguments and environment of a program that begins. Empty when the kernel did not say.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ExecArguments {
    command: Vec<String>,
    variables: Variables,
    /// The path that it was executed by; empty when it was not reported.
    path: String,
}

impl ExecArguments {
    /// From `bytes`: `n_arguments` of arguments, the environment behind them, `n_path` of the path at their end;
    /// `is_whole` when nothing of the environment was cut. Nothing in the bytes makes it fail.
    #[must_use]
    pub fn new(bytes: &[u8], (n_arguments, n_path): (usize, usize), is_whole: bool) -> Self {
        let (arguments, behind) = bytes.split_at(n_arguments.min(bytes.len()));
        let (environment, path) = behind.split_at(behind.len().saturating_sub(n_path));
        Self {
            command: proc_text::command(arguments),
            variables: proc_text::environment(environment, is_whole),
            path: proc_text::comm(path),
        }
    }

    /// Path of the executable, of a program that the kernel calls `comm`: not of a script, whose interpreter is another
    /// file, nor of one that was called by a path from somewhere.
    pub(super) fn executable(&self, comm: &str) -> Option<&str> {
        let (_, name) = self.path.starts_with('/').then(|| self.path.rsplit_once('/'))??;
        // The kernel hands it to its interpreter as an argument.
        let is_script = self.command.iter().skip(1).any(|argument| *argument == self.path);
        (!comm.is_empty() && name.starts_with(comm) && !is_script).then_some(&self.path)
    }

    /// Whether the process was about to end when `facts` were read: its memory goes before it does.
    pub(super) fn shows_end_of(&self, facts: &Facts) -> bool {
        facts.command.is_empty() && !facts.is_memory_late && !self.command.is_empty()
    }

    /// `facts`, with what could not be read any more of a process that was ending: its executable, its memory.
    pub(super) fn complete(&self, mut facts: Facts) -> Facts {
        if let Some(path) = self.executable(&facts.executable) {
            path.clone_into(&mut facts.executable);
        }
        let Facts { otel_service_name, otel_resource_attributes, host_name, .. } = &facts;
        if [otel_service_name, otel_resource_attributes, host_name].iter().any(|value| !value.is_empty()) {
            return facts;
        }
        let mut command = std::mem::take(&mut facts.command);
        if command.is_empty() {
            command.clone_from(&self.command);
        }
        facts.with_memory(command, self.variables.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(command: &str, name: &str) -> Facts {
        let words = |text: &str| text.split_whitespace().map(str::to_owned).collect();
        Facts { command: words(command), otel_service_name: name.to_owned(), ..Facts::default() }
    }

    #[test]
    fn what_was_read_stays_and_what_was_not_is_completed() {
        #[track_caller]
        fn check(bytes: &str, n_arguments: usize, read: (&str, &str), expected: (&str, &str)) {
            let given = ExecArguments::new(bytes.as_bytes(), (n_arguments, 0), true);
            assert_eq!(given.complete(named(read.0, read.1)), named(expected.0, expected.1), "{bytes:?}");
        }
        const BYTES: &str = "a\0b\0OTEL_SERVICE_NAME=shop\0";
        check(BYTES, 4, ("", ""), ("a b", "shop"));
        // Ended between the two reads.
        check(BYTES, 4, ("a b", ""), ("a b", "shop"));
        // Has written its own title since.
        check(BYTES, 4, ("title", "shop"), ("title", "shop"));
        check("", 0, ("a b", ""), ("a b", ""));
        check("", 0, ("", ""), ("", ""));
        check(BYTES, usize::MAX, ("", ""), ("a b OTEL_SERVICE_NAME=shop", ""));
    }

    #[test]
    fn an_executable_that_could_not_be_read_any_more_is_the_one_that_was_given() {
        #[track_caller]
        fn check(read: &str, expected: &str) {
            let given = ExecArguments::new(b"curl\0/usr/bin/curl\0", (5, 14), true);
            let facts = given.complete(Facts { executable: read.to_owned(), ..Facts::default() });
            assert_eq!(facts.executable, expected);
        }
        check("curl", "/usr/bin/curl");
        check("/opt/curl", "/opt/curl");
        check("other", "other");
    }

    #[test]
    fn a_variable_that_was_cut_is_not_looked_at() {
        let name = |is_whole| {
            ExecArguments::new(b"A=1\0OTEL_SERVICE_NAME=sh", (0, 0), is_whole).variables.service_name
        };
        assert_eq!((name(true), name(false)), ("sh".to_owned(), String::new()));
    }

    #[test]
    fn the_path_is_that_of_the_executable_or_none() {
        #[track_caller]
        fn check(command: &str, path: &str, comm: &str, expected: Option<&str>) {
            let bytes = [command, path].concat();
            let given = ExecArguments::new(bytes.as_bytes(), (command.len(), path.len()), true);
            assert_eq!(given.executable(comm), expected, "{command:?} {path:?}");
        }
        check("curl\0-s\0", "/usr/bin/curl\0", "curl", Some("/usr/bin/curl"));
        check("a\0", "/opt/a-name-of-many-letters\0", "a-name-of-many-", Some("/opt/a-name-of-many-letters"));
        check("/bin/sh\0/opt/job\0", "/opt/job\0", "job", None);
        check("env\0sh\0/opt/job\0", "/opt/job\0", "job", None);
        check("x\0", "./x\0", "x", None);
        check("x\0", "/proc/self/fd/3\0", "x", None);
        check("x\0", "", "x", None);
        check("x\0", "/bin/x\0", "", None);
        let given = ExecArguments::new(b"a\0", (1, usize::MAX), true);
        assert_eq!(given.executable("a"), None);
    }

    #[test]
    fn memory_that_is_gone_shows_an_end() {
        let given = ExecArguments::new(b"a\0", (2, 0), true);
        assert!(given.shows_end_of(&named("", "")));
        assert!(!given.shows_end_of(&named("a", "")));
        assert!(!ExecArguments::default().shows_end_of(&named("", "")));
        assert!(!given.shows_end_of(&Facts { is_memory_late: true, ..named("", "") }));
    }
}
