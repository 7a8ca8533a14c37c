//! The length of a code image.
//!
//! CUDA passes images without a size. The data at the pointer states its own length:
//!
//! | image | length |
//! | --- | --- |
//! | PTX text | up to its NUL |
//! | fatbin wrapper (`__fatbinwrap_…`, 24 bytes) | points to containers |
//! | fatbin container | header + body, by its own header |
//! | ELF | the furthest section, segment or header table |
//!
//! The wrapper is a `u32` magic, a `u32` version, and two pointers: to a container, and for version
//! 2 (`nvcc -rdc=true`) to a list of containers that ends with a null. Reading follows the
//! program's pointers as far as the headers say and no further. [`partita_client::image`]
//! interprets the contents of a container.

use crate::abi::Memory;
use crate::error::{CuError, CuResult};
use partita_client::image::fatbin::{self, HEADER_BYTES, MAGIC as CONTAINER_MAGIC};

const WRAPPER_MAGIC: u32 = 0x4662_43b1;
const ELF_MAGIC: u32 = 0x464c_457f;
/// The largest image in bytes. A larger size means a damaged header.
const MAX_BYTES: u64 = 1 << 32;
/// The most translation units that one wrapper links.
const MAX_CONTAINERS: usize = 4096;

/// A code image in the program's memory.
#[derive(Debug, PartialEq, Eq)]
pub enum Image<'a> {
    /// PTX text, without its NUL.
    Ptx(&'a [u8]),
    /// Fatbin containers; one, unless the program was compiled with `-rdc=true` from several files.
    Fatbin(Vec<&'a [u8]>),
    /// A cubin.
    Elf(&'a [u8]),
}

impl<'a> Image<'a> {
    /// The image at an address.
    pub fn at(memory: Memory) -> CuResult<Self> {
        match read_u32(memory)? {
            WRAPPER_MAGIC => Ok(Image::Fatbin(wrapped(memory)?)),
            CONTAINER_MAGIC => Ok(Image::Fatbin(vec![container(memory)?])),
            ELF_MAGIC => elf(memory).map(Image::Elf),
            _ => ptx(memory.text()?.to_bytes()),
        }
    }

    /// Whether a wrapper lies at an address.
    pub fn is_wrapper(memory: Memory) -> bool {
        read_u32(memory) == Ok(WRAPPER_MAGIC)
    }

    /// The image that is the content of a file.
    pub fn in_file(content: &'a [u8]) -> CuResult<Self> {
        match field_u32(content, 0) {
            Some(CONTAINER_MAGIC) => {
                let header = content.first_chunk().ok_or(CuError::INVALID_IMAGE)?;
                let bytes = usize::try_from(container_bytes(header)?)
                    .map_err(|_| CuError::INVALID_IMAGE)?;
                Ok(Image::Fatbin(vec![content.get(..bytes).ok_or(CuError::INVALID_IMAGE)?]))
            }
            Some(ELF_MAGIC) => Ok(Image::Elf(content)),
            _ => ptx(content.split(|byte| *byte == 0).next().unwrap_or_default()),
        }
    }
}

/// The containers with PTX that nvcc has put into an object file, or into those of a library:
/// `None` for what is neither (System V ABI, ar(5)). They are found by their headers, wherever they
/// lie.
pub fn embedded(content: &[u8]) -> Option<Vec<&[u8]>> {
    const ARCHIVE_MAGIC: &[u8] = b"!<arch>\n";
    const PTX: u16 = 1;
    if field_u32(content, 0) != Some(ELF_MAGIC) && !content.starts_with(ARCHIVE_MAGIC) {
        return None;
    }
    let mut found = Vec::new();
    let mut at = 0;
    // Members of an archive begin at even places, sections at multiples of eight in them.
    while let Some(rest) = content.get(at..).filter(|rest| rest.len() > HEADER_BYTES) {
        let container = (field_u32(rest, 0) == Some(CONTAINER_MAGIC))
            .then(|| container_bytes(rest.first_chunk()?).ok())
            .flatten()
            .and_then(|bytes| rest.get(..usize::try_from(bytes).ok()?));
        let entries = container.and_then(|container| fatbin::entries(container).ok());
        match (container, entries) {
            (Some(container), Some(entries)) => {
                if entries.iter().any(|entry| entry.kind == PTX) {
                    found.push(container);
                }
                at += container.len().next_multiple_of(2);
            }
            _ => at += 2,
        }
    }
    Some(found)
}

/// The architecture that a container's or text's PTX was made for, as far as `device` can run it:
/// what programs that were compiled for several ask to learn which of them runs
/// (`CU_FUNC_ATTRIBUTE_PTX_VERSION`).
pub fn ptx_architecture(bytes: &[u8], device: u32) -> Option<u32> {
    const PTX: u16 = 1;
    if field_u32(bytes, 0) == Some(CONTAINER_MAGIC) {
        let entries = fatbin::entries(bytes).ok()?;
        let usable =
            entries.iter().filter(|entry| entry.kind == PTX && entry.architecture <= device);
        return usable.map(|entry| entry.architecture).max();
    }
    let text = str::from_utf8(bytes).ok()?;
    let target = text.lines().find_map(|line| line.trim_start().strip_prefix(".target"))?;
    let digits = target.trim_start().strip_prefix("sm_")?;
    let end = digits.find(|c: char| !c.is_ascii_digit()).unwrap_or(digits.len());
    digits[..end].parse().ok()
}

fn ptx(text: &[u8]) -> CuResult<Image<'_>> {
    if text.iter().take(64).all(|byte| byte.is_ascii_graphic() || byte.is_ascii_whitespace()) {
        Ok(Image::Ptx(text))
    } else {
        Err(CuError::INVALID_IMAGE)
    }
}

/// The containers that a wrapper points to: its own, and for `-rdc=true` a list of those that were
/// linked.
fn wrapped<'a>(wrapper: Memory) -> CuResult<Vec<&'a [u8]>> {
    let version: u32 = wrapper.offset(4).read()?;
    let data: Memory = wrapper.offset(8).read()?;
    let extra: Memory = wrapper.offset(16).read()?;
    if version < 2 || extra.is_null() {
        return Ok(vec![container(data)?]);
    }
    // A wrapper without machine code to link has no container of its own.
    let mut containers: Vec<&[u8]> = container(data).into_iter().collect();
    for slot in 0..MAX_CONTAINERS {
        let linked: Memory = extra.offset(slot as u64 * 8).read()?;
        if linked.is_null() {
            return Ok(containers);
        }
        containers.push(container(linked)?);
    }
    Err(CuError::INVALID_IMAGE)
}

fn container<'a>(memory: Memory) -> CuResult<&'a [u8]> {
    if memory.is_null() || read_u32(memory)? != CONTAINER_MAGIC {
        return Err(CuError::INVALID_IMAGE);
    }
    let header: [u8; HEADER_BYTES] = memory.read()?;
    slice(memory, container_bytes(&header)?)
}

fn container_bytes(header: &[u8; HEADER_BYTES]) -> CuResult<u64> {
    fatbin::container_len(header).map_err(|_| CuError::INVALID_IMAGE)
}

/// ELF-64 (System V ABI): nothing of the file lies beyond its furthest table, segment or section.
fn elf<'a>(memory: Memory) -> CuResult<&'a [u8]> {
    const HEADER_BYTES: usize = 64;
    const SECTION_WITHOUT_CONTENT: u32 = 8;
    let header = memory.bytes(HEADER_BYTES)?;
    let damaged = CuError::INVALID_IMAGE;
    if header[4] != 2 {
        return Err(damaged);
    }
    let mut end = HEADER_BYTES as u64;
    // Where the tables are: offset, size of an entry, number of entries; then where an entry has
    // its own extent.
    for (offset_at, size_at, count_at, own_offset_at, own_bytes_at) in
        [(32, 54, 56, 8, 32), (40, 58, 60, 24, 32)]
    {
        let offset = field_u64(header, offset_at).ok_or(damaged)?;
        let size = u64::from(field_u16(header, size_at).ok_or(damaged)?);
        let count = u64::from(field_u16(header, count_at).ok_or(damaged)?);
        let bytes = size * count;
        let table_end = offset.checked_add(bytes).filter(|end| *end <= MAX_BYTES).ok_or(damaged)?;
        end = end.max(table_end);
        let table = slice(memory.offset(offset), bytes)?;
        for entry in table.chunks_exact(usize::try_from(size.max(1)).map_err(|_| damaged)?) {
            if own_offset_at == 24 && field_u32(entry, 4) == Some(SECTION_WITHOUT_CONTENT) {
                continue;
            }
            let (Some(start), Some(bytes)) =
                (field_u64(entry, own_offset_at), field_u64(entry, own_bytes_at))
            else {
                return Err(damaged);
            };
            end = end.max(start.checked_add(bytes).ok_or(damaged)?);
        }
    }
    slice(memory, end)
}

fn slice<'a>(memory: Memory, bytes: u64) -> CuResult<&'a [u8]> {
    if bytes > MAX_BYTES {
        return Err(CuError::INVALID_IMAGE);
    }
    memory.bytes(usize::try_from(bytes).map_err(|_| CuError::INVALID_IMAGE)?)
}

/// Reads byte by byte, because a short text may end at a page's end.
fn read_u32(memory: Memory) -> CuResult<u32> {
    let mut value = 0;
    for i in 0..4 {
        let byte: u8 = memory.offset(i).read()?;
        value |= u32::from(byte) << (8 * i);
        if byte == 0 {
            break;
        }
    }
    Ok(value)
}

fn field_u16(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..)?.first_chunk().map(|field| u16::from_le_bytes(*field))
}

