//! Fatbin containers, as nvcc embeds them in programs. The format is not documented; what is known
//! of it was measured:
//!
//! A container is a header (`u32` magic, `u16` version, `u16` size of this header, `u64` size of
//! the body) and a body of entries. An entry is a header, whose size it states itself, and a
//! payload:
//!
//! | offset | field |
//! | --- | --- |
//! | 0 | `u16` kind: 1 PTX, 2 ELF |
//! | 4 | `u32` header size |
//! | 8 | `u64` payload size with padding; the next entry follows it |
//! | 16 | `u32` compressed size, 0 where it is not |
//! | 24 | `u16` minor, `u16` major |
//! | 28 | `u32` architecture, e.g. 90 |
//! | 40 | `u64` flags: 0x2000 an LZ4 block, 0x8000 a zstd frame, 0x10_0000 for this architecture only (`sm_90a`), 0x20_0000 for its family (`sm_100f`) |
//! | 56 | `u64` uncompressed size |

use super::{Image, ImageError, text, whole};
use partita_model::ComputeCapability;
use partita_model::ImageKind;
use std::ops::RangeInclusive;

/// The first four bytes of a container, little-endian.
pub const MAGIC: u32 = 0xBA55_ED50;
/// How much of a container [`container_len`] wants to see.
pub const HEADER_BYTES: usize = 16;

const KIND_PTX: u16 = 1;
const KIND_ELF: u16 = 2;
const FLAG_LZ4: u64 = 0x2000;
const FLAG_ZSTD: u64 = 0x8000;
const FLAG_ONE: u64 = 0x10_0000;
const FLAG_FAMILY: u64 = 0x20_0000;
/// Ours: all entries of such a container are parts of one program. No other flag of nvcc's is known
/// up here.
const FLAG_PART: u64 = 1 << 62;
const ENTRY_HEADER: usize = 64;

/// The length of a container from its first [`HEADER_BYTES`] bytes, header included.
///
/// # Errors
/// Where they are not a container's.
pub fn container_len(header: &[u8; HEADER_BYTES]) -> Result<u64, ImageError> {
    let fields = Fields { bytes: header, base: 0 };
    fields.container().map(|(header, body)| (header as u64).saturating_add(body))
}

/// One entry of a container.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Entry<'a> {
    /// PTX, ELF, or another number.
    pub kind: u16,
    /// The architecture, e.g. 90 for compute capability 9.0.
    pub architecture: u32,
    /// Where its header begins.
    pub at: usize,
    compressed_bytes: u32,
    flags: u64,
    uncompressed_bytes: u64,
    payload: &'a [u8],
}

impl Entry<'_> {
    fn describe(&self) -> String {
        let kind = match self.kind {
            KIND_PTX => "PTX".to_owned(),
            KIND_ELF => "machine code".to_owned(),
            other => format!("an entry of unknown kind {other:#x}"),
        };
        let suffix = match self.flags & (FLAG_ONE | FLAG_FAMILY) {
            0 => "",
            FLAG_FAMILY => "f",
            _ => "a",
        };
        format!("{kind} for sm_{}{suffix}", self.architecture)
    }

    /// How well it fits a device of this architecture or a newer one; `None` where it is for one
    /// other GPU, or for another family (PTX ISA, ".target").
    fn fit(&self, device: u32) -> Option<u32> {
        let (fits, fit) = match self.flags & (FLAG_ONE | FLAG_FAMILY) {
            0 => (true, 0),
            FLAG_FAMILY => (self.architecture / 10 == device / 10, 1),
            _ => (self.architecture == device, 2),
        };
        fits.then_some(fit)
    }
}

