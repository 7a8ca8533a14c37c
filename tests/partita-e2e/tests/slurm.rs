//! Partita under a real Slurm: jobs of two users share a GPU, and nothing that happens to a job
//! leaves a reservation behind or drains the node.
//!
//! One cluster serves the whole test, because its start takes longer than most checks.

use partita_e2e::daemon::Daemon;
use partita_e2e::slurm::{ALICE, BOB, Cluster, said};
use partita_e2e::toolchain;
use partita_model::StatusReport;
use std::fs::{File, OpenOptions};
use std::path::{Path, PathBuf};

const SMS: u16 = 24;
/// A GPU that keeps no time: the jobs' results are what counts.
const DEVICE: &str = "emu:cd-search-24,timing=off";

/// A job whose launch lasts until this is dropped: its script reads from a pipe.
struct Gate {
    pipe: PathBuf,
    _writer: File,
}

impl Gate {
    fn new(cluster: &Cluster, name: &str) -> Gate {
        let pipe = cluster.out().join(name);
        let made = std::process::Command::new("mkfifo").args(["-m", "666"]).arg(&pipe).status();
        assert!(made.expect("mkfifo is there").success());
        // For reading, too: so the opening does not wait for the job.
        let both = OpenOptions::new().read(true).write(true).open(&pipe);
        Gate { pipe, _writer: both.expect("a pipe can be opened") }
    }

    /// `poly`, whose launch is held behind the gate. It checks its own result.
    fn held(&self, poly: &Path, seed: u32) -> String {
        format!("{} 32768 3000 {seed} held < {}", poly.display(), self.pipe.display())
    }
}

/// Pairs of a user and the number of its application's SMs.
fn shares(status: &StatusReport) -> Vec<(u32, u16)> {
    let of = |id| status.partitions.iter().find(|one| one.application == id);
    let busy = status.applications.iter().filter(|one| one.ctas_completed > 0);
    let mut all: Vec<(u32, u16)> =
        busy.filter_map(|one| Some((one.tenant.0, of(one.id)?.sms.len()))).collect();
    all.sort_unstable();
    all
}

#[test]
fn jobs_of_several_users_share_a_gpu_and_leave_nothing_behind() {
    let mut daemon = Daemon::for_every_user(DEVICE, "[policy]\npartitioner = \"even\"\n");
    let Some(mut cluster) = Cluster::start(&daemon, SMS) else { return };
    let poly = cluster.install(&toolchain::program("poly"));

    without_the_option_nothing_changes(&cluster);
    wrong_options_are_refused(&cluster);
    two_share_and_a_third_waits(&mut daemon, &mut cluster, &poly);
    cancelled_and_killed_jobs_give_back(&daemon, &cluster, &poly);
    an_epilog_may_find_nothing(&daemon, &cluster);
    assert_eq!(cluster.node(), "idle none", "the node was never drained");
}

fn without_the_option_nothing_changes(cluster: &Cluster) {
    let variables = cluster.ask("srun", &["--export=ALL", "env"]);
    for word in ["LD_PRELOAD", "PARTITA_APP", "PARTITA_SMS", "CUPY"] {
        assert!(!variables.contains(word), "{variables}");
    }
    let variables = cluster.ask("srun", &["--partita-sms=2-4", "--partita-priority=batch", "env"]);
    for line in ["PARTITA_SMS=2..4", "PARTITA_PRIORITY=batch", "PARTITA_APP=slurm-"] {
        assert!(variables.lines().any(|one| one.starts_with(line)), "{line}: {variables}");
    }
    let mut command = cluster.command("srun", &["env"]);
    let output = command.env("SLURM_PARTITA_SMS", "3").output().expect("srun can be started");
    let variables = said(&output);
    assert!(variables.contains("PARTITA_SMS=3.."), "{variables}");
}

fn wrong_options_are_refused(cluster: &Cluster) {
    for (program, option, command, words) in [
        ("srun", "--partita-sms=0", "true", "write SMs as in `8`"),
        ("salloc", "--partita-sms=24-8", "true", "write it as `8-24`"),
        ("sbatch", "--partita-memory=8", "--wrap=true", "write it as in `8G`"),
        ("srun", "--partita-priority=high", "true", "`latency`, `normal` or `batch`"),
    ] {
        let output = cluster.output(program, &[option, command]);
        let text = said(&output);
        assert!(!output.status.success(), "{program} {option}: {text}");
        assert!(text.contains(words) && text.contains(option), "{program} {option}: {text}");
    }
    // More SMs than any node has.
    let output = cluster.output("sbatch", &["--partita-sms=25", "--wrap=true"]);
    assert!(said(&output).contains("node configuration is not available"), "{}", said(&output));
    cluster.wait_for("no job to be left", || cluster.ask("squeue", &["--noheader"]).is_empty());
}

