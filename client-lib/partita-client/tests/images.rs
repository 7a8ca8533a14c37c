//! Images that programs hand over: good ones, and every way of being bad.

use partita_client::code;
use partita_client::image::{
    Image, ImageError, ImageKind, fatbin, select, select_machine_code, select_parts,
};
use partita_model::ComputeCapability;

const DEVICE: ComputeCapability = ComputeCapability { major: 9, minor: 0 };
const PTX: u16 = 1;
const ELF: u16 = 2;
const ZSTD: u64 = 0x8000;
const LZ4: u64 = 0x2000;

/// An entry as nvcc writes it. Packed payloads are not unpacked here, so any bytes do.
fn entry(kind: u16, architecture: u32, flags: u64, payload: &[u8], unpacked: u64) -> Vec<u8> {
    let padded = payload.len().next_multiple_of(8);
    let compressed =
        if flags & (ZSTD | LZ4) == 0 { 0 } else { u32::try_from(payload.len()).unwrap_or(0) };
    let mut bytes = vec![0; 64];
    bytes[0..2].copy_from_slice(&kind.to_le_bytes());
    bytes[2..4].copy_from_slice(&0x101_u16.to_le_bytes());
    bytes[4..8].copy_from_slice(&64_u32.to_le_bytes());
    bytes[8..16].copy_from_slice(&(padded as u64).to_le_bytes());
    bytes[16..20].copy_from_slice(&compressed.to_le_bytes());
    bytes[28..32].copy_from_slice(&architecture.to_le_bytes());
    bytes[40..48].copy_from_slice(&(0x11 | flags).to_le_bytes());
    bytes[56..64].copy_from_slice(&unpacked.to_le_bytes());
    bytes.extend_from_slice(payload);
    bytes.resize(64 + padded, 0);
    bytes
}

fn container(entries: &[Vec<u8>]) -> Vec<u8> {
    let body = entries.concat();
    let mut bytes = fatbin::MAGIC.to_le_bytes().to_vec();
    bytes.extend(1_u16.to_le_bytes());
    bytes.extend(16_u16.to_le_bytes());
    bytes.extend((body.len() as u64).to_le_bytes());
    bytes.extend(body);
    bytes
}

#[test]
fn the_best_ptx_for_the_device_is_chosen() {
    let check = |architectures: &[u32], expect: Option<&str>| {
        let entries: Vec<Vec<u8>> = architectures
            .iter()
            .map(|architecture| {
                entry(PTX, *architecture, 0, format!("\n\n.version {architecture}\n").as_bytes(), 0)
            })
            .chain([entry(ELF, 90, 0, b"\x7fELF", 0)])
            .collect();
        let bytes = container(&entries);
        let found = select(&bytes, DEVICE).ok().map(|image| image.bytes);
        let expect = expect.map(|expect| format!("\n\n.version {expect}\n"));
        assert_eq!(found, expect.as_deref().map(str::as_bytes), "{architectures:?}");
    };
    check(&[75], Some("75"));
    check(&[75, 90, 80], Some("90"));
    check(&[120, 52, 100], Some("52"));
    check(&[100, 120], None);
    check(&[], None);
}

/// nvcc's flags of `compute_90a` and `compute_100f`, as its fatbins have them.
#[test]
fn code_for_one_gpu_or_one_family_is_chosen_there_only() {
    const ONE: u64 = 0x10_0000;
    const FAMILY: u64 = 0x20_0000;
    let check = |kind, entries: &[(u32, u64)], (major, minor), expect: Option<usize>| {
        let text = |index: usize| format!(".version {index}");
        let all = entries.iter().enumerate();
        let all: Vec<_> = all
            .map(|(index, &(architecture, flags))| {
                entry(kind, architecture, flags, text(index).as_bytes(), 0)
            })
            .collect();
        let (bytes, device) = (container(&all), ComputeCapability { major, minor });
        let found = match kind {
            PTX => select(&bytes, device).ok(),
            _ => {
                select_machine_code(&bytes, device).expect("a good container").map(|(code, _)| code)
            }
        };
        let expect = expect.map(text);
        let found = found.map(|image| image.bytes);
        // An image is padded to eight bytes.
        let found = found.map(|bytes| &bytes[..10]);
        assert_eq!(found, expect.as_deref().map(str::as_bytes), "{entries:?} {major}.{minor}");
    };
    check(PTX, &[(80, 0), (90, ONE)], (9, 0), Some(1));
    check(PTX, &[(90, ONE), (90, 0)], (9, 0), Some(0));
    check(PTX, &[(80, 0), (90, ONE)], (10, 0), Some(0));
    check(PTX, &[(90, ONE)], (10, 0), None);
    check(PTX, &[(90, 0), (100, FAMILY)], (10, 3), Some(1));
    check(PTX, &[(90, 0), (100, FAMILY)], (12, 0), Some(0));
    check(PTX, &[(100, FAMILY), (100, ONE), (100, 0)], (10, 0), Some(1));
    check(PTX, &[(100, FAMILY), (100, ONE), (100, 0)], (10, 3), Some(0));
    check(ELF, &[(100, ONE), (100, 0)], (10, 3), Some(1));
    check(ELF, &[(100, FAMILY), (100, 0)], (10, 3), Some(0));
    let error = select(&container(&[entry(PTX, 100, ONE, b".version 9", 0)]), DEVICE).unwrap_err();
    assert!(error.to_string().contains("PTX for sm_100a"), "{error}");
}

