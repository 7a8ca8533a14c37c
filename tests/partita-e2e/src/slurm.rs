//! A Slurm of the test's own: `munged`, `slurmctld` and one `slurmd`, with Partita's SPANK plugin.
//!
//! All of it lies in one folder, on ports of its own, without systemd and without the machine's own
//! Slurm. The node has a counted GRES `sm`. Only root can run jobs of several users.

use crate::binaries;
use crate::daemon::{Daemon, PATIENCE};
use std::fs::{self, File, Permissions};
use std::io::Read;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// A user of every Debian, as a job's user.
pub const ALICE: &str = "daemon";
/// A second one.
pub const BOB: &str = "bin";

const NODE: &str = "localhost";

/// A running cluster of one node; dropping it ends it.
pub struct Cluster {
    folder: tempfile::TempDir,
    munged: Child,
    controller: Child,
    node: Child,
}

/// What stands in the way of a cluster on this machine.
fn obstacle() -> Option<String> {
    if !rustix::process::geteuid().is_root() {
        return Some("only root can run jobs of several users; run this test as root".into());
    }
    // `srun -V` wants a configuration.
    let path = std::env::var_os("PATH").unwrap_or_default();
    let is_there =
        |program: &&str| std::env::split_paths(&path).any(|at| at.join(program).is_file());
    let missing =
        ["munged", "slurmctld", "slurmd", "srun", "scontrol"].into_iter().find(|p| !is_there(p))?;
    Some(format!("there is no {missing}; on Debian, apt-get install slurm-wlm munge"))
}

impl Cluster {
    /// Starts a cluster whose node shares the daemon's GPU, which has `sms` SMs, and waits until
    /// the node takes jobs. `None`, and a sentence, where that cannot be on this machine.
    ///
    /// # Panics
    /// Where it does not come up.
    #[must_use]
    pub fn start(daemon: &Daemon, sms: u16) -> Option<Cluster> {
        if let Some(why) = obstacle() {
            eprintln!("SKIPPED: {why}");
            return None;
        }
        let folder = tempfile::tempdir().expect("a temporary directory can be created");
        open(folder.path(), 0o755);
        for (name, mode) in [("spool", 0o755), ("state", 0o755), ("lib", 0o755), ("out", 0o1777)] {
            let path = folder.path().join(name);
            fs::create_dir(&path).expect("a folder can be made");
            open(&path, mode);
        }
        let files = [
            ("libpartita_slurm.so", "partita_slurm.so"),
            ("libpartita_cuda.so", "libpartita_cuda.so"),
            ("partita", "partita"),
        ];
        for (file, name) in files {
            give(&binaries::binary(file), &folder.path().join("lib").join(name));
        }
        let links = folder.path().join("lib/cuda");
        fs::create_dir(&links).expect("a folder can be made");
        for (link, target) in [("libcuda.so.1", "libpartita_cuda.so"), ("ptxas", "partita")] {
            std::os::unix::fs::symlink(format!("../{target}"), links.join(link))
                .expect("a link can be made");
        }
        configure(folder.path(), daemon, sms);
        let munged = start_munged(folder.path());
        let controller = start(folder.path(), "slurmctld", &["-D"]);
        let node = start(folder.path(), "slurmd", &["-D", "-N", NODE]);
        let cluster = Cluster { folder, munged, controller, node };
        cluster.wait_for("the node", || cluster.node().starts_with("idle"));
        Some(cluster)
    }

    /// A folder in which jobs of every user may write.
    #[must_use]
    pub fn out(&self) -> PathBuf {
        self.folder.path().join("out")
    }

    /// Copies a program to where every user may execute it.
    ///
    /// # Panics
    /// Where it cannot be copied.
    #[must_use]
    pub fn install(&self, program: &Path) -> PathBuf {
        let name = program.file_name().expect("a program has a name");
        let place = self.folder.path().join("lib").join(name);
        give(program, &place);
        place
    }

    /// One of Slurm's commands.
    #[must_use]
    pub fn command<S: AsRef<std::ffi::OsStr>>(&self, program: &str, arguments: &[S]) -> Command {
        let mut command = Command::new(program);
        command.args(arguments).current_dir(self.out()).stdin(Stdio::null());
        command.env("SLURM_CONF", self.folder.path().join("slurm.conf"));
        command
    }

