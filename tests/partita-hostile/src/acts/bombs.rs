//! Bombs: single requests that cost the daemon or the device much.

use super::client::{self, Client, Shape};
use super::{Attack, Outcome, floods};
use partita_client::image::{Image, ImageKind};
use partita_client::{Session, StreamHandle};
use partita_model::{DeviceAddress, Dim3};
use std::fmt::Write as _;
use std::time::Duration;

const HEAD: &str = ".version 8.0\n.target sm_75\n.address_size 64\n";
/// Kernels of a module that gets no forms at once. A kernel that names the module's constant gets
/// none later.
const TOO_MANY_KERNELS: usize = 3000;
/// Bytes of page-locked memory that an act asks for at once.
const MANAGED: u64 = 64 << 20;
const PAGE: u64 = 4096;
/// Bytes of device memory that an act asks for at once.
const CHUNK: u64 = 256 << 20;

pub fn variables(attack: &mut Attack) -> Outcome {
    let session = attack.session()?;
    let mut text = HEAD.to_owned();
    if attack.random.below(2) == 0 {
        let words = 100_000 + attack.random.below(400_000);
        write!(text, ".visible .global .align 4 .u32 big[{words}] = {{0").expect("text");
        for word in 1..words {
            write!(text, ",{}", word & 0xffff).expect("a string takes text");
        }
        text.push_str("};\n");
    } else {
        let bytes = 1_u64 << (28 + attack.random.below(12));
        writeln!(text, ".visible .global .align 8 .b8 huge[{bytes}];").expect("text");
    }
    text.push_str(".visible .entry k(.param .u64 p)\n{\nret;\n}\n");
    let loaded = client::load(attack, &session, &text)?;
    std::thread::sleep(attack.random.millis(1, 200));
    attack.tally.count(session.unload_module(loaded.module))
}

pub fn odd_ptx(attack: &mut Attack) -> Outcome {
    let session = attack.session()?;
    let kernel =
        |body: &str| format!("{HEAD}.visible .entry k(.param .u64 p)\n{{\n{body}ret;\n}}\n");
    let text = match attack.random.below(7) {
        0 => kernel(&"{\n".repeat(200_000)),
        1 => kernel(&format!(".reg .b32 %r<2>;\nmov.u32 %r1, {}1;\n", "(".repeat(200_000))),
        2 => format!("{HEAD}.visible .entry {}(\n", "x".repeat(4 << 20)),
        3 => {
            let labels: Vec<_> =
                (0..50_000).map(|at| format!("L{at}: bra L{};\n", at / 2)).collect();
            kernel(&labels.concat())
        }
        4 => slow(attack),
        5 => {
            let words: Vec<_> = (0..50_000).map(|_| attack.random.word().to_string()).collect();
            format!("{HEAD}{}", words.join(" "))
        }
        _ => format!("{HEAD}.visible .global .b32 x[4] = {}1", "{".repeat(100_000)),
    };
    client::load(attack, &session, &text).map(drop)
}

/// Kernels with a barrier behind each of many loops in each other. Analyses of them take long.
fn slow(attack: &mut Attack) -> String {
    let loops = 400 + attack.random.below(1200);
    let mut text = format!("{HEAD}// {}\n", attack.random.bits());
    for kernel in 0..4 {
        writeln!(
            text,
            ".visible .entry slow{kernel}(.param .u64 p)\n{{\n.reg .b64 %d<2>;\n.reg .b32 %r<4>;\n\
             .reg .pred %p<2>;\nld.param.u64 %d1, [p];\nmov.u32 %r1, %tid.x;"
        )
        .expect("a string takes text");
        for at in 0..loops {
            writeln!(text, "L{at}: add.u32 %r2, %r2, 1;").expect("a string takes text");
        }
        for at in (0..loops).rev() {
            writeln!(
                text,
                "ld.global.u32 %r3, [%d1]; setp.lt.u32 %p1, %r3, %r1; @%p1 bra L{at}; bar.sync 0;"
            )
            .expect("a string takes text");
        }
        text.push_str("ret;\n}\n");
    }
    text
}

pub fn packed(attack: &mut Attack) -> Outcome {
    let session = attack.session()?;
    let megabytes = 1 + attack.random.below(200);
    let spaces = vec![b' '; 1 << 20];
    let mut encoder = zstd::Encoder::new(Vec::new(), 1)?;
    for _ in 0..megabytes {
        std::io::Write::write_all(&mut encoder, &spaces)?;
    }
    let bytes = encoder.finish()?;
    let kind =
        *attack.random.one_of(&[ImageKind::PtxZstd, ImageKind::CubinZstd, ImageKind::PtxLz4]);
    // What it says: the truth, less, or more.
    let unpacked = megabytes << 20;
    let unpacked_bytes = *attack.random.one_of(&[unpacked, 1, 256 << 20]);
    let image = Image { kind, bytes: &bytes, unpacked_bytes };
    attack.tally.count(session.load_module(&image)).map(drop)
}

