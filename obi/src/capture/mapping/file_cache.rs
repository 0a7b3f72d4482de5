//! The files that are open: each once, under whatever names it is mapped.
//!
//! In: open files. Out: [`ExecutableFile`]s. The same inode is the same file, and so are two with the same build id and
//! length (a container's copy of a library). Bounded. Refuses to know who maps them.
#![forbid(unsafe_code)]

use std::fs::File;
use std::io;
use std::sync::{Arc, Weak};

use foldhash::fast::RandomState;
use hashbrown::HashMap;

use super::file::{ExecutableFile, Identity};
use super::image::BuildIds;

/// Files that are remembered while they are held.
#[derive(Debug)]
pub struct FileCache {
    by_identity: HashMap<Identity, Weak<ExecutableFile>, RandomState>,
    by_build: HashMap<(BuildIds, u64), Weak<ExecutableFile>, RandomState>,
    /// Files at most.
    most: usize,
    next: u64,
}

/// What came of a file.
#[derive(Debug)]
pub enum Placed {
    /// It was there.
    Known(Arc<ExecutableFile>),
    /// It was not.
    New(Arc<ExecutableFile>),
    /// There is no room.
    Full,
}

impl FileCache {
    /// An empty one for so many files.
    #[must_use]
    pub fn new(most: usize) -> Self {
        Self { by_identity: HashMap::default(), by_build: HashMap::default(), most, next: 1 }
    }

    /// Finds a file's place. One that was let go gets its descriptor back.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn place(&mut self, path: &Arc<str>, file: File) -> io::Result<Placed> {
        let identity = Identity::of(&file)?;
        if let Some(known) = self.by_identity.get(&identity).and_then(Weak::upgrade) {
            known.hold(file);
            return Ok(Placed::Known(known));
        }
        if self.by_identity.len() >= self.most {
            self.sweep();
            if self.by_identity.len() >= self.most {
                return Ok(Placed::Full);
            }
        }
        let new = Arc::new(ExecutableFile::new(self.next, Arc::clone(path), file)?);
        if !new.build_ids.is_telling() {
            self.next += 1;
            self.by_identity.insert(identity, Arc::downgrade(&new));
            return Ok(Placed::New(new));
        }
        let build = (new.build_ids.clone(), identity.length);
        let twin = self.by_build.get(&build).and_then(Weak::upgrade);
        let known = twin.inspect(|twin| {
            if let Some(file) = new.take() {
                twin.hold(file);
            }
        });
        let file = known.as_ref().unwrap_or(&new);
        self.by_identity.insert(identity, Arc::downgrade(file));
        if let Some(twin) = known {
            return Ok(Placed::Known(twin));
        }
        self.next += 1;
        self.by_build.insert(build, Arc::downgrade(&new));
        Ok(Placed::New(new))
    }

    /// Names of files that are remembered.
    #[must_use]
    pub fn len(&self) -> usize {
        self.by_identity.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.by_identity.is_empty()
    }

    fn sweep(&mut self) {
        self.by_identity.retain(|_, file| file.strong_count() > 0);
        self.by_build.retain(|_, file| file.strong_count() > 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn program(folder: &std::path::Path, name: &str, build_id: &str) -> std::path::PathBuf {
        let path = folder.join(name);
        let command = format!(
            "echo 'int main(void){{return 0;}}' | gcc -x c -Wl,--build-id={build_id} - -o {}",
            path.display()
        );
        assert!(std::process::Command::new("sh").args(["-c", &command]).status().unwrap().success());
        path
    }

    #[test]
    fn one_build_is_one_file() {
        let folder = tempfile::tempdir().unwrap();
        let first = program(folder.path(), "first", "0x01");
        let copy = folder.path().join("copy");
        std::fs::copy(&first, &copy).unwrap();
        let link = folder.path().join("link");
        std::fs::hard_link(&first, &link).unwrap();
        let other = program(folder.path(), "other", "0x02");
        let mut file_cache = FileCache::new(3);
        let mut place = |path: &std::path::Path| match file_cache
            .place(&"x".into(), File::open(path).unwrap())
            .unwrap()
        {
            Placed::Known(file) => (file, false),
            Placed::New(file) => (file, true),
            Placed::Full => panic!("{}: full", path.display()),
        };
        let (file, is_new) = place(&first);
        assert!(is_new);
        for same in [&first, &copy, &link] {
            let (known, is_new) = place(same);
            assert!(!is_new && Arc::ptr_eq(&known, &file), "{}", same.display());
        }
        // Let go, and met again.
        file.let_go();
        place(&copy);
        assert!(file.handle().is_some());
        let (second, is_new) = place(&other);
        assert!(is_new && second.id != file.id);
        // Without room, and with room again once nobody holds the others.
        let third = program(folder.path(), "third", "0x03");
        assert!(matches!(file_cache.place(&"x".into(), File::open(&third).unwrap()).unwrap(), Placed::Full));
        drop((file, second));
        assert!(matches!(
            file_cache.place(&"x".into(), File::open(&third).unwrap()).unwrap(),
            Placed::New(_)
        ));
        assert_eq!(file_cache.len(), 1);
    }

    #[test]
    fn without_a_build_id_only_the_same_inode_is_the_same() {
        let folder = tempfile::tempdir().unwrap();
        let (first, second) = (folder.path().join("a"), folder.path().join("b"));
        std::fs::write(&first, "x").unwrap();
        std::fs::copy(&first, &second).unwrap();
        let mut file_cache = FileCache::new(10);
        let mut ids: Vec<u64> = Vec::new();
        let mut held = Vec::new();
        for path in [&first, &second, &first] {
            let placed = file_cache.place(&"x".into(), File::open(path).unwrap()).unwrap();
            let (Placed::Known(file) | Placed::New(file)) = placed else { panic!("full") };
            ids.push(file.id);
            held.push(file);
        }
        assert_eq!(ids[0], ids[2]);
        assert_ne!(ids[0], ids[1]);
    }
}
