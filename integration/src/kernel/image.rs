//! One unpacked kernel: the file to boot and its modules.
//!
//! In: a folder with the contents of its packages. Out: paths, and the modules that a guest must load in order.
//! Refuses to know where it came from.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, bail};

use crate::process::run;

const LIMIT: Duration = Duration::from_secs(120);

/// What a guest needs before it can see this machine's files and talk to it.
const DRIVERS: [&str; 5] = ["virtio_pci", "virtiofs", "overlay", "virtio_console", "virtio_rng"];

/// A kernel on disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Image {
    /// What `uname -r` says in it.
    pub release: String,
    /// Compressed kernel.
    pub vmlinuz: PathBuf,
    /// Folder that contains `lib/modules/RELEASE`.
    pub root: PathBuf,
}

impl Image {
    /// Finds kernel and modules in `root`.
    ///
    /// # Errors
    /// When one of them is missing.
    pub fn open(root: &Path) -> anyhow::Result<Self> {
        let modules = root.join("lib/modules");
        let release = fs::read_dir(&modules)
            .with_context(|| format!("read {}", modules.display()))?
            .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
            .next()
            .with_context(|| format!("{} is empty", modules.display()))?;
        let candidates =
            [root.join(format!("boot/vmlinuz-{release}")), modules.join(&release).join("vmlinuz")];
        let Some(vmlinuz) = candidates.iter().find(|path| path.is_file()) else {
            bail!("no kernel at {}", candidates.map(|path| path.display().to_string()).join(" or "));
        };
        Ok(Self { vmlinuz: vmlinuz.clone(), root: root.to_owned(), release })
    }

    /// Prepares freshly unpacked packages: modules where `modprobe` looks, with the index that it needs.
    ///
    /// # Errors
    /// When kernel or modules are missing, or `depmod` fails.
    pub fn prepare(root: &Path) -> anyhow::Result<Self> {
        let modules = root.join("lib/modules");
        if !modules.is_dir() {
            fs::create_dir_all(root.join("lib"))?;
            fs::rename(root.join("usr/lib/modules"), &modules)
                .with_context(|| format!("find the modules in {}", root.display()))?;
        }
        let image = Self::open(root)?;
        let mut depmod = Command::new("depmod");
        depmod.arg("-b").arg(root).arg(&image.release);
        run("depmod", depmod, LIMIT)?;
        Ok(image)
    }

    /// Files of the modules that a guest has to load, in this order.
    ///
    /// # Errors
    /// When the kernel lacks one of them.
    pub fn drivers(&self) -> anyhow::Result<Vec<PathBuf>> {
        let mut files = Vec::new();
        for driver in DRIVERS {
            let mut modprobe = Command::new("modprobe");
            modprobe.args(["--set-version", &self.release, "--show-depends", "--dirname"]);
            modprobe.arg(&self.root).arg(driver);
            for file in module_files(&run("modprobe", modprobe, LIMIT)?) {
                if !files.contains(&file) {
                    files.push(file);
                }
            }
        }
        Ok(files)
    }
}

/// What `modprobe --show-depends` would load; what is built in needs no file.
fn module_files(lines: &[String]) -> Vec<PathBuf> {
    let file = |line: &String| Some(PathBuf::from(line.strip_prefix("insmod ")?.split(' ').next()?));
    lines.iter().filter_map(file).collect()
}

/// Copies `from` to `to`, decompressed by the ending of its name.
///
/// # Errors
/// When the decompressor is missing or refuses.
pub fn decompress(from: &Path, to: &Path) -> anyhow::Result<()> {
    let tool = match from.extension().and_then(|extension| extension.to_str()) {
        Some("xz") => "xz",
        Some("zst") => "zstd",
        Some("gz") => "gzip",
        _ => "cat",
    };
    let mut command = Command::new(tool);
    if tool != "cat" {
        command.arg("-dc");
    }
    let status = command
        .stdin(fs::File::open(from).with_context(|| format!("open {}", from.display()))?)
        .stdout(fs::File::create(to).with_context(|| format!("create {}", to.display()))?)
        .stderr(Stdio::inherit())
        .status()
        .with_context(|| format!("run {tool}"))?;
    if !status.success() {
        bail!("{tool} failed on {}: {status}", from.display());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modules_come_in_the_order_of_modprobe() {
        let check = |lines: &[&str], expected: &[&str]| {
            let lines: Vec<String> = lines.iter().map(ToString::to_string).collect();
            let expected: Vec<PathBuf> = expected.iter().map(PathBuf::from).collect();
            assert_eq!(module_files(&lines), expected);
        };
        check(
            &["insmod /k/virtio.ko.xz ", "insmod /k/virtio_ring.ko.xz debug=1", "insmod /k/virtio_pci.ko"],
            &["/k/virtio.ko.xz", "/k/virtio_ring.ko.xz", "/k/virtio_pci.ko"],
        );
        check(&["builtin virtio_pci"], &[]);
        check(&[], &[]);
    }

    #[test]
    fn a_kernel_is_found_in_either_packaging() {
        let check = |files: &[&str], expected: Option<&str>| {
            let root = tempfile::tempdir().unwrap();
            for file in files {
                let path = root.path().join(file);
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                fs::write(path, "").unwrap();
            }
            let image = Image::prepare(root.path());
            let found = image.as_ref().ok().map(|image| image.vmlinuz.strip_prefix(root.path()).unwrap());
            assert_eq!(found, expected.map(Path::new), "{files:?}: {image:?}");
            assert!(image.is_err() || image.is_ok_and(|image| image.release == "1.2"));
        };
        check(&["boot/vmlinuz-1.2", "lib/modules/1.2/a.ko"], Some("boot/vmlinuz-1.2"));
        check(&["usr/lib/modules/1.2/vmlinuz", "usr/lib/modules/1.2/a.ko"], Some("lib/modules/1.2/vmlinuz"));
        check(&["boot/vmlinuz-1.3", "lib/modules/1.2/a.ko"], None);
        check(&["boot/vmlinuz-1.2"], None);
    }
}
