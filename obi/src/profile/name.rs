//! What parts of a sample are called outside: words of the semantic conventions, attributes of a process.
//!
//! In: values. Out: words, and the other way round. Refuses to know which format they are written in.

use std::sync::Arc;

use super::{Fidelity, Origin, Runtime, Selection};
use crate::span::{AttributeValue, Instance, Service};

const PID: &str = "process.pid";
const EXECUTABLE: &str = "process.executable.name";

impl Runtime {
    /// All of them.
    pub const ALL: [Self; 8] =
        [Self::Kernel, Self::Native, Self::Go, Self::Rust, Self::V8, Self::Jvm, Self::Dotnet, Self::Cpython];

    /// Value of `profile.frame.type` (semantic conventions, registry of profiles).
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Kernel => "kernel",
            Self::Native => "native",
            Self::Go => "go",
            Self::Rust => "rust",
            Self::V8 => "v8js",
            Self::Jvm => "jvm",
            Self::Dotnet => "dotnet",
            Self::Cpython => "cpython",
        }
    }

    /// The other way round; `None` for runtimes that we do not distinguish.
    #[must_use]
    pub fn of_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|runtime| runtime.name() == name)
    }
}

impl Fidelity {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Lines, Self::Function, Self::Address, Self::Marker];

    /// Its word.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Lines => "lines",
            Self::Function => "function",
            Self::Address => "address",
            Self::Marker => "marker",
        }
    }

    /// The other way round.
    #[must_use]
    pub fn of_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|fidelity| fidelity.name() == name)
    }
}

impl Origin {
    /// `service.version`, of this process or of all of its service.
    #[must_use]
    pub fn version(&self) -> Option<&str> {
        self.instance.version(&self.service)
    }

    /// Calls `visit` with each attribute of the process's resource: those of its spans, and its number and executable
    /// where these are not among them.
    pub fn attributes(&self, mut visit: impl FnMut(&str, AttributeValue<'_>)) {
        let Self { pid, service, instance, executable } = self;
        visit("service.name", AttributeValue::Str(&service.name));
        if !service.namespace.is_empty() {
            visit("service.namespace", AttributeValue::Str(&service.namespace));
        }
        let own = &instance.attributes;
        let shared = service.attributes.iter().filter(|(key, _)| own.iter().all(|(held, _)| held != *key));
        let (mut has_pid, mut has_executable) = (false, false);
        for (key, value) in own.iter().chain(shared) {
            has_pid |= key == PID;
            has_executable |= key == EXECUTABLE;
            visit(key, value);
        }
        if !has_pid {
            visit(PID, AttributeValue::Int((*pid).into()));
        }
        if !has_executable && !executable.is_empty() {
            visit(EXECUTABLE, AttributeValue::Str(executable));
        }
    }

    /// The process that such attributes are of; all but the service's name and namespace are in `instance`.
    #[must_use]
    pub fn of_attributes(service: Service, instance: Instance) -> Self {
        let pid = instance.attributes.iter().find_map(|(key, value)| match value {
            AttributeValue::Int(pid) if key == PID => u32::try_from(pid).ok(),
            _ => None,
        });
        let executable = instance.attributes.get(EXECUTABLE).unwrap_or_default().into();
        Self { pid: pid.unwrap_or(0), service: Arc::new(service), instance: Arc::new(instance), executable }
    }
}

impl Selection {
    /// Puts samples into the order of time; those of one moment by process, thread and CPU.
    pub fn sort(&mut self) {
        self.samples.sort_by_key(|sample| (sample.time, sample.origin.pid, sample.tid, sample.cpu));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_lead_back() {
        for runtime in Runtime::ALL {
            assert_eq!(Runtime::of_name(runtime.name()), Some(runtime));
        }
        for fidelity in Fidelity::ALL {
            assert_eq!(Fidelity::of_name(fidelity.name()), Some(fidelity));
        }
        assert_eq!((Runtime::of_name("beam"), Fidelity::of_name("")), (None, None));
    }
}
