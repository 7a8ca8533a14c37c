//! Programs that make the daemon hold much of the machine's memory.

use super::{Client, Daemon};
use partita_client::{CallError, Console, Session, StreamHandle, code, image};
use partita_model::DeviceAddress;
use std::sync::Mutex;

/// What a user's programs may make the daemon hold, and in which steps one of them does.
const LIMIT_MIB: u64 = 192;
const STEP: u64 = 64 << 20;
/// Far more steps than the limit allows.
const STEPS: u64 = 16;

/// What the programs of this process were told.
static TOLD: Mutex<Vec<u8>> = Mutex::new(Vec::new());

fn hear(console: Console, text: &[u8]) {
    assert_eq!(console, Console::Error);
    TOLD.lock().unwrap().extend_from_slice(text);
}

/// A daemon with that limit.
fn limited() -> Daemon {
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("partitad.toml");
    let quota =
        format!("[policy]\npartitioner = \"even\"\n[[policy.host_memory]]\nmib = {LIMIT_MIB}\n");
    std::fs::write(&config, quota).unwrap();
    Daemon::with(&["--config", config.to_str().unwrap()])
}

/// One program does `step` over and over, beside one that computes: it gets CUDA's error for
/// memory, and the other one nothing.
fn check(step: impl Fn(&Session, u64) -> Result<(), CallError>, what: &str) {
    let daemon = limited();
    let healthy = daemon.connect();
    let greedy = Session::connect_with_output(&daemon.sockets(), hear).unwrap();
    let ended = (0..STEPS).find_map(|index| {
        healthy.check(&healthy.spin(10, 10));
        step(&greedy, index).and_then(|()| greedy.synchronize(None)).err()
    });
    let ended = ended.expect("the program may hold as much as it likes");
    assert_eq!(ended.code, code::OUT_OF_MEMORY, "{ended:?}");
    healthy.check(&healthy.spin(10, 10));
    // The sentence is in the log and with the program.
    let _ = greedy.check();
    let told = String::from_utf8(TOLD.lock().unwrap().clone()).unwrap();
    for text in [daemon.log(), told] {
        assert!(text.contains("make the daemon hold") && text.contains(what), "{text}");
    }
    daemon.wait_for("its memory to come back", |status| {
        status.applications.len() == 1 && resident_mib(status.gpu.pid) < LIMIT_MIB
    });
    drop(greedy);
    let next = daemon.connect();
    next.check(&next.spin(10, 10));
    assert_eq!(daemon.status().gpu.restarts, 0);
}

/// Memory of a process, in MiB.
fn resident_mib(pid: u32) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/statm")).unwrap();
    let pages: u64 = text.split_whitespace().nth(1).unwrap().parse().unwrap();
    (pages * rustix::param::page_size() as u64) >> 20
}

#[test]
fn copies_into_its_own_memory_count() {
    check(
        |session, _| {
            let from = session.mem_alloc(STEP)?;
            let to = session.host_alloc(STEP)?;
            let to = session.host_range(to, STEP).unwrap();
            session.copy_to_host_memory(StreamHandle::LEGACY, to, from)?;
            session.synchronize(None)?;
            session.mem_free(from)
        },
        "of page-locked and managed memory",
    );
}

/// A managed variable of [`STEP`] bytes.
const MANAGED_VARIABLE: &str = ".version 7.0\n.target sm_70\n.address_size 64\n\
    .visible .global .attribute(.managed) .align 4 .b8 shared[67108864];\n\
    .visible .entry none()\n{\n\tret;\n}\n";

#[test]
fn managed_memory_that_the_device_touches_counts() {
    check(
        |session, _| {
            let capability = session.facts().compute_capability;
            let image = image::select(MANAGED_VARIABLE.as_bytes(), capability).unwrap();
            let module = session.load_module(&image)?;
            let to = module.contents.variables[0].address;
            session.fill(StreamHandle::LEGACY, to, 7, 4, STEP / 4)
        },
        "of page-locked and managed memory",
    );
}

#[test]
fn memory_of_the_emulated_gpu_counts_where_it_was_touched() {
    check(
        |session, index| {
            // Memory that nobody touches costs nothing.
            if index == 0 {
                session.mem_alloc(16 * STEP)?;
            }
            let to = session.mem_alloc(STEP)?;
            session.fill(StreamHandle::LEGACY, to, 7, 4, STEP / 4)
        },
        "of memory of the emulated GPU",
    );
}

/// A program whose kernel has failed keeps its memory as long as it lives. It goes before the
/// smaller program that works.
#[test]
fn a_program_that_has_failed_goes_for_its_memory() {
    let daemon = limited();
    let working = daemon.connect();
    let failed = daemon.connect();
    let touch = |client: &Client, bytes: u64| {
        let to = client.session.mem_alloc(bytes).unwrap();
        client.session.fill(StreamHandle::LEGACY, to, 7, 4, bytes / 4).unwrap();
        client.session.synchronize(None)
    };
    touch(&failed, 2 * STEP).unwrap();
    failed.launch("spin", 1, &[0; 12]);
    let error = failed.session.synchronize(None).unwrap_err();
    assert_eq!(error.code, code::ILLEGAL_ADDRESS, "{error:?}");
    touch(&working, STEP + STEP / 2).unwrap();
    daemon.wait_for("its memory to come back", |status| {
        status.applications.len() == 1 && resident_mib(status.gpu.pid) < LIMIT_MIB
    });
    working.check(&working.spin(10, 10));
}

/// A variable of 1 GiB of which one byte has a value.
const LARGE_VARIABLE: &str = ".version 7.0\n.target sm_70\n.address_size 64\n\
    .visible .global .align 4 .b8 large[1073741824] = {1};\n\
    .visible .entry none()\n{\n\tret;\n}\n";

#[test]
fn variables_cost_what_their_initial_values_take() {
    let daemon = Daemon::start();
    let clients: Vec<Client> = (0..3).map(|_| daemon.connect()).collect();
    for client in &clients {
        let capability = client.session.facts().compute_capability;
        let image = image::select(LARGE_VARIABLE.as_bytes(), capability).unwrap();
        let module = client.session.load_module(&image).unwrap();
        let variable = &module.contents.variables[0];
        let mut bytes = [0; 4];
        for (offset, expected) in [(0, [1, 0, 0, 0]), ((1 << 30) - 4, [0; 4])] {
            let from = DeviceAddress(variable.address.0 + offset);
            client.session.copy_to_host(StreamHandle::LEGACY, &mut bytes, from).unwrap();
            assert_eq!(bytes, expected, "at {offset}");
        }
    }
    let held = resident_mib(daemon.status().gpu.pid);
    assert!(held < 1024, "{held} MiB for three bytes");
}

#[test]
fn the_data_plane_goes_first_where_memory_runs_out() {
    let daemon = Daemon::start();
    let score = |pid: u32| -> i32 {
        let text = std::fs::read_to_string(format!("/proc/{pid}/oom_score_adj")).unwrap();
        text.trim().parse().unwrap()
    };
    let own = score(daemon.pid().as_raw_nonzero().get().cast_unsigned());
    assert!(score(daemon.status().gpu.pid) > own.min(999));
}
