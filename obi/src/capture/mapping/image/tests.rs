//! Files made here, as others read them.

use std::io::Read as _;
use std::process::Command;

use proptest::prelude::*;

use super::*;

fn output(command: &str) -> String {
    let output = Command::new("sh").args(["-c", command]).output().unwrap();
    assert!(output.status.success(), "{command}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn build_ids_and_segments_are_what_others_read() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("program");
    let path = path.to_str().unwrap();
    output(&format!("echo 'int main(void){{return 0;}}' | gcc -x c -Wl,--build-id=0xc0ffee - -o {path}"));
    let bytes = std::fs::read(path).unwrap();
    let image = Image::read(&bytes.as_slice()).unwrap();
    assert_eq!((image.build_ids.gnu.as_str(), image.build_ids.go.as_str()), ("c0ffee", ""));
    // The hash by its definition, with other tools.
    let hash = output(&format!(
        "(head -c 4096 {path}; tail -c 4096 {path}; printf '%016x' $(stat -c %s {path}) | xxd -r -p) | sha256sum"
    ));
    assert_eq!(image.build_ids.htlhash, hash[..32]);
    let code = image.segments.iter().find(|segment| segment.is_code).unwrap();
    assert_eq!(image.address(code.offset + 5), Some(code.address + 5));
    assert_eq!(image.address(u64::MAX), None);
    // A position in the file that only a segment of data has.
    let data = image.segments.iter().rfind(|segment| !segment.is_code).unwrap();
    assert_eq!(image.address(data.offset + 1), Some(data.address + 1));
}

#[test]
fn a_note_of_go_is_read() {
    fn note(name: &[u8; 4], kind: u32, value: &[u8]) -> Vec<u8> {
        let length = u32::try_from(value.len()).unwrap();
        let mut note =
            [&4_u32.to_le_bytes(), &length.to_le_bytes(), &kind.to_le_bytes(), &name[..], value].concat();
        note.resize(note.len().next_multiple_of(4), 0);
        note
    }
    let bytes =
        [note(b"GNU\0", 5, &[1; 7]), note(b"Go\0\0", 4, b"a/b/c"), note(b"GNU\0", 3, &[0xab, 1])].concat();
    let found: Vec<_> =
        notes(&bytes, 4).map(|note| (note.name.to_vec(), note.kind, note.value.to_vec())).collect();
    assert_eq!(found[1], (b"Go\0\0".to_vec(), 4, b"a/b/c".to_vec()));
    assert_eq!((found.len(), &found[2].2), (3, &vec![0xab, 1]));
    assert_eq!(notes(&bytes[..bytes.len() - 3], 4).count(), 2);
}

#[test]
fn a_small_file_is_hashed_whole_twice() {
    let file: &[u8] = b"abc";
    let expected = output("printf 'abcabc\\000\\000\\000\\000\\000\\000\\000\\003' | sha256sum");
    assert_eq!(htlhash(&file).unwrap(), expected[..32]);
}

proptest! {
    #[test]
    fn damaged_files_are_read_or_refused(damage in prop::collection::vec((any::<u16>(), any::<u8>()), 1..40)) {
        let mut bytes = Vec::new();
        // The whole program is hundreds of megabytes.
        std::fs::File::open("/proc/self/exe").unwrap().take(64 * 1024).read_to_end(&mut bytes).unwrap();
        for (at, value) in damage {
            // The headers, mostly.
            bytes[usize::from(at) % 1024] = value;
        }
        if let Ok(image) = Image::read(&bytes.as_slice()) {
            prop_assert!(image.segments.len() <= SEGMENTS && image.build_ids.gnu.len() <= 2 * ID_BYTES);
            let _ = image.address(u64::MAX - 1);
        }
        let _ = Image::read(&&bytes[..100]);
    }
}
