//! What the demo's agent watches over: objectives in a folder of their own, which goes with the demo.
//!
//! In: the text beside this file. Out: variables for `obi run`. Refuses to change what the user has configured.

use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::PathBuf;

use anyhow::Context as _;

const OBJECTIVES: &str = include_str!("objectives.yaml");
const FILES: &str = "OBI_SLO_FILES";
const STATE: &str = "OBI_SLO_STATE";

/// The folder of the objectives and of their counts; it goes when this does.
#[derive(Debug)]
pub(super) struct Promise(PathBuf);

impl Promise {
    /// Writes the objectives; `None` where the user has objectives of their own.
    ///
    /// # Errors
    /// When the folder for temporary files cannot be written to.
    pub(super) fn new() -> anyhow::Result<Option<Self>> {
        if std::env::var_os(FILES).is_some() || std::env::var_os(STATE).is_some() {
            return Ok(None);
        }
        let folder = std::env::temp_dir().join(format!("obi-demo-{:016x}", fastrand::u64(..)));
        // Fails where something is in its place, a link for instance.
        fs::DirBuilder::new()
            .mode(0o700)
            .create(&folder)
            .with_context(|| format!("failed to make `{}` for the demo's objectives", folder.display()))?;
        let promise = Self(folder);
        fs::write(promise.file(), OBJECTIVES)
            .with_context(|| format!("failed to write `{}`", promise.file().display()))?;
        Ok(Some(promise))
    }

    /// Variables of the agent.
    pub(super) fn variables(&self) -> [(&'static str, OsString); 2] {
        // A list, as in YAML.
        let files = format!("[\"{}\"]", self.file().display());
        [(FILES, files.into()), (STATE, self.0.join("state").into_os_string())]
    }

    fn file(&self) -> PathBuf {
        self.0.join("objectives.yaml")
    }
}

impl Drop for Promise {
    fn drop(&mut self) {
        // What stays is in a folder for temporary files.
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::objective::files;

    #[test]
    fn the_agent_understands_it() {
        let promise = Promise::new().unwrap().expect("tests have no such variables");
        let file = promise.file();
        let reading = files::load(&[file.display().to_string()]).unwrap();
        assert!(reading.findings.is_empty(), "{:?}", reading.findings);
        let names: Vec<&str> = reading.objectives.iter().map(|objective| &*objective.name).collect();
        assert_eq!(names, ["search-is-fast", "shop-answers"]);
        assert_eq!(promise.variables()[0].1, format!("[\"{}\"]", file.display()).as_str());
        drop(promise);
        assert!(!file.exists());
    }
}
