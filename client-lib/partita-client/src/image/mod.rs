//! What programs hand to `cuModuleLoadData` and `cuLibraryLoadData`, and what of it the device
//! gets.
//!
//! An image is PTX text, an ELF file of machine code, or a *fatbin* container of several of either.
//! It is chosen from and sent as it is: the daemon unpacks it, in a process that is no worse off
//! when the packing is malicious.

mod bundle;
pub mod fatbin;

use partita_model::ComputeCapability;
use partita_wire::{MAX_MODULE, code};

pub use bundle::bundle;
pub use partita_model::ImageKind;

/// What is sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Image<'a> {
    /// How it is packed.
    pub kind: ImageKind,
    /// The image as it is.
    pub bytes: &'a [u8],
    /// Its size when unpacked.
    pub unpacked_bytes: u64,
}

impl Image<'_> {
    /// The larger of its two sizes, in bytes.
    fn size(&self) -> u64 {
        self.unpacked_bytes.max(self.bytes.len() as u64)
    }
}

/// Why an image cannot be used.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ImageError {
    /// The image has no code for this device.
    #[error(
        "the program has no PTX for compute capability {device}; it has {found}: \
         compile it with `-gencode arch=compute_{major}{minor},code=compute_{major}{minor}` (or \
         an older compute_XX)",
        major = device.major, minor = device.minor, found = describe(found)
    )]
    NoPtx {
        /// What the device can run.
        device: ComputeCapability,
        /// The code in the container, in the container's order.
        found: Vec<String>,
    },
    /// The image ends too early.
    #[error("the image ends at byte {at}, in the middle of {what}")]
    Truncated {
        /// The place, in bytes.
        at: usize,
        /// In what.
        what: &'static str,
    },
    /// A field that cannot be.
    #[error("the image's {what} at byte {at} is {value:#x}, which it cannot be")]
    Field {
        /// The place, in bytes.
        at: usize,
        /// Which field.
        what: &'static str,
        /// Its value.
        value: u64,
    },
    /// The image is of no known kind.
    #[error(
        "the image is neither PTX text nor an ELF file nor a fatbin: it begins with {start:02x?}"
    )]
    Unknown {
        /// The image's first bytes.
        start: Vec<u8>,
    },
    /// The image is empty.
    #[error("the image is empty")]
    Empty,
    /// Too much.
    #[error("the image has {bytes} bytes, more than {MAX_MODULE}")]
    Large {
        /// Length in bytes.
        bytes: u64,
    },
}

impl ImageError {
    /// The CUDA error for it.
    #[must_use]
    pub fn code(&self) -> i32 {
        match self {
            ImageError::NoPtx { .. } => code::NO_BINARY_FOR_GPU,
            ImageError::Large { .. } => code::OUT_OF_MEMORY,
            _ => code::INVALID_IMAGE,
        }
    }
}

fn describe(found: &[String]) -> String {
    if found.is_empty() { "nothing".to_owned() } else { found.join(", ") }
}

const ELF_MAGIC: &[u8] = b"\x7fELF";

/// Finds in `bytes` what the device can run: the PTX for the highest compute capability that is not
/// above the device's.
///
/// # Errors
/// Where there is none, or the image is damaged.
pub fn select(bytes: &[u8], device: ComputeCapability) -> Result<Image<'_>, ImageError> {
    if bytes.is_empty() {
        return Err(ImageError::Empty);
    }
    let image = if bytes.starts_with(ELF_MAGIC) {
        whole(ImageKind::Cubin, bytes)
    } else if bytes.starts_with(&fatbin::MAGIC.to_le_bytes()) {
        fatbin::select(bytes, device)?
    } else {
        whole(ImageKind::Ptx, text(bytes)?)
    };
    match image.size() {
        large if large > MAX_MODULE => Err(ImageError::Large { bytes: large }),
        _ => Ok(image),
    }
}

/// As [`select`], or all parts of what was linked from several images.
///
/// # Errors
/// As [`select`].
pub fn select_parts(bytes: &[u8], device: ComputeCapability) -> Result<Vec<Image<'_>>, ImageError> {
    if bytes.starts_with(&fatbin::MAGIC.to_le_bytes())
        && let Some(parts) = fatbin::all_parts(bytes)?
    {
        return match parts.iter().map(Image::size).fold(0, u64::saturating_add) {
            large if large > MAX_MODULE => Err(ImageError::Large { bytes: large }),
            _ => Ok(parts),
        };
    }
    select(bytes, device).map(|image| vec![image])
}

/// Finds machine code of a fatbin that the device can run as it is, with its architecture: that for
/// the highest minor revision of its compute capability that is not above its own (CUDA C++
/// Programming Guide, "Binary Compatibility").
///
/// # Errors
/// Where the image is damaged or too large.
pub fn select_machine_code(
    bytes: &[u8],
    device: ComputeCapability,
) -> Result<Option<(Image<'_>, u32)>, ImageError> {
    if !bytes.starts_with(&fatbin::MAGIC.to_le_bytes()) {
        return Ok(None);
    }
    let found = fatbin::select_machine_code(bytes, device)?;
    match found.map_or(0, |(image, _)| image.size()) {
        large if large > MAX_MODULE => Err(ImageError::Large { bytes: large }),
        _ => Ok(found),
    }
}

fn whole(kind: ImageKind, bytes: &[u8]) -> Image<'_> {
    Image { kind, bytes, unpacked_bytes: bytes.len() as u64 }
}

/// PTX text without the NULs after its end.
fn text(bytes: &[u8]) -> Result<&[u8], ImageError> {
    let end = bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
    let text = &bytes[..end];
    let printable =
        |byte: &u8| *byte >= b' ' || matches!(byte, b'\n' | b'\r' | b'\t' | b'\x0b' | b'\x0c');
    let start = &text[..text.len().min(256)];
    // The start may be cut in the middle of a character.
    let utf8 =
        std::str::from_utf8(start).map_or_else(|error| error.error_len().is_none(), |_| true);
    if text.is_empty() || !utf8 || !start.iter().all(printable) {
        return Err(ImageError::Unknown { start: bytes[..bytes.len().min(8)].to_vec() });
    }
    Ok(text)
}
