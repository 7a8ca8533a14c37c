//! Images: as a program hands them to the client, and as a client sends them to the daemon.
//!
//! The first byte says which. After `p` come the bytes of a program's image: the client chooses
//! from it, and the daemon prepares what it chooses. Any other byte is the kind of an image that a
//! client announces, and four bytes follow with its announced size when unpacked.

use crate::bytes::Bytes;
use partita_client::image::{Image, bundle, fatbin, select, select_machine_code, select_parts};
use partita_engine::Purpose;
use partita_gpu::machine_code::MachineCode;
use partita_gpu::prepare::{Bounds, Target, prepare_within};
use partita_gpu::uploads;
use partita_model::{ComputeCapability, ImageKind, Limits, Sharing};

const DEVICE: ComputeCapability = ComputeCapability { major: 9, minor: 0 };

/// MiB that a preparation may take: enough for 20 KB of text.
const PREPARE_MIB: u32 = 1;

/// Checks an image.
///
/// # Panics
/// Where something outside of the image is chosen, or what is prepared does not hold together.
pub fn check(input: &[u8]) {
    let mut bytes = Bytes(input);
    match bytes.byte() {
        b'p' => of_program(bytes.0),
        number => {
            let Some(kind) = ImageKind::from_raw(number.into()) else { return };
            let unpacked_bytes = bytes.u32().into();
            prepare(kind, unpacked_bytes, bytes.0);
        }
    }
}

fn of_program(bytes: &[u8]) {
    if let Some(header) = bytes.first_chunk::<{ fatbin::HEADER_BYTES }>() {
        let _ = fatbin::container_len(header);
    }
    if let Ok(entries) = fatbin::entries(bytes) {
        assert!(entries.iter().all(|entry| entry.at < bytes.len()));
    }
    let mut chosen: Vec<Image> = Vec::new();
    chosen.extend(select(bytes, DEVICE).ok());
    chosen.extend(select_machine_code(bytes, DEVICE).ok().flatten().map(|(image, _)| image));
    let parts = select_parts(bytes, DEVICE).unwrap_or_default();
    for image in chosen.iter().chain(&parts) {
        let inside = bytes.as_ptr_range();
        let range = image.bytes.as_ptr_range();
        assert!(inside.start <= range.start && range.end <= inside.end, "outside of the image");
    }
    for image in &chosen {
        prepare(image.kind, image.unpacked_bytes, image.bytes);
    }
    if parts.len() > 1 {
        let (bytes, unpacked_bytes) = bundle(&parts);
        prepare(ImageKind::Bundle, unpacked_bytes, &bytes);
    }
}

fn prepare(kind: ImageKind, unpacked_bytes: u64, bytes: &[u8]) {
    let target = Target { machine_code: MachineCode::OnGroups, ..Target::from(Sharing::Spatial) };
    let image = uploads::Image { kind, unpacked_bytes, bytes: bytes.into() };
    let limits = Limits { prepare_mib: PREPARE_MIB, ..Limits::default() };
    let bounds = Bounds { limits, ..Bounds::default() };
    match prepare_within(&image, target, &Purpose::Run, &bounds) {
        Err(error) => assert!(!error.text.is_empty() && error.code.0 != 0, "{error:?}"),
        Ok(prepared) => {
            assert_eq!(prepared.shapes.len(), prepared.module.kernels.len());
            for kernel in &prepared.module.kernels {
                let end = kernel
                    .params
                    .iter()
                    .map(|param| u64::from(param.offset) + u64::from(param.bytes));
                assert!(
                    end.max().unwrap_or(0) <= u64::from(kernel.param_bytes),
                    "{kernel:?}: a parameter outside of the parameters"
                );
            }
        }
    }
}
