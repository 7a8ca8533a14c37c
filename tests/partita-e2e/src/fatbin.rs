//! Changes the PTX inside an executable's fatbin, to prove that this text is what runs.
//!
//! The layout of a fatbin is the one measured on nvcc 13.5: a container of entries, each with a
//! header that gives its size. PTX is kind 1; flag 0x8000 marks it as compressed with zstd.

const CONTAINER: [u8; 4] = 0xBA55_ED50_u32.to_le_bytes();
const KIND_PTX: u16 = 1;
const FLAG_ZSTD: u64 = 0x8000;

/// Replaces `from` by `to` in every zstd-compressed PTX entry that contains it and returns how many
/// entries it was. The new text must not compress to more bytes than the old entry has room for.
///
/// # Panics
/// Where an entry is damaged or the new text does not fit.
pub fn patch_ptx(executable: &mut [u8], from: &str, to: &str) -> usize {
    let mut patched = 0;
    let mut at = 0;
    while let Some(found) = find(&executable[at..], &CONTAINER) {
        let container = at + found;
        at = container + 4;
        let header = usize::from(read_u16(executable, container + 6));
        let body = usize::try_from(read_u64(executable, container + 8)).unwrap_or(usize::MAX);
        // The magic number may also stand in code: what does not look like a container is passed
        // over.
        if header != 16 || body > executable.len() - container - 16 {
            continue;
        }
        let mut entry = container + header;
        while entry < container + header + body {
            let header = usize::try_from(read_u32(executable, entry + 4)).expect("fits");
            let payload = usize::try_from(read_u64(executable, entry + 8)).expect("fits");
            let is_ptx = read_u16(executable, entry) == KIND_PTX;
            if is_ptx && read_u64(executable, entry + 40) & FLAG_ZSTD != 0 {
                patched += usize::from(patch_entry(
                    &mut executable[entry..][..header + payload],
                    header,
                    from,
                    to,
                ));
            }
            entry += header + payload;
        }
        at = entry;
    }
    patched
}

fn patch_entry(entry: &mut [u8], header: usize, from: &str, to: &str) -> bool {
    let compressed = usize::try_from(read_u32(entry, 16)).expect("fits");
    let text = zstd::decode_all(&entry[header..header + compressed]).expect("the entry is whole");
    let text = String::from_utf8(text).expect("PTX is text");
    if !text.contains(from) {
        return false;
    }
    let new =
        zstd::encode_all(text.replace(from, to).as_bytes(), 19).expect("text can be compressed");
    assert!(new.len() <= entry.len() - header, "the changed PTX does not fit into its entry");
    entry[header..].fill(0);
    entry[header..header + new.len()].copy_from_slice(&new);
    let size = u32::try_from(new.len()).expect("smaller than the entry");
    entry[16..20].copy_from_slice(&size.to_le_bytes());
    let uncompressed = u64::try_from(text.len() - from.len() + to.len()).expect("fits");
    entry[56..64].copy_from_slice(&uncompressed.to_le_bytes());
    true
}

fn find(haystack: &[u8], needle: &[u8]) -> Option<usize> {
    haystack.windows(needle.len()).position(|window| window == needle)
}

fn read_u16(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(bytes[at..at + 2].try_into().expect("two bytes"))
}

fn read_u32(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

fn read_u64(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}