pub fn managed(attack: &mut Attack) -> Outcome {
    let client = Client::connect(attack)?;
    loop {
        let address = attack.tally.count(client.session.host_alloc(MANAGED))?;
        let address = DeviceAddress(address.addr() as u64);
        let ctas = u32::try_from(MANAGED / PAGE / 64).expect("few CTAs");
        attack.tally.count(client.launch("touch", &Shape::of(ctas), address, &[]))?;
        attack.tally.count(client.session.synchronize(None))?;
    }
}

pub fn device_memory(attack: &mut Attack) -> Outcome {
    let client = Client::connect(attack)?;
    let session = &client.session;
    let mut bytes = CHUNK;
    while bytes >= PAGE {
        let Some(address) = attack.tally.attempt(session.mem_alloc(bytes)) else {
            bytes /= 2;
            continue;
        };
        let fill = session.fill(StreamHandle::LEGACY, address, 0xff, 1, bytes);
        attack.tally.count(fill)?;
        attack.tally.count(session.synchronize(None))?;
    }
    std::thread::sleep(Duration::from_millis(200));
    Ok(())
}

pub fn endless(attack: &mut Attack) -> Outcome {
    let client = Client::connect(attack)?;
    let session = &client.session;
    for _ in 0..4 {
        let stream = attack.tally.count(session.create_stream(true, 0))?;
        let ctas = *attack.random.one_of(&[1, 100, 1 << 16]);
        let kernel = *attack.random.one_of(&["waits", "computes"]);
        let shape = Shape { stream, ..Shape::of(ctas) };
        attack.tally.count(client.launch(kernel, &shape, client.data, &[]))?;
    }
    if attack.random.below(2) == 0 {
        attack.tally.count(session.synchronize(None))?;
    }
    std::thread::sleep(attack.random.millis(100, 5000));
    Ok(())
}

pub fn faults(attack: &mut Attack) -> Outcome {
    let client = Client::connect(attack)?;
    let window = client.session.window();
    let elsewhere = match attack.random.below(4) {
        0 => 0,
        1 => window.base.0 + window.bytes + attack.random.below(1 << 44),
        2 => window.base.0.saturating_sub(1 << 26),
        _ => attack.random.bits(),
    };
    let kernel = *attack.random.one_of(&["stray", "traps", "parts"]);
    let ctas = *attack.random.one_of(&[1, 1000]);
    attack.tally.count(client.launch(kernel, &Shape::of(ctas), DeviceAddress(elsewhere), &[]))?;
    attack.tally.count(client.session.synchronize(None))
}

pub fn huge_grids(attack: &mut Attack) -> Outcome {
    let client = Client::connect(attack)?;
    let grid = *attack.random.one_of(&[
        Dim3 { x: (1 << 31) - 1, y: 1, z: 1 },
        Dim3 { x: (1 << 31) - 1, y: 65_535, z: 65_535 },
        Dim3 { x: u32::MAX, y: u32::MAX, z: u32::MAX },
        Dim3 { x: 1, y: 65_535, z: 65_535 },
        Dim3 { x: 0, y: 1, z: 1 },
    ]);
    let threads = *attack.random.one_of(&[32, 1024, 100_000]);
    let shape = Shape { grid, threads, stream: StreamHandle::LEGACY };
    let kernel = *attack.random.one_of(&["tiny", "busy"]);
    attack.tally.count(client.launch(kernel, &shape, client.data, &[50]))?;
    std::thread::sleep(attack.random.millis(200, 3000));
    attack.tally.count(client.session.query_stream(StreamHandle::LEGACY)).map(drop)
}

pub fn originals(attack: &mut Attack) -> Outcome {
    let session: Session = attack.session()?;
    let mut text = floods::small_kernels(TOO_MANY_KERNELS, attack.random.bits());
    text.push_str(include_str!("constant.ptx"));
    let module = client::load(attack, &session, &text)?;
    let data = attack.tally.count(session.mem_alloc(client::BYTES))?;
    let client = Client { session, module, data };
    loop {
        let (ctas, steps) = *attack.random.one_of(&[(1000, 1000), (4000, 1000), (20_000, 500)]);
        attack.tally.count(client.launch("shares", &Shape::of(ctas), client.data, &[steps]))?;
        attack.tally.count(client.session.synchronize(None))?;
    }
}