impl<'a> Entry<'a> {
    fn image(&self) -> Result<Image<'a>, ImageError> {
        let is_code = self.kind == KIND_ELF;
        let kind = match self.flags & (FLAG_LZ4 | FLAG_ZSTD) {
            0 if is_code => return Ok(whole(ImageKind::Cubin, self.payload)),
            0 => return Ok(whole(ImageKind::Ptx, text(self.payload)?)),
            FLAG_LZ4 if is_code => ImageKind::CubinLz4,
            FLAG_LZ4 => ImageKind::PtxLz4,
            FLAG_ZSTD if is_code => ImageKind::CubinZstd,
            FLAG_ZSTD => ImageKind::PtxZstd,
            both => {
                return Err(ImageError::Field {
                    at: self.at + 40,
                    what: "compression",
                    value: both,
                });
            }
        };
        let bytes = usize::try_from(self.compressed_bytes).ok().filter(|bytes| *bytes > 0);
        let bytes = bytes.and_then(|bytes| self.payload.get(..bytes)).ok_or(ImageError::Field {
            at: self.at + 16,
            what: "compressed size",
            value: u64::from(self.compressed_bytes),
        })?;
        if self.uncompressed_bytes == 0 {
            return Err(ImageError::Field {
                at: self.at + 56,
                what: "uncompressed size",
                value: 0,
            });
        }
        Ok(Image { kind, bytes, unpacked_bytes: self.uncompressed_bytes })
    }
}

/// Lists the entries of one or more containers, one after the other.
///
/// # Errors
/// Where the containers are damaged.
pub fn entries(bytes: &[u8]) -> Result<Vec<Entry<'_>>, ImageError> {
    let mut found = Vec::new();
    let mut at = 0;
    while at < bytes.len() {
        let (header, body) = Fields { bytes: &bytes[at..], base: at }.container()?;
        let start = at + header;
        let end = usize::try_from(body).ok().and_then(|body| start.checked_add(body));
        let end = end.filter(|end| *end <= bytes.len());
        let end =
            end.ok_or(ImageError::Truncated { at: bytes.len(), what: "a fatbin container" })?;
        at = start;
        while at < end {
            let entry = Fields { bytes: &bytes[at..end], base: at }.entry()?;
            at = entry.1;
            found.push(entry.0);
        }
    }
    Ok(found)
}

/// A container of images that are parts of one program: what a link of several inputs gives back to
/// be loaded. Each comes with its architecture.
#[must_use]
pub fn parts(images: &[(Image<'_>, u32)]) -> Vec<u8> {
    let mut body = Vec::new();
    for (image, architecture) in images {
        let (compressed, packing) = match image.kind {
            ImageKind::PtxZstd | ImageKind::CubinZstd => (image.bytes.len(), FLAG_ZSTD),
            ImageKind::PtxLz4 | ImageKind::CubinLz4 => (image.bytes.len(), FLAG_LZ4),
            ImageKind::Ptx | ImageKind::Cubin | ImageKind::Bundle => (0, 0),
        };
        let kind = if image.kind.is_machine_code() { KIND_ELF } else { KIND_PTX };
        let payload = image.bytes.len().next_multiple_of(8);
        let mut header = [0; ENTRY_HEADER];
        let mut put = |at: usize, bytes: &[u8]| header[at..at + bytes.len()].copy_from_slice(bytes);
        put(0, &kind.to_le_bytes());
        put(4, &u32::try_from(ENTRY_HEADER).expect("64").to_le_bytes());
        put(8, &(payload as u64).to_le_bytes());
        put(16, &u32::try_from(compressed).unwrap_or(u32::MAX).to_le_bytes());
        put(28, &architecture.to_le_bytes());
        put(40, &(FLAG_PART | packing).to_le_bytes());
        put(56, &image.unpacked_bytes.to_le_bytes());
        body.extend_from_slice(&header);
        body.extend_from_slice(image.bytes);
        body.resize(body.len() + payload - image.bytes.len(), 0);
    }
    let mut container = MAGIC.to_le_bytes().to_vec();
    container.extend_from_slice(&1u16.to_le_bytes());
    container.extend_from_slice(&u16::try_from(HEADER_BYTES).expect("16").to_le_bytes());
    container.extend_from_slice(&(body.len() as u64).to_le_bytes());
    container.extend_from_slice(&body);
    container
}

/// The images of a container that [`parts`] made, in order; `None` for others.
pub(super) fn all_parts(bytes: &[u8]) -> Result<Option<Vec<Image<'_>>>, ImageError> {
    let entries = entries(bytes)?;
    if entries.is_empty() || entries.iter().any(|entry| entry.flags & FLAG_PART == 0) {
        return Ok(None);
    }
    entries.iter().map(Entry::image).collect::<Result<_, _>>().map(Some)
}

/// Chooses an entry; see [`super::select`].
pub(super) fn select(bytes: &[u8], device: ComputeCapability) -> Result<Image<'_>, ImageError> {
    let entries = entries(bytes)?;
    let own = u32::from(device.major) * 10 + u32::from(device.minor);
    match best(&entries, KIND_PTX, 0..=own) {
        Some(best) => best.image(),
        None => {
            Err(ImageError::NoPtx { device, found: entries.iter().map(Entry::describe).collect() })
        }
    }
}

