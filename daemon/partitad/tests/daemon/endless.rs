//! Kernels that never end, beside programs that get on.

use super::{Client, Daemon, PATIENCE};
use partita_client::{Launch, Session, StreamHandle, image};
use partita_model::Dim3;
use std::time::Instant;

/// `waits` looks at a word that nobody writes; `computes` counts.
const PTX: &str = "
.version 8.0
.target sm_80
.address_size 64
.visible .entry waits(.param .u64 flag)
{
    .reg .b64 %d<2>;
    .reg .b32 %r<2>;
    .reg .pred %p;
    ld.param.u64 %d1, [flag];
AGAIN:
    ld.volatile.global.u32 %r1, [%d1];
    setp.eq.u32 %p, %r1, 0;
    @%p bra AGAIN;
    ret;
}
.visible .entry computes(.param .u64 flag)
{
    .reg .b64 %d<2>;
    .reg .b32 %r<3>;
    .reg .pred %p;
    ld.param.u64 %d1, [flag];
    mov.u32 %r1, %tid.x;
AGAIN:
    mad.lo.u32 %r1, %r1, 2, 2;
    and.b32 %r2, %r1, 1;
    setp.eq.u32 %p, %r2, 0;
    @%p bra AGAIN;
    st.global.u32 [%d1], %r1;
    ret;
}
";
/// `CUDA_ERROR_LAUNCH_TIMEOUT`.
const TIMEOUT: i32 = 702;
const ROUNDS: u32 = 20;

/// A session that has launched an endless kernel, of `ctas` CTAs of 128 threads.
fn endless(daemon: &Daemon, kernel: u32, ctas: u32) -> Session {
    let session = Session::connect(&daemon.sockets()).unwrap();
    let image = image::select(PTX.as_bytes(), session.facts().compute_capability).unwrap();
    let module = session.load_module(&image).unwrap();
    let flag = session.mem_alloc(4).unwrap();
    session.copy_to_device(StreamHandle::LEGACY, flag, &[0; 4]).unwrap();
    let params = flag.0.to_le_bytes();
    session
        .launch(Launch {
            module: module.module,
            kernel,
            grid: Dim3::linear(ctas),
            block: Dim3::linear(128),
            dynamic_shared: 0,
            stream: StreamHandle::LEGACY,
            cooperative: false,
            cluster: Dim3::linear(1),
            params: &params[..],
        })
        .unwrap();
    session
}

/// With the limits that a daemon has by default.
fn check(kernel: u32, name: &str) {
    let daemon = Daemon::start();
    let endless = endless(&daemon, kernel, 1024);
    let waiting = std::thread::spawn(move || endless.synchronize(None));
    daemon.wait_for("the endless kernel", |status| {
        status.applications.iter().any(|application| !application.kernels.is_empty())
    });
    let client = Client::new(Session::connect(&daemon.sockets()).unwrap());
    let start = Instant::now();
    for _ in 0..ROUNDS {
        client.check(&client.spin(10, 10));
        assert!(start.elapsed() < PATIENCE, "the rounds take {:?}", start.elapsed());
    }
    assert_eq!(waiting.join().unwrap().unwrap_err().code, TIMEOUT);
    let log = daemon.log();
    let line = log.lines().find(|line| line.contains("it is ended"));
    let line = line.unwrap_or_else(|| panic!("{log}"));
    assert!(line.contains(&format!("kernel `{name}`")), "{line}");
}

#[test]
fn others_work_beside_a_kernel_that_never_ends() {
    let daemon = Daemon::start();
    let sms = Session::connect(&daemon.sockets()).unwrap().facts().sm_count;
    // One CTA on each SM.
    let endless = endless(&daemon, 0, sms.into());
    daemon.wait_for("the endless kernel", |status| {
        status.partitions.iter().any(|partition| partition.sms.len() == sms)
    });
    let client = Client::new(Session::connect(&daemon.sockets()).unwrap());
    for _ in 0..ROUNDS {
        client.check(&client.spin(10, 10));
    }
    let log = daemon.log();
    assert!(log.contains("work beside them") && !log.contains(": it is ended"), "{log}");
    drop((client, endless));
    daemon.wait_for("an empty GPU", |status| status.applications.is_empty());
}

#[test]
fn a_kernel_that_waits_forever_is_ended_where_it_holds_others_up() {
    check(0, "waits");
}

#[test]
fn a_kernel_that_computes_forever_is_ended_where_it_holds_others_up() {
    check(1, "computes");
}
