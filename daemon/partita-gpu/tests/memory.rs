//! The memory in which modules are prepared keeps to what `prepare_mib` counts for it. The test has
//! a process of its own, for it looks at the most memory that the process has had.

#![expect(clippy::unwrap_used, reason = "in a test a panic is the report")]

use partita_engine::Purpose;
use partita_gpu::prepare::prepare;
use partita_gpu::uploads::Image;
use partita_model::{ImageKind, Sharing};
use std::fmt::Write;

/// Bytes of memory for each byte of PTX, and for each byte that forms add.
const MOST_PER_BYTE: u64 = 40;
const MOST_PER_ADDED_BYTE: u64 = 12;

/// The most memory that this process has had, in bytes; `None` where the system does not tell.
fn peak() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    Some(line.trim().strip_suffix(" kB")?.parse::<u64>().ok()? * 1024)
}

fn image(kernels: usize) -> Image {
    let mut text = ".version 8.0\n.target sm_75\n.address_size 64\n".to_owned();
    for kernel in 0..kernels {
        writeln!(
            text,
            ".visible .entry k{kernel}(.param .u64 p)\n{{\n.reg .b64 %d<2>;\n.reg .b32 %r<2>;\n\
             ld.param.u64 %d1, [p];\nmov.u32 %r1, {kernel};\nst.global.u32 [%d1], %r1;\nret;\n}}"
        )
        .unwrap();
    }
    let unpacked_bytes = text.len() as u64;
    Image { kind: ImageKind::Ptx, unpacked_bytes, bytes: text.into_bytes().into() }
}

#[test]
fn preparing_keeps_to_what_is_counted_for_it() {
    // With counting forms, with forms, and with forms that come later.
    for (kernels, later) in [(280, false), (650, false), (20_000, true)] {
        let image = image(kernels);
        let Some(before) = peak() else {
            eprintln!("SKIPPED: the system does not tell how much memory a process has had");
            return;
        };
        let module = prepare(&image, Sharing::Spatial, &Purpose::Run).unwrap().module;
        assert_eq!((module.kernels.len(), module.later.is_some()), (kernels, later));
        let text = image.bytes.len() as u64;
        let added = (module.ptx.len() as u64).saturating_sub(text);
        let bound = MOST_PER_BYTE * text + if later { 0 } else { MOST_PER_ADDED_BYTE * added };
        // What the smaller modules have left behind is used again.
        let took = peak().unwrap() - before;
        println!("{kernels} kernels: {took} bytes for {text} and {added}, of {bound}");
        assert!(took <= bound, "{kernels} kernels: {took} bytes, more than {bound}");
    }
}
