//! Kernels from Debian's archive, kept by version.
//!
//! In: a release. Out: an unpacked image. Apt works on lists and state of its own, so that this machine's sources and
//! packages play no part and do not change. Refuses to go on without a kernel that was asked for.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, bail};

use super::image::Image;
use super::release::{self, Package, Release};
use crate::process::run;
use crate::seed::note;

const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";
/// Lists and packages of one suite on a slow line.
const LIMIT: Duration = Duration::from_secs(600);
/// How long a suite's newest kernel counts as the newest.
const FRESH: Duration = Duration::from_secs(24 * 3600);

/// Where kernels are kept: `$XDG_CACHE_HOME/obi-kernels`, by default in `~/.cache`.
///
/// # Errors
/// When it cannot be made.
pub fn cache() -> anyhow::Result<PathBuf> {
    let base = match std::env::var_os("XDG_CACHE_HOME") {
        Some(base) => PathBuf::from(base),
        None => PathBuf::from(std::env::var_os("HOME").context("HOME is not set")?).join(".cache"),
    };
    let cache = base.join("obi-kernels");
    fs::create_dir_all(&cache).with_context(|| format!("make {}", cache.display()))?;
    Ok(cache.canonicalize()?)
}

/// The newest kernel of `release`: from the cache when it was looked up within a day, else from the archive.
///
/// # Errors
/// When neither has it.
pub fn fetch(release: &Release) -> anyhow::Result<Image> {
    let cache = cache()?;
    let newest = cache.join(format!("newest-{}", release.series));
    let is_fresh = fs::metadata(&newest)
        .and_then(|meta| meta.modified())
        .is_ok_and(|looked_up| looked_up.elapsed().is_ok_and(|age| age < FRESH));
    if let Ok(id) = fs::read_to_string(&newest)
        && is_fresh
        && let Ok(image) = Image::open(&cache.join(id))
    {
        return Ok(image);
    }
    let apt = Apt::new(release, &cache)?;
    let (id, image) = look_up(&apt, release, &cache)
        .with_context(|| format!("get the newest {} kernel of Debian {}", release.series, release.suite))?;
    fs::write(&newest, id)?;
    Ok(image)
}

fn look_up(apt: &Apt, release: &Release, cache: &Path) -> anyhow::Result<(String, Image)> {
    apt.run("apt-get", &["update"], None)?;
    let newest_image = release.architecture.newest_image();
    let newest = apt.show(&newest_image)?;
    let name = newest.image().with_context(|| format!("{newest_image} depends on no image"))?;
    let package = apt.show(name)?;
    let id = format!("{name}_{}", package.version);
    let root = cache.join(&id);
    if let Ok(image) = Image::open(&root) {
        return Ok((id, image));
    }
    note(&format!("fetching {id} for {}", release.series));
    let unfinished = tempfile::tempdir_in(cache)?;
    let packages: Vec<&str> = package.parts().into_iter().chain([name]).collect();
    apt.unpack(&packages, unfinished.path())?;
    Image::prepare(unfinished.path())?;
    fs::rename(unfinished.path(), &root).with_context(|| format!("keep {}", root.display()))?;
    Ok((id, Image::open(&root)?))
}

/// Apt for one suite and architecture.
#[derive(Debug)]
pub(super) struct Apt {
    options: Vec<String>,
    /// Where it keeps what it fetches with dependencies.
    archives: PathBuf,
}