#[test]
fn packed_payloads_are_handed_on_without_their_padding() {
    for (flags, kind) in [(ZSTD, ImageKind::PtxZstd), (LZ4, ImageKind::PtxLz4)] {
        let bytes = container(&[entry(PTX, 75, flags, b"packed bytes", 1234)]);
        let image = select(&bytes, DEVICE).expect("a good container");
        assert_eq!(
            (image.kind, image.bytes, image.unpacked_bytes),
            (kind, b"packed bytes".as_slice(), 1234)
        );
    }
}

#[test]
fn several_containers_one_after_the_other_are_one() {
    let bytes = [
        container(&[entry(PTX, 52, 0, b".version 1", 0)]),
        container(&[entry(PTX, 75, 0, b".version 2", 0)]),
    ]
    .concat();
    assert_eq!(select(&bytes, DEVICE).map(|image| image.bytes), Ok(b".version 2".as_slice()));
}

#[test]
fn machine_code_only_is_told_with_the_remedy() {
    let bytes =
        container(&[entry(ELF, 80, 0, b"\x7fELF", 0), entry(PTX, 120, 0, b".version 9", 0)]);
    let error = select(&bytes, DEVICE).unwrap_err();
    assert_eq!(error.code(), code::NO_BINARY_FOR_GPU);
    let text = error.to_string();
    for part in
        ["machine code for sm_80, PTX for sm_120", "-gencode arch=compute_90,code=compute_90"]
    {
        assert!(text.contains(part), "{text}");
    }
    assert_eq!(select(b"\x7fELF\x02\x01", DEVICE).map(|image| image.kind), Ok(ImageKind::Cubin));
}

#[test]
fn machine_code_is_chosen_by_generation_and_revision() {
    let check = |architectures: &[u32], expect: Option<u32>| {
        let entries: Vec<Vec<u8>> = architectures
            .iter()
            .map(|architecture| entry(ELF, *architecture, 0, b"\x7fELF", 0))
            .collect();
        let bytes = container(&[entries, vec![entry(PTX, 120, 0, b".version 9", 0)]].concat());
        let device = ComputeCapability { major: 8, minor: 6 };
        let found = select_machine_code(&bytes, device).expect("a good container");
        assert_eq!(
            found.map(|(image, architecture)| (image.kind, architecture)),
            expect.map(|a| (ImageKind::Cubin, a))
        );
    };
    check(&[80, 86, 75], Some(86));
    check(&[80, 89, 90], Some(80));
    check(&[75, 89, 90], None);
    check(&[], None);
    for (flags, kind) in [(ZSTD, ImageKind::CubinZstd), (LZ4, ImageKind::CubinLz4)] {
        let bytes = container(&[entry(ELF, 90, flags, b"packed bytes", 1234)]);
        let (image, _) =
            select_machine_code(&bytes, DEVICE).expect("a good container").expect("it fits");
        assert_eq!(
            (image.kind, image.bytes, image.unpacked_bytes),
            (kind, b"packed bytes".as_slice(), 1234)
        );
    }
    assert_eq!(select_machine_code(b".version 8.0", DEVICE), Ok(None));
}

#[test]
fn text_is_recognised_and_other_things_are_not() {
    let text = b"//\n.version 8.0\n.target sm_90\n\0\0\0";
    let image = select(text, DEVICE).expect("PTX");
    assert_eq!((image.kind, image.bytes), (ImageKind::Ptx, &text[..text.len() - 3]));
    assert_eq!(select(b"", DEVICE), Err(ImageError::Empty));
    for bytes in [b"\0\0\0".as_slice(), b"\x01\x02\x03", b"BC\xc0\xde"] {
        let error = select(bytes, DEVICE).unwrap_err();
        assert!(matches!(error, ImageError::Unknown { .. }), "{bytes:?}: {error}");
        assert_eq!(error.code(), code::INVALID_IMAGE);
    }
}

