//! The memory of a parsed module is in proportion to its text. The test has a process of its own,
//! for it looks at the most memory that the process has had.

use std::fmt::Write;

/// Kernels of the text, some 150 bytes each.
const KERNELS: usize = 20_000;
/// Bytes of memory for each byte of PTX.
const MOST_PER_BYTE: u64 = 10;

/// The most memory that this process has had, in bytes; `None` where the system does not tell.
fn peak() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    Some(line.trim().strip_suffix(" kB")?.parse::<u64>().ok()? * 1024)
}

#[test]
fn memory_is_in_proportion_to_the_text() {
    let mut text = ".version 8.0\n.target sm_75\n.address_size 64\n".to_owned();
    for kernel in 0..KERNELS {
        writeln!(
            text,
            ".visible .entry k{kernel}(.param .u64 p)\n{{\n.reg .b64 %d<2>;\n.reg .b32 %r<2>;\n\
             ld.param.u64 %d1, [p];\nmov.u32 %r1, {kernel};\nst.global.u32 [%d1], %r1;\nret;\n}}"
        )
        .unwrap();
    }
    let Some(before) = peak() else {
        eprintln!("SKIPPED: the system does not tell how much memory a process has had");
        return;
    };
    let module = partita_ptx::parse(&text).unwrap();
    let per_byte = (peak().unwrap() - before) / text.len() as u64;
    assert_eq!(module.funcs.len(), KERNELS);
    println!("{per_byte} bytes for each byte of PTX");
    assert!(per_byte <= MOST_PER_BYTE, "{per_byte} bytes for each byte of PTX");
}