    /// The standard output of one of Slurm's commands, which succeeds.
    ///
    /// # Panics
    /// Where it fails.
    #[must_use]
    pub fn ask(&self, program: &str, arguments: &[&str]) -> String {
        let output = self.output(program, arguments);
        assert!(output.status.success(), "{program} {arguments:?}: {}", said(&output));
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    }

    /// What one of Slurm's commands says, and how it ends.
    ///
    /// # Panics
    /// Where it cannot be started.
    #[must_use]
    pub fn output(&self, program: &str, arguments: &[&str]) -> Output {
        self.command(program, arguments).output().expect("Slurm's command can be started")
    }

    /// Submits a job of a user with this script; its output goes to `out/NUMBER`. The job's number.
    ///
    /// # Panics
    /// Where it is refused.
    #[must_use]
    pub fn submit(&self, user: &str, options: &[&str], script: &str) -> String {
        let user = format!("--uid={user}");
        let out = self.out().join("%j").display().to_string();
        let script = format!("--wrap={script}");
        let fixed = ["--parsable", user.as_str(), "-o", out.as_str()];
        self.ask("sbatch", &[&fixed[..], options, &[script.as_str()]].concat())
    }

    /// A field of a job, such as `JobState`; empty where Slurm says nothing.
    #[must_use]
    pub fn of_job(&self, job: &str, field: &str) -> String {
        let text = self.ask("scontrol", &["--oneliner", "show", "job", job]);
        let key = format!(" {field}=");
        let (_, rest) = text.split_once(&key).unwrap_or_default();
        // A value ends where the next field begins.
        let words = rest.split(' ').enumerate();
        let words = words.take_while(|(at, word)| *at == 0 || !word.contains('='));
        words.map(|(_, word)| word).collect::<Vec<_>>().join(" ").trim().to_owned()
    }

    /// What a job has written.
    #[must_use]
    pub fn written(&self, job: &str) -> String {
        fs::read_to_string(self.out().join(job)).unwrap_or_default()
    }

    /// The node's state and, where it is drained, the reason.
    #[must_use]
    pub fn node(&self) -> String {
        self.ask("sinfo", &["--noheader", "--Node", "--format=%T %E"])
    }

    /// Ends `slurmd` and starts it again, as an upgrade does. Its jobs go on.
    ///
    /// # Panics
    /// Where it cannot be started.
    pub fn restart_node(&mut self) {
        end(&mut self.node);
        self.node = start(self.folder.path(), "slurmd", &["-D", "-N", NODE]);
    }

    /// Waits until a job is in this state.
    ///
    /// # Panics
    /// Where that takes too long.
    pub fn wait_for_state(&self, job: &str, state: &str) {
        let is_so = || self.of_job(job, "JobState") == state;
        self.wait_for(&format!("job {job} to be {state}"), is_so);
    }

    /// Waits until something is so.
    ///
    /// # Panics
    /// Where that takes too long; it tells the logs then.
    pub fn wait_for(&self, what: &str, is_so: impl Fn() -> bool) {
        let start = Instant::now();
        while !is_so() {
            assert!(start.elapsed() < PATIENCE, "waited in vain for {what}:\n{}", self.logs());
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// The ends of all logs.
    fn logs(&self) -> String {
        let mut text = self.ask("squeue", &[]);
        for name in ["munged", "slurmctld", "slurmd"] {
            let path = self.folder.path().join(format!("{name}.log"));
            let log = fs::read_to_string(path).unwrap_or_default();
            let lines: Vec<&str> = log.lines().collect();
            let end = lines[lines.len().saturating_sub(40)..].join("\n");
            text += &format!("\n--- {name} ---\n{end}");
        }
        text
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{}", self.logs());
        }
        // Steps that are left would go on without their daemons.
        drop(self.output("scancel", &["--full", "--signal=KILL", "--state=RUNNING"]));
        for child in [&mut self.node, &mut self.controller, &mut self.munged] {
            end(child);
        }
    }
}

/// What a command has said on both its outputs.
#[must_use]
pub fn said(output: &Output) -> String {
    let (out, err) = (&output.stdout, &output.stderr);
    format!("{}{}", String::from_utf8_lossy(out), String::from_utf8_lossy(err))
}

fn open(path: &Path, mode: u32) {
    fs::set_permissions(path, Permissions::from_mode(mode)).expect("a mode can be set");
}

fn give(from: &Path, to: &Path) {
    fs::copy(from, to).unwrap_or_else(|error| panic!("{}: {error}", from.display()));
    open(to, 0o755);
}

/// A port that nobody uses now.
fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    listener.local_addr().expect("it has an address").port()
}