/// Chooses machine code; see [`super::select_machine_code`].
pub(super) fn select_machine_code(
    bytes: &[u8],
    device: ComputeCapability,
) -> Result<Option<(Image<'_>, u32)>, ImageError> {
    let entries = entries(bytes)?;
    // Machine code runs on its own generation, from its own minor revision on.
    let generation = u32::from(device.major) * 10;
    let best = best(&entries, KIND_ELF, generation..=generation + u32::from(device.minor));
    best.map(|best| Ok((best.image()?, best.architecture))).transpose()
}

/// The entry of the highest architecture in a range whose end is the device's own.
fn best<'e, 'a>(
    entries: &'e [Entry<'a>],
    kind: u16,
    runs: RangeInclusive<u32>,
) -> Option<&'e Entry<'a>> {
    let usable = entries.iter().filter(|e| e.kind == kind && runs.contains(&e.architecture));
    let fitting =
        usable.filter_map(|entry| Some((entry.architecture, entry.fit(*runs.end())?, entry)));
    fitting.max_by_key(|&(architecture, fit, _)| (architecture, fit)).map(|(.., entry)| entry)
}

/// Fields at known places of a part of the image that begins at `base`.
#[derive(Clone, Copy)]
struct Fields<'a> {
    bytes: &'a [u8],
    base: usize,
}

impl<'a> Fields<'a> {
    fn array<const N: usize>(self, at: usize, what: &'static str) -> Result<[u8; N], ImageError> {
        let error = ImageError::Truncated { at: self.base + self.bytes.len(), what };
        let found = self.bytes.get(at..at + N).ok_or(error)?;
        Ok(found.try_into().expect("the slice has the array's length"))
    }

    fn u16(self, at: usize, what: &'static str) -> Result<u16, ImageError> {
        self.array(at, what).map(u16::from_le_bytes)
    }

    fn u32(self, at: usize, what: &'static str) -> Result<u32, ImageError> {
        self.array(at, what).map(u32::from_le_bytes)
    }

    fn u64(self, at: usize, what: &'static str) -> Result<u64, ImageError> {
        self.array(at, what).map(u64::from_le_bytes)
    }

    fn bad(self, at: usize, what: &'static str, value: impl Into<u64>) -> ImageError {
        ImageError::Field { at: self.base + at, what, value: value.into() }
    }

    /// Header size and body size of a container.
    fn container(self) -> Result<(usize, u64), ImageError> {
        const WHAT: &str = "a fatbin container's header";
        let magic = self.u32(0, WHAT)?;
        if magic != MAGIC {
            return Err(self.bad(0, "fatbin magic", magic));
        }
        let version = self.u16(4, WHAT)?;
        if version != 1 {
            return Err(self.bad(4, "fatbin version", version));
        }
        let header = self.u16(6, WHAT)?;
        if usize::from(header) < HEADER_BYTES {
            return Err(self.bad(6, "fatbin header size", header));
        }
        Ok((usize::from(header), self.u64(8, WHAT)?))
    }

    /// An entry, and where the next one begins.
    fn entry(self) -> Result<(Entry<'a>, usize), ImageError> {
        const WHAT: &str = "a fatbin entry's header";
        let header = self.u32(4, WHAT)?;
        let start = usize::try_from(header).unwrap_or(usize::MAX);
        if start < ENTRY_HEADER {
            return Err(self.bad(4, "entry header size", header));
        }
        let size = self.u64(8, WHAT)?;
        let end = usize::try_from(size).ok().and_then(|size| start.checked_add(size));
        let payload = end.and_then(|end| self.bytes.get(start..end));
        let payload = payload.ok_or_else(|| self.bad(8, "entry payload size", size))?;
        let entry = Entry {
            kind: self.u16(0, WHAT)?,
            architecture: self.u32(28, WHAT)?,
            at: self.base,
            compressed_bytes: self.u32(16, WHAT)?,
            flags: self.u64(40, WHAT)?,
            uncompressed_bytes: self.u64(56, WHAT)?,
            payload,
        };
        Ok((entry, self.base + start + payload.len()))
    }
}
