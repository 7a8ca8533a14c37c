//! Modules with very many kernels: their memory is in proportion to their text.

use super::{Client, Daemon, THREADS};
use partita_client::{Launch, StreamHandle, image};
use partita_model::Dim3;
use std::fmt::Write;

/// Kernels of the module, some 150 bytes of PTX each.
const KERNELS: usize = 20_000;
/// Bytes of memory that the data plane may take for each byte of PTX.
const MOST_PER_BYTE: u64 = 50;

fn tiny() -> String {
    let mut text = ".version 8.0\n.target sm_75\n.address_size 64\n".to_owned();
    for kernel in 0..KERNELS {
        writeln!(
            text,
            ".visible .entry k{kernel}(.param .u64 p)\n{{\n.reg .b64 %d<2>;\n.reg .b32 %r<2>;\n\
             ld.param.u64 %d1, [p];\nmov.u32 %r1, {kernel};\nst.global.u32 [%d1], %r1;\nret;\n}}"
        )
        .unwrap();
    }
    text
}

/// The most memory that a process has had, in bytes.
fn peak(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().strip_suffix(" kB").unwrap().parse::<u64>().unwrap() * 1024
}

/// Runs one of the module's kernels.
fn check(client: &Client, module: &partita_client::LoadedModule, name: &str, expected: u32) {
    let session = &client.session;
    let kernel = module.contents.kernels.iter().position(|kernel| kernel.name == name).unwrap();
    let data = session.mem_alloc(4).unwrap();
    session
        .launch(Launch {
            module: module.module,
            kernel: u32::try_from(kernel).unwrap(),
            grid: Dim3::linear(1),
            block: Dim3::linear(THREADS),
            dynamic_shared: 0,
            stream: StreamHandle::LEGACY,
            cooperative: false,
            params: &data.0.to_le_bytes(),
        })
        .unwrap();
    let mut found = [0; 4];
    session.copy_to_host(StreamHandle::LEGACY, &mut found, data).unwrap();
    assert_eq!(u32::from_le_bytes(found), expected);
    session.mem_free(data).unwrap();
}

#[test]
fn memory_is_in_proportion_to_the_text() {
    let daemon = Daemon::start();
    let pid = daemon.status().gpu.pid;
    let client = daemon.connect();
    client.check(&client.spin(10, 10));
    let before = peak(pid);
    let text = tiny();
    let image = image::select(text.as_bytes(), client.session.facts().compute_capability).unwrap();
    let module = client.session.load_module(&image).unwrap();
    assert_eq!(module.contents.kernels.len(), KERNELS);
    check(&client, &module, "k19876", 19_876);
    let per_byte = (peak(pid) - before) / text.len() as u64;
    println!("{per_byte} bytes for each byte of PTX");
    assert!(per_byte <= MOST_PER_BYTE, "{per_byte} bytes for each byte of PTX");
    // The daemon goes on, and the module can be unloaded.
    client.check(&client.spin(10, 10));
    client.session.unload_module(module.module).unwrap();
}
