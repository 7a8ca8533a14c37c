//! From the image that a client sent to its text or machine code: unpacking, and the parts of
//! bundles.
//!
//! The image is a stranger's: unpacking is bounded by what was announced and by [`MAX_TEXT`].

use super::{Bounds, refused};
use crate::uploads::Image;
use partita_engine::PrepareError;
use partita_model::CudaResult;
use partita_model::ImageKind;
use partita_ptx::nested;
use std::borrow::Cow;
use std::io::Read;

/// The largest PTX text in bytes. The largest texts in CUDA's own libraries have tens of megabytes.
const MAX_TEXT: u64 = 128 << 20;

/// The system's function by which a kernel decides about a conditional node of a graph. The node's
/// handle is the address of a word.
const CONDITION: &str = "cudaGraphSetConditional";
/// Its body.
const CONDITION_UNIT: &str = include_str!("condition.ptx");

/// A text with the bodies of the system's functions that it calls.
pub(super) fn with_system<'a>(
    text: &'a str,
    bounds: &Bounds,
) -> Result<Cow<'a, str>, PrepareError> {
    let nested = nested::runtime(&[text]);
    if nested.is_none() && !text.contains(CONDITION) {
        return Ok(text.into());
    }
    link(&[text], nested, bounds).map(Cow::Owned)
}

/// Links texts with the bodies of the system's functions that a text among them calls. `nested` is
/// the runtime of kernels that launch kernels.
fn link(texts: &[&str], nested: Option<String>, bounds: &Bounds) -> Result<String, PrepareError> {
    let calls = texts.iter().any(|text| text.contains(CONDITION));
    let mut texts = texts.to_vec();
    texts.extend(calls.then_some(CONDITION_UNIT));
    texts.extend(nested.as_deref());
    let text = partita_ptx::link_until(&texts, &bounds.stop).map_err(|error| {
        refused(CudaResult::ERROR_INVALID_PTX, format!("cannot link the program: {error}"))
    })?;
    if nested.is_none() {
        return Ok(text);
    }
    let module = partita_ptx::parse_until(&text, &bounds.stop).map_err(|errors| {
        refused(CudaResult::ERROR_INVALID_PTX, format!("the linked program: {errors}"))
    })?;
    Ok(partita_ptx::print(&nested::nested(module)))
}

/// Links the texts of a program with several translation units.
pub(super) fn linked(bundle: &Image, bounds: &Bounds) -> Result<String, PrepareError> {
    let mut texts = Vec::new();
    let mut room = MAX_TEXT;
    for image in images_of(&bundle.bytes)? {
        // The limit holds for the sum of all texts.
        room = room.checked_sub(image.unpacked_bytes).ok_or_else(|| {
            invalid_image(format!("PTX of more than {MAX_TEXT} bytes in all to link"))
        })?;
        let bytes = unpack(&image)?;
        texts.push(text_of(&bytes)?.to_owned());
    }
    bounds.check_size(texts.iter().map(String::len).sum())?;
    bounds.check()?;
    let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
    let text = link(&texts, nested::runtime(&texts), bounds)?;
    if text.len() as u64 > 2 * MAX_TEXT {
        Err(invalid_image("the linked PTX is too long"))
    } else {
        Ok(text)
    }
}

/// The images of a bundle ([`ImageKind::Bundle`]).
fn images_of(mut bytes: &[u8]) -> Result<Vec<Image>, PrepareError> {
    const HEADER: usize = 24;
    /// The most translation units of a program.
    const MOST: usize = 4096;
    let broken = |what: &str| invalid_image(format!("a bundle of images {what}"));
    let mut images = Vec::new();
    while !bytes.is_empty() {
        let (header, rest) =
            bytes.split_first_chunk::<HEADER>().ok_or_else(|| broken("ends in a header"))?;
        let word =
            |at: usize| u64::from_le_bytes(header[at..at + 8].try_into().expect("eight bytes"));
        let kind = u32::try_from(word(0)).ok().and_then(ImageKind::from_raw);
        let kind = kind
            .filter(|kind| *kind != ImageKind::Bundle && !kind.is_machine_code())
            .ok_or_else(|| broken("has one of no kind"))?;
        let size =
            usize::try_from(word(8)).ok().filter(|size| *size <= rest.len() && images.len() < MOST);
        let (image, after) =
            rest.split_at(size.ok_or_else(|| broken("ends in an image, or has too many"))?);
        images.push(Image { kind, unpacked_bytes: word(16), bytes: image.into() });
        bytes = after;
    }
    Ok(images)
}

pub(super) fn invalid_image(text: impl Into<String>) -> PrepareError {
    refused(CudaResult::ERROR_INVALID_IMAGE, text)
}

pub(super) fn unpack(image: &Image) -> Result<Cow<'_, [u8]>, PrepareError> {
    let announced = image.unpacked_bytes;
    if announced > MAX_TEXT {
        return Err(invalid_image(format!(
            "an image of {announced} bytes: at most {MAX_TEXT} are possible"
        )));
    }
    let size = usize::try_from(announced)
        .map_err(|_| invalid_image("an image beyond this machine's memory"))?;
    match image.kind {
        ImageKind::Ptx | ImageKind::Cubin => Ok(Cow::Borrowed(&image.bytes)),
        ImageKind::PtxZstd | ImageKind::CubinZstd => {
            let mut bytes = Vec::new();
            let mut decoder = ruzstd::decoding::StreamingDecoder::new(&image.bytes[..])
                .map_err(|error| invalid_image(format!("not a zstd frame: {error}")))?;
            // Reading one byte more than announced detects an excess without unpacking it.
            let limit = announced + 1;
            (&mut decoder)
                .take(limit)
                .read_to_end(&mut bytes)
                .map_err(|error| invalid_image(format!("a broken zstd frame: {error}")))?;
            check_size(bytes.len() as u64, announced)?;
            Ok(Cow::Owned(bytes))
        }
        ImageKind::PtxLz4 | ImageKind::CubinLz4 => {
            let bytes = lz4_flex::block::decompress(&image.bytes, size)
                .map_err(|error| invalid_image(format!("a broken LZ4 block: {error}")))?;
            check_size(bytes.len() as u64, announced)?;
            Ok(Cow::Owned(bytes))
        }
        ImageKind::Bundle => Err(invalid_image("a bundle in a bundle")),
    }
}

fn check_size(found: u64, announced: u64) -> Result<(), PrepareError> {
    if found == announced {
        return Ok(());
    }
    let relation = if found > announced { "more" } else { "less" };
    Err(invalid_image(format!(
        "the image unpacks to {relation} than the {announced} bytes that it announces"
    )))
}

/// The text without the zero bytes that compilers append.
pub(super) fn text_of(bytes: &[u8]) -> Result<&str, PrepareError> {
    let end = bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
    std::str::from_utf8(&bytes[..end]).map_err(|error| {
        let line = bytes[..error.valid_up_to()].iter().filter(|byte| **byte == b'\n').count() + 1;
        refused(CudaResult::ERROR_INVALID_PTX, format!("line {line}: not a text in UTF-8"))
    })
}