fn field_u32(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().map(|field| u32::from_le_bytes(*field))
}

fn field_u64(bytes: &[u8], at: usize) -> Option<u64> {
    bytes.get(at..)?.first_chunk().map(|field| u64::from_le_bytes(*field))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn memory(bytes: &[u8]) -> Memory {
        Memory::at(bytes.as_ptr() as u64)
    }

    /// A container with one entry per `(kind, sm)`, each with eight bytes of payload.
    fn synthetic(entries: &[(u16, u32)]) -> Vec<u8> {
        let mut body = Vec::new();
        for (kind, sm) in entries {
            let mut header = [0u8; 64];
            header[0..2].copy_from_slice(&kind.to_le_bytes());
            header[4..8].copy_from_slice(&64u32.to_le_bytes());
            header[8..16].copy_from_slice(&8u64.to_le_bytes());
            header[28..32].copy_from_slice(&sm.to_le_bytes());
            body.extend(header);
            body.extend([0xaa; 8]);
        }
        let mut container = CONTAINER_MAGIC.to_le_bytes().to_vec();
        container.extend(1u16.to_le_bytes());
        container.extend(16u16.to_le_bytes());
        container.extend((body.len() as u64).to_le_bytes());
        container.extend(body);
        container
    }

    fn wrapper(version: u32, data: *const u8, extra: *const u64) -> Vec<u8> {
        let mut wrapper = WRAPPER_MAGIC.to_le_bytes().to_vec();
        wrapper.extend(version.to_le_bytes());
        wrapper.extend((data as u64).to_le_bytes());
        wrapper.extend((extra as u64).to_le_bytes());
        wrapper
    }

    #[test]
    fn a_wrapper_leads_to_its_container() {
        let container = synthetic(&[(2, 75), (1, 75)]);
        let mut followed = container.clone();
        followed.extend([0x55; 100]);
        let wrapper = wrapper(1, followed.as_ptr(), std::ptr::null());
        assert_eq!(Image::at(memory(&wrapper)), Ok(Image::Fatbin(vec![&container])));
        assert_eq!(Image::at(memory(&followed)), Ok(Image::Fatbin(vec![&container])));
    }

    #[test]
    fn a_linked_wrapper_leads_to_all_containers() {
        let (own, a, b) = (synthetic(&[]), synthetic(&[(1, 80)]), synthetic(&[(1, 90)]));
        let list = [a.as_ptr() as u64, b.as_ptr() as u64, 0];
        let wrapper = wrapper(2, own.as_ptr(), list.as_ptr());
        assert_eq!(Image::at(memory(&wrapper)), Ok(Image::Fatbin(vec![&own, &a, &b])));
    }

    #[test]
    fn damaged_headers_are_refused() {
        let refused =
            |bytes: &[u8]| assert_eq!(Image::at(memory(bytes)), Err(CuError::INVALID_IMAGE));
        refused(&wrapper(1, std::ptr::null(), std::ptr::null()));
        refused(&wrapper(1, [0u8; 16].as_ptr(), std::ptr::null()));
        let mut huge = synthetic(&[]);
        huge[8..16].copy_from_slice(&u64::MAX.to_le_bytes());
        refused(&huge);
        huge[8..16].copy_from_slice(&(1u64 << 40).to_le_bytes());
        refused(&huge);
        refused(b"\x01\x02\x03\x04garbage\0");
        let mut elf = [0u8; 64];
        elf[..4].copy_from_slice(&ELF_MAGIC.to_le_bytes());
        refused(&elf);
    }

    #[test]
    fn text_is_ptx() {
        let text = b"\n\n.version 8.0\0junk";
        assert_eq!(Image::at(memory(text)), Ok(Image::Ptx(b"\n\n.version 8.0")));
        assert_eq!(Image::at(memory(b"\0")), Ok(Image::Ptx(b"")));
        assert_eq!(Image::at(Memory::at(0)), Err(CuError::INVALID_VALUE));
    }

    #[test]
    fn files_are_read_within_their_size() {
        let container = synthetic(&[(1, 75)]);
        assert_eq!(Image::in_file(&container), Ok(Image::Fatbin(vec![&container])));
        assert_eq!(Image::in_file(&container[..40]), Err(CuError::INVALID_IMAGE));
        assert_eq!(Image::in_file(b".version 8.0"), Ok(Image::Ptx(b".version 8.0")));
        assert_eq!(
            Image::in_file(&wrapper(1, std::ptr::null(), std::ptr::null())),
            Err(CuError::INVALID_IMAGE)
        );
    }

    #[test]
    fn the_architecture_is_that_of_the_code_that_runs() {
        let container = synthetic(&[(2, 90), (1, 75), (1, 80), (1, 100)]);
        let check = |bytes: &[u8], device, expect| {
            assert_eq!(ptx_architecture(bytes, device), expect, "{device}")
        };
        check(&container, 90, Some(80));
        check(&container, 75, Some(75));
        check(&container, 70, None);
        check(b"// text\n.version 8.0\n .target sm_86, debug\n", 90, Some(86));
        check(b".target sm_90a", 90, Some(90));
        check(b".target nothing", 90, None);
    }

    #[test]
    fn an_elf_ends_with_its_furthest_part() {
        let mut elf = vec![0u8; 64 + 2 * 64 + 40];
        elf[..4].copy_from_slice(&ELF_MAGIC.to_le_bytes());
        elf[4] = 2;
        elf[40..48].copy_from_slice(&64u64.to_le_bytes());
        elf[58..60].copy_from_slice(&64u16.to_le_bytes());
        elf[60..62].copy_from_slice(&2u16.to_le_bytes());
        let section = 64 + 64;
        elf[section + 4..section + 8].copy_from_slice(&1u32.to_le_bytes());
        elf[section + 24..section + 32].copy_from_slice(&192u64.to_le_bytes());
        elf[section + 32..section + 40].copy_from_slice(&33u64.to_le_bytes());
        assert_eq!(Image::at(memory(&elf)), Ok(Image::Elf(&elf[..192 + 33])));
        // A section without content in the file (.nv.shared) counts for nothing.
        elf[section + 4..section + 8].copy_from_slice(&8u32.to_le_bytes());
        assert_eq!(Image::at(memory(&elf)), Ok(Image::Elf(&elf[..192])));
    }
}