fn configure(folder: &Path, daemon: &Daemon, sms: u16) {
    let at = |name: &str| folder.join(name).display().to_string();
    let plugin = format!(
        "optional {} socket_dir={} lib_dir={}\n",
        at("lib/partita_slurm.so"),
        daemon.socket_dir().display(),
        at("lib")
    );
    let text = format!(
        "ClusterName=partita
SlurmctldHost={NODE}(127.0.0.1)
SlurmUser=root
SlurmctldPort={controller}
SlurmdPort={node}
AuthType=auth/munge
AuthInfo=socket={munge}
CredType=cred/munge
StateSaveLocation={state}
SlurmdSpoolDir={spool}
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
MpiDefault=none
ReturnToService=2
KillWait=2
SchedulerParameters=sched_interval=1,batch_sched_delay=0
SlurmdParameters=config_overrides
PlugStackConfig={plugstack}
JobSubmitPlugins=lua
GresTypes=sm
NodeName={NODE} NodeAddr=127.0.0.1 CPUs=8 RealMemory=1000 Gres=sm:{sms}
PartitionName=gpu Nodes=ALL Default=YES State=UP
",
        controller = free_port(),
        node = free_port(),
        munge = at("munge.sock"),
        state = at("state"),
        spool = at("spool"),
        folder = folder.display(),
        plugstack = at("plugstack.conf"),
    );
    let files = [
        ("slurm.conf", text),
        ("plugstack.conf", plugin),
        ("gres.conf", format!("Name=sm Count={sms}\n")),
    ];
    for (name, text) in files {
        fs::write(folder.join(name), text).expect("a configuration can be written");
    }
    let script = crate::workspace().join("systemd/slurm/job_submit.lua");
    fs::copy(script, folder.join("job_submit.lua")).expect("the package's script can be copied");
}

/// `munged` with a key of its own, which every user of the machine may ask.
fn start_munged(folder: &Path) -> Child {
    let key = folder.join("munge.key");
    let mut bytes = [0; 128];
    let mut random = File::open("/dev/urandom").expect("the system has random numbers");
    random.read_exact(&mut bytes).expect("the system has enough of them");
    fs::write(&key, bytes).expect("a key can be written");
    open(&key, 0o600);
    let place = |option: &str, name: &str| format!("--{option}={}", folder.join(name).display());
    let options = [
        place("key-file", "munge.key"),
        place("socket", "munge.sock"),
        place("pid-file", "munge.pid"),
        place("log-file", "munged.log"),
        place("seed-file", "munge.seed"),
    ];
    let mut command = Command::new("munged");
    command.args(["--foreground", "--force"]).args(options);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let child = command.spawn().expect("munged can be started");
    let begun = Instant::now();
    while !folder.join("munge.sock").exists() {
        assert!(begun.elapsed() < PATIENCE, "munged does not come up");
        std::thread::sleep(Duration::from_millis(10));
    }
    child
}

fn start(folder: &Path, program: &str, arguments: &[&str]) -> Child {
    let output = File::create(folder.join(format!("{program}.out"))).expect("a file can be made");
    let mut command = Command::new(program);
    command.args(arguments).arg("-f").arg(folder.join("slurm.conf"));
    command.env("SLURM_CONF", folder.join("slurm.conf"));
    command.stdin(Stdio::null()).stderr(Stdio::null()).stdout(output);
    command.spawn().unwrap_or_else(|error| panic!("{program}: {error}"))
}

fn end(child: &mut Child) {
    let id = rustix::process::Pid::from_child(child);
    // It may have ended by itself.
    let _ = rustix::process::kill_process(id, rustix::process::Signal::TERM);
    let begun = Instant::now();
    while matches!(child.try_wait(), Ok(None)) {
        if begun.elapsed() > Duration::from_secs(10) {
            drop(child.kill());
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}