impl Apt {
    pub(super) fn new(release: &Release, cache: &Path) -> anyhow::Result<Self> {
        if !Path::new(KEYRING).is_file() {
            bail!("{KEYRING} is missing: install debian-archive-keyring");
        }
        let architecture = release.architecture.debian();
        let folder = cache.join("apt").join(format!("{}-{architecture}", release.suite));
        fs::create_dir_all(folder.join("lists/partial"))?;
        fs::create_dir_all(folder.join("cache/archives/partial"))?;
        fs::write(folder.join("status"), "")?;
        let list = release.source_list(release::mirror(&own_sources()), KEYRING);
        fs::write(folder.join("sources.list"), list)?;
        let at = |name: &str| folder.join(name).display().to_string();
        let options = [
            ("Dir::Etc::SourceList", at("sources.list")),
            ("Dir::Etc::SourceParts", "/dev/null".to_owned()),
            ("Dir::State", folder.display().to_string()),
            ("Dir::State::status", at("status")),
            ("Dir::State::Lists", at("lists")),
            ("Dir::Cache", at("cache")),
            ("APT::Architecture", architecture.to_owned()),
            ("APT::Architectures", architecture.to_owned()),
            // The folder may be closed to apt's own user.
            ("APT::Sandbox::User", "root".to_owned()),
            ("Acquire::Languages", "none".to_owned()),
            ("Acquire::Retries", "3".to_owned()),
        ];
        let options = options.map(|(name, value)| format!("-o{name}={value}")).to_vec();
        Ok(Self { options, archives: folder.join("cache/archives") })
    }

    pub(super) fn run(
        &self,
        tool: &str,
        arguments: &[&str],
        folder: Option<&Path>,
    ) -> anyhow::Result<Vec<String>> {
        let mut command = Command::new(tool);
        command.arg("-qq").args(&self.options).args(arguments).env("LC_ALL", "C");
        if let Some(folder) = folder {
            command.current_dir(folder);
        }
        run(&format!("{tool} {}", arguments.join(" ")), command, LIMIT)
    }

    fn show(&self, name: &str) -> anyhow::Result<Package> {
        let lines = self.run("apt-cache", &["show", name], None)?;
        Package::parse(&lines.join("\n")).with_context(|| format!("apt knows no version of {name}"))
    }

    /// Fetches packages and unpacks them into `root`.
    fn unpack(&self, names: &[&str], root: &Path) -> anyhow::Result<()> {
        let fetched = tempfile::tempdir()?;
        let arguments: Vec<&str> = ["download"].into_iter().chain(names.iter().copied()).collect();
        self.run("apt-get", &arguments, Some(fetched.path()))?;
        unpack_all(fetched.path(), root)
    }

    /// The same with all that they depend on, onto a root where nothing is.
    pub(super) fn unpack_with_dependencies(&self, names: &[&str], root: &Path) -> anyhow::Result<()> {
        let install = ["install", "--yes", "--download-only", "--no-install-recommends"];
        let arguments: Vec<&str> = install.into_iter().chain(names.iter().copied()).collect();
        self.run("apt-get", &arguments, None)?;
        unpack_all(&self.archives, root)?;
        self.run("apt-get", &["clean"], None)?;
        Ok(())
    }
}

/// Unpacks every package of a folder. In the order of their names, so that `base-files` brings the links of `/bin` and
/// `/lib` into `/usr` before others put files there.
fn unpack_all(folder: &Path, root: &Path) -> anyhow::Result<()> {
    let files = fs::read_dir(folder)?.filter_map(|entry| Some(entry.ok()?.path()));
    let mut files: Vec<PathBuf> =
        files.filter(|file| file.extension().is_some_and(|extension| extension == "deb")).collect();
    files.sort();
    for file in files {
        let mut unpack = Command::new("dpkg-deb");
        unpack.arg("--extract").arg(file).arg(root);
        run("dpkg-deb", unpack, LIMIT)?;
    }
    Ok(())
}

/// All source lists of this machine, one after another.
fn own_sources() -> String {
    let parts = fs::read_dir("/etc/apt/sources.list.d").into_iter().flatten().flatten();
    let mut parts: Vec<PathBuf> = parts.map(|entry| entry.path()).collect();
    parts.sort();
    let files = [PathBuf::from("/etc/apt/sources.list")].into_iter().chain(parts);
    files.filter_map(|file| fs::read_to_string(file).ok()).collect()
}