#[test]
fn damaged_containers_are_refused_where_they_are_damaged() {
    let good = container(&[entry(PTX, 75, ZSTD, b"packed", 100), entry(ELF, 90, 0, b"\x7fELF", 0)]);
    let check = |at: usize, bytes: &[u8], expect: &str| {
        let mut bad = good.clone();
        bad[at..at + bytes.len()].copy_from_slice(bytes);
        let error = select(&bad, DEVICE).unwrap_err().to_string();
        assert!(error.contains(expect), "{error}");
    };
    check(4, &[2], "fatbin version at byte 4 is 0x2");
    check(6, &[15], "fatbin header size at byte 6 is 0xf");
    check(8, &[0xff], "in the middle of a fatbin container");
    check(8, &[0xff; 8], "in the middle of a fatbin container");
    check(8, &[64 + 8 + 64 + 7], "entry payload size at byte 96 is 0x8");
    check(8, &[64 + 8 + 5], "in the middle of a fatbin entry's header");
    check(16 + 4, &[63], "entry header size at byte 20 is 0x3f");
    check(16 + 8, &[0xff; 8], "entry payload size at byte 24 is 0xffffffffffffffff");
    check(16 + 16, &[9], "compressed size at byte 32 is 0x9");
    check(16 + 16, &[0], "compressed size at byte 32 is 0x0");
    check(16 + 41, &[0xa0], "compression at byte 56 is 0xa000");
    check(16 + 56, &[0], "uncompressed size at byte 72 is 0x0");
    check(16 + 56, &[0xff; 8], "18446744073709551615 bytes, more than");
}

/// Whatever comes out of a damaged image lies inside it.
fn look_at(bytes: &[u8]) {
    let inside =
        |part: &[u8]| bytes.as_ptr_range().start <= part.as_ptr() && part.len() <= bytes.len();
    let one = select(bytes, DEVICE).ok();
    let code = select_machine_code(bytes, DEVICE).ok().flatten().map(|(image, _)| image);
    let parts = select_parts(bytes, DEVICE).unwrap_or_default();
    assert!(one.iter().chain(&code).chain(&parts).all(|image| inside(image.bytes)), "{bytes:x?}");
}

#[test]
fn no_damage_makes_it_panic() {
    let linked = |kind, bytes: &'static [u8]| (Image { kind, bytes, unpacked_bytes: 40 }, 75);
    let seeds = [
        container(&[entry(PTX, 75, ZSTD, b"packed", 100), entry(PTX, 80, 0, b".version 8", 0)]),
        container(&[entry(ELF, 90, LZ4, b"packed", 100), entry(PTX, 90, LZ4, b"also packed", 100)]),
        // What several inputs of a link become.
        fatbin::parts(&[
            linked(ImageKind::Ptx, b".version 8"),
            linked(ImageKind::PtxZstd, b"packed"),
        ]),
    ];
    for good in &seeds {
        for at in 0..good.len() {
            look_at(&good[..at]);
            for value in [0, 1, 0x7f, 0x80, 0xff] {
                let mut bad = good.clone();
                bad[at] = value;
                look_at(&bad);
            }
        }
    }
    let two = select_parts(&seeds[2], DEVICE).expect("a good bundle");
    assert_eq!(
        two.iter().map(|image| image.kind).collect::<Vec<_>>(),
        [ImageKind::Ptx, ImageKind::PtxZstd]
    );
}

#[test]
fn the_length_of_a_container_is_in_its_header() {
    let bytes = container(&[entry(PTX, 75, 0, b".version 8", 0)]);
    let mut header = [0; fatbin::HEADER_BYTES];
    header.copy_from_slice(&bytes[..16]);
    assert_eq!(fatbin::container_len(&header), Ok(bytes.len() as u64));
    header[0] = 0;
    assert!(fatbin::container_len(&header).is_err());
}

#[test]
fn parts_that_are_too_large_together_are_refused() {
    let part = |bytes| Image { kind: ImageKind::PtxZstd, bytes: b"packed", unpacked_bytes: bytes };
    let sized = |sizes: &[u64]| {
        fatbin::parts(&sizes.iter().map(|bytes| (part(*bytes), 75)).collect::<Vec<_>>())
    };
    let most = partita_wire::MAX_MODULE;
    let count = |sizes: &[u64]| select_parts(&sized(sizes), DEVICE).map(|parts| parts.len());
    assert_eq!(count(&[most - 10, 10]), Ok(2));
    for sizes in [&[most, 1][..], &[u64::MAX, u64::MAX], &[most + 1]] {
        let error = count(sizes).expect_err("it is too large");
        assert!(matches!(error, ImageError::Large { .. }), "{error}");
        assert_eq!(error.code(), code::OUT_OF_MEMORY);
    }
}
