//! A daemon that serves several GPUs: each is its own, and clients get those that their user may
//! have.

use super::{Client, DEVICE, Daemon, check_memory, gpu_binary};
use partita_client::{Found, Session};
use partita_model::{DeviceKind, GpuNumber, PartitionReport, SmSet, StatusReport};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;
use std::path::Path;
use std::process::Stdio;

const OTHER: &str = "emu:titan-xp";

/// `DEVICE` is GPU 0, `OTHER` GPU 1.
fn two(more: &[&str]) -> Daemon {
    Daemon::with(&[&["--device", OTHER, "--policy", "even"], more].concat())
}

fn connect_to(daemon: &Daemon, number: u16) -> Client {
    Client::new(Session::connect_to(&daemon.sockets(), GpuNumber(number), |_, _| {}).unwrap())
}

fn of_gpu(daemon: &Daemon, number: u16) -> StatusReport {
    let request = format!("GET /v1/status?gpu={number}");
    serde_json::from_value(daemon.ask(&request, "").body).unwrap()
}

#[test]
fn each_gpu_has_programs_partitions_and_addresses_of_its_own() {
    let daemon = two(&[]);
    let Found::Offer(offers) = Session::connect_to_only(&daemon.sockets(), |_, _| {}).unwrap()
    else {
        panic!("there are two GPUs to choose from")
    };
    let sms: Vec<_> = offers.iter().map(|offer| (offer.number, offer.facts.sm_count)).collect();
    assert_eq!(sms, [(GpuNumber(0), 24), (GpuNumber(1), 30)]);
    assert_ne!(offers[0].facts.uuid, offers[1].facts.uuid);

    // Who does not choose gets the first.
    let (first, second, another) =
        (daemon.connect(), connect_to(&daemon, 1), connect_to(&daemon, 1));
    assert_eq!(first.session.facts().sm_count, 24);
    let windows = [&first, &second, &another].map(|client| client.session.window());
    for (index, one) in windows.iter().enumerate() {
        for other in &windows[..index] {
            assert!(
                !one.contains(other.base) && !other.contains(one.base),
                "{one:?} and {other:?} overlap"
            );
        }
    }
    assert!(windows[0].base < windows[1].base, "each GPU has its part of the addresses");
    let held = [
        (&first, first.hold(30, 8000)),
        (&second, second.hold(20, 8000)),
        (&another, another.hold(10, 8000)),
    ];

    let sms = |partitions: &[PartitionReport]| -> Vec<_> {
        partitions.iter().map(|part| part.sms.len()).collect()
    };
    let status = daemon.wait_for("everybody to have SMs to work on", |status| {
        (sms(&status.partitions), sms(&status.others[0].partitions)) == (vec![24], vec![15, 15])
    });
    let other = &status.others[0];
    assert_eq!((status.gpu.number, other.gpu.number), (GpuNumber(0), GpuNumber(1)));
    assert_ne!(status.gpu.pid, other.gpu.pid);
    assert_eq!(of_gpu(&daemon, 1).partitions, other.partitions);

    let application = other.applications[0].id;
    let plan = json!({"partitions": [{"application": application, "sms": "0-3"}]}).to_string();
    assert_eq!(daemon.ask("PUT /v1/plan", &plan).status, 400);
    assert_eq!(daemon.ask("PUT /v1/plan?gpu=1", &plan).status, 204);
    let pinned =
        |report: &StatusReport| report.partitions.iter().any(|part| part.sms == SmSet::range(0, 4));
    assert!(pinned(&of_gpu(&daemon, 1)) && !pinned(&of_gpu(&daemon, 0)));
    for (client, held) in held {
        client.release(held);
    }
}

#[test]
fn the_fall_of_one_leaves_the_others_alone() {
    let daemon = two(&[]);
    let (first, second) = (connect_to(&daemon, 0), connect_to(&daemon, 1));
    let spinning = first.spin(300, 300);
    let _lost = second.spin(100_000, 10_000);
    let before = daemon.status();
    kill_process(Pid::from_raw(before.others[0].gpu.pid.cast_signed()).unwrap(), Signal::KILL)
        .unwrap();
    let error = second.session.synchronize(None).unwrap_err();
    assert_eq!(error.code, partita_client::code::PEER_GONE);
    first.check(&spinning);
    let next = connect_to(&daemon, 1);
    next.check(&next.spin(10, 10));
    first.check(&first.spin(10, 10));
    let after = daemon.status();
    assert_eq!((after.gpu.restarts, after.others[0].gpu.restarts), (0, 1));
    assert_eq!(after.gpu.pid, before.gpu.pid);
    assert_eq!(
        after.others[0].policy.partitioner, "even",
        "the next one decides by the same policy"
    );
}