fn two_share_and_a_third_waits(daemon: &mut Daemon, cluster: &mut Cluster, poly: &Path) {
    let gates = [Gate::new(cluster, "first"), Gate::new(cluster, "second")];
    let first = cluster.submit(ALICE, &["--partita-sms=14-15"], &gates[0].held(poly, 1));
    // A step gets the shim anew, whatever the script has done to its environment.
    let step = format!("unset LD_PRELOAD; srun bash -c '{}'", gates[1].held(poly, 2));
    let second = cluster.submit(BOB, &["--partita-sms=8"], &step);
    let short = format!("{} 4096 300 3", poly.display());
    let third = cluster.submit(ALICE, &["--partita-sms=8"], &short);
    daemon.wait_for("both to run on what they have reserved", |status| {
        matches!(shares(status)[..], [(1, 14..=15), (2, 8..)])
    });
    cluster
        .wait_for("the third to wait for SMs", || cluster.of_job(&third, "Reason") == "Resources");
    assert_eq!(daemon.reservations(), [format!("slurm-{first}"), format!("slurm-{second}")]);

    daemon.kill_and_restart();
    cluster.restart_node();
    assert_eq!(shares(&daemon.status()).len(), 2, "both go on");
    drop(gates);
    for job in [&first, &second, &third] {
        cluster.wait_for_state(job, "COMPLETED");
        let written = cluster.written(job);
        assert!(written.ends_with("PASSED\n"), "job {job}: {written}");
        let comment = cluster.of_job(job, "AdminComment");
        let had = comment.strip_prefix("partita: ").and_then(|rest| rest.split(' ').next());
        let had = had.and_then(|number| number.parse::<f64>().ok());
        // The third is over before it has had a millisecond.
        let least = if job == &third { 0.0 } else { 0.001 };
        assert!(had.is_some_and(|sm_seconds| sm_seconds >= least), "job {job}: {comment}");
    }
    no_reservation_is_left(daemon, cluster);
}

fn cancelled_and_killed_jobs_give_back(daemon: &Daemon, cluster: &Cluster, poly: &Path) {
    let gates = [Gate::new(cluster, "cancelled"), Gate::new(cluster, "killed")];
    let jobs = [0, 1].map(|at: usize| {
        let user = [ALICE, BOB][at];
        cluster.submit(user, &["--partita-sms=8"], &format!("exec {}", gates[at].held(poly, 4)))
    });
    let status = daemon.wait_for("both to run", |status| shares(status).len() == 2);
    assert_eq!(daemon.reservations().len(), 2);
    assert!(cluster.ask("scancel", &[jobs[0].as_str()]).is_empty());
    let of_bob = status.applications.iter().find(|one| one.tenant.0 == 2).expect("it runs");
    let id = i32::try_from(of_bob.pids[0]).expect("a process has a small number");
    let id = rustix::process::Pid::from_raw(id).expect("a process has a number");
    rustix::process::kill_process(id, rustix::process::Signal::KILL).expect("root may kill it");
    cluster.wait_for_state(&jobs[0], "CANCELLED");
    cluster.wait_for_state(&jobs[1], "FAILED");
    no_reservation_is_left(daemon, cluster);
}

fn an_epilog_may_find_nothing(daemon: &Daemon, cluster: &Cluster) {
    let end = cluster.out().join("end");
    let script = format!("until [ -e {} ]; do sleep 0.1; done", end.display());
    let job = cluster.submit(ALICE, &["--partita-sms=8"], &script);
    let name = format!("slurm-{job}");
    cluster.wait_for("the job's reservation", || daemon.reservations() == [name.as_str()]);
    let released = daemon.partita(&["reservation", "release", &name]).status();
    assert!(released.expect("partita can be started").success());
    cluster.wait_for_state(&job, "RUNNING");
    File::create(&end).expect("a file can be made");
    cluster.wait_for_state(&job, "COMPLETED");
    no_reservation_is_left(daemon, cluster);
}

fn no_reservation_is_left(daemon: &Daemon, cluster: &Cluster) {
    cluster.wait_for("all reservations to end", || daemon.reservations().is_empty());
    cluster.wait_for("the node to be idle", || cluster.node().starts_with("idle"));
}
