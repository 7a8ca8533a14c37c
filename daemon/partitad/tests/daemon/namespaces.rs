//! A program in a PID namespace that the daemon does not see, as between two containers.
//!
//! The kernel reports such a peer with the process id 0.

use super::{Client, DEVICE, Daemon, File, Path, Session, support};
use std::io::{BufRead, BufReader};
use std::process::{Child, Command};

/// The variable that makes the test below a client.
const SOCKETS: &str = "PARTITAD_TEST_NAMESPACE";

/// In PID namespaces of its own.
const APART: [&str; 5] = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"];

/// The command, started in a PID namespace of its own.
fn apart(command: &Command) -> Command {
    let mut apart = Command::new(APART[0]);
    apart.args(&APART[1..]).arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        apart.env(name, value.expect("no variable is removed"));
    }
    apart
}

/// Ends what it started: the kernel ends a PID namespace with its first process.
struct Apart(Child);

impl Drop for Apart {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

/// Not a test of its own: the client in the other namespace.
#[test]
fn client_of_another_namespace() {
    let Some(sockets) = std::env::var_os(SOCKETS) else { return };
    let sockets = Path::new(&sockets);
    let client = Client::new(Session::connect(sockets).unwrap());
    client.check(&client.spin(10, 10));
    let status = support::ask(&sockets.join("api.sock"), "GET /v1/status", "").unwrap();
    assert_eq!(status.status, 200, "{}", status.body);
    let known = &status.body["applications"][0];
    assert_eq!(known["pids"], serde_json::json!([0]), "{known}");
    assert_eq!(known["tenant"], rustix::process::getuid().as_raw(), "{known}");
}

#[test]
fn a_program_in_a_sibling_pid_namespace_is_served() {
    if !apart(&Command::new("true")).output().is_ok_and(|output| output.status.success()) {
        eprintln!("SKIPPED: PID namespaces of the test need root and `unshare`");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let (sockets, log) = (folder.path().join("sockets"), folder.path().join("log"));
    let mut daemon = apart(Daemon::command(DEVICE, &sockets).args(["--policy", "even"]));
    daemon.stdout(std::process::Stdio::piped()).stderr(File::create(&log).unwrap());
    let mut daemon = Apart(daemon.spawn().unwrap());
    let mut line = String::new();
    BufReader::new(daemon.0.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "READY\n", "{}", std::fs::read_to_string(&log).unwrap());

    let mut client = Command::new(std::env::current_exe().unwrap());
    client.args(["--exact", "namespaces::client_of_another_namespace", "--nocapture"]);
    let output = apart(client.env(SOCKETS, &sockets)).output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    let told = std::fs::read_to_string(&log).unwrap();
    assert!(output.status.success(), "{text}\n{told}");
    assert!(String::from_utf8_lossy(&output.stdout).contains("1 passed"), "the client has run");
    assert!(told.contains(" pid=0 "), "{told}");
}