#[test]
fn users_get_the_gpus_that_they_may_use() {
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("partitad.toml");
    let own = rustix::process::geteuid().as_raw();
    let write = |tenants: &str| {
        let text = format!("[policy]\n[[policy.gpu]]\nnumber = 0\ntenants = [{tenants}]\n");
        std::fs::write(&config, text).unwrap();
    };
    // Every system has it, and nobody runs tests as it.
    write("\"daemon\"");
    let daemon = two(&["--config", config.to_str().unwrap()]);
    let connect = |number| Session::connect_to(&daemon.sockets(), GpuNumber(number), |_, _| {});
    for session in [Session::connect(&daemon.sockets()).unwrap(), connect(1).unwrap()] {
        assert_eq!(session.facts().sm_count, 30, "the first GPU is not for this user");
    }
    let Found::Session(session) = Session::connect_to_only(&daemon.sockets(), |_, _| {}).unwrap()
    else {
        panic!("one GPU is no choice")
    };
    assert_eq!(session.facts().sm_count, 30);
    let error = connect(0).err().unwrap().to_string();
    assert!(error.contains(&format!("uid {own} may not use GPU 0")), "{error}");
    assert!(error.contains("[[policy.gpu]]"), "{error}");
    let error = connect(2).err().unwrap().to_string();
    assert!(error.contains("there is no GPU 2"), "{error}");

    write(&own.to_string());
    kill_process(daemon.pid(), Signal::HUP).unwrap();
    daemon.wait_for("the configuration", |_| {
        daemon.log().contains("the configuration was read again")
    });
    assert_eq!(connect(0).unwrap().facts().sm_count, 24);

    std::fs::write(&config, "[policy]\n\n[[policy.gpu]]\nnumber = 2\n").unwrap();
    kill_process(daemon.pid(), Signal::HUP).unwrap();
    daemon.wait_for("its refusal", |_| {
        daemon.log().contains("partitad.toml:3: there is no GPU 2: the daemon serves 2, GPU 0 to 1")
    });
    assert_eq!(connect(0).unwrap().facts().sm_count, 24);
}

#[test]
fn gpus_that_cannot_be_served_together_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let sockets = folder.path().join("sockets");
    let check = |devices: [&str; 2], words: &[&str]| {
        let mut command = Daemon::command(devices[0], &sockets);
        let output =
            command.args(["--device", devices[1]]).stderr(Stdio::piped()).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(words.iter().all(|word| said.contains(word)), "{said}");
    };
    check(
        ["cuda:1", "cuda:1,guards=off"],
        &["`cuda:1`", "the same GPU", "leave one of the two --device out"],
    );
    check(["cuda", "cuda:0"], &["the same GPU"]);
    check(["auto", "emu"], &["`auto`", "every GPU"]);
    check([DEVICE, "emu:nothing"], &["nothing", "cd-search-24"]);
}

#[test]
fn auto_is_every_gpu_and_real_ones_keep_to_their_addresses() {
    let library = gpu_binary().with_file_name("libpartita_fake_gpu.so");
    let variables: [(&str, &Path); 3] = [
        ("PARTITA_LIBCUDA", &library),
        ("PARTITA_LIBNVIDIA_ML", &library),
        ("CUDA_VISIBLE_DEVICES", Path::new("0,1")),
    ];
    let daemon = Daemon::serving("auto", &variables, &["--policy", "even"]);
    let status = daemon.status();
    assert_eq!((status.gpu.kind, status.others.len()), (DeviceKind::Cuda, 1));
    let sessions = [0, 1].map(|number| connect_to(&daemon, number).session);
    assert_ne!(sessions[0].facts().uuid, sessions[1].facts().uuid);
    let windows = sessions.each_ref().map(Session::window);
    assert!(windows[0].base < windows[1].base, "{windows:?}");
    assert!(!windows[0].contains(windows[1].base), "{windows:?}");
    sessions.iter().for_each(check_memory);
}
