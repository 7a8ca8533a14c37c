//! `partita top` in a real terminal and `partita web` in a real browser, with a daemon and two
//! programs: what they show is what the API says.

use partita_e2e::binaries;
use partita_e2e::daemon::Daemon;
use partita_e2e::held::Held;
use partita_e2e::toolchain;
use partita_model::{PartitionReport, SmId, StatusReport};
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// The longest wait for a screen.
const PATIENCE: Duration = Duration::from_secs(120);

/// Two programs whose kernels run until they are released, each on one half of the GPU.
fn two_programs(daemon: &Daemon) -> ([Held; 2], StatusReport) {
    let start = |seed| Held::start(daemon, &toolchain::program("poly"), &["32768", "3000", seed]);
    let programs = [start("1"), start("2")];
    let status = daemon.wait_for("two applications on halves", |status| {
        status.applications.iter().filter(|one| one.ctas_completed > 0).count() == 2
            && status.partitions.iter().filter(|one| one.sms.len() == 12).count() == 2
    });
    (programs, status)
}

/// The SM map as `partita top` shows it: a letter for each application, in groups of eight SMs.
fn map(status: &StatusReport) -> String {
    let of = |sm: u16| {
        let has = |one: &&PartitionReport| one.sms.contains(SmId(sm));
        let holder = status.partitions.iter().find(has).map(|one| one.application);
        let place = status.applications.iter().position(|one| Some(one.id) == holder);
        place.map_or('.', |place| if place == 0 { 'a' } else { 'b' })
    };
    let groups: Vec<String> =
        (0..status.gpu.sms).step_by(8).map(|first| (first..first + 8).map(of).collect()).collect();
    groups.join(" ")
}

/// A terminal of 80 x 24 characters. Dropping it ends what runs there.
struct Terminal {
    socket: String,
}

impl Terminal {
    fn start(daemon: &Daemon, shell: &str) -> Terminal {
        let terminal = Terminal { socket: format!("partita-{}", std::process::id()) };
        let folder = daemon.socket_dir().display().to_string();
        let size = ["-x", "80", "-y", "24"];
        let started = terminal
            .tmux(&["-f", "/dev/null", "new-session", "-d"])
            .args(size)
            .args(["-e", &format!("PARTITA_SOCKET_DIR={folder}"), "sh", "-c", shell])
            .status();
        assert!(started.expect("tmux is installed: tests/setup.sh").success());
        terminal
    }

    fn tmux(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new("tmux");
        command.args(["-L", &self.socket]).args(arguments);
        command
    }

    fn screen(&self) -> String {
        let output = self.tmux(&["capture-pane", "-p"]).output().expect("tmux can be started");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    fn press(&self, keys: &[&str]) {
        let status = self.tmux(&["send-keys"]).args(keys).status().expect("tmux can be started");
        assert!(status.success());
    }

    #[track_caller]
    fn wait_for(&self, words: &[&str]) -> String {
        let start = Instant::now();
        loop {
            let screen = self.screen();
            if words.iter().all(|word| screen.contains(word)) {
                return screen;
            }
            assert!(start.elapsed() < PATIENCE, "waited in vain for {words:?} in\n{screen}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        drop(self.tmux(&["kill-server"]).status());
    }
}

#[test]
fn top_shows_and_steers_and_gives_the_terminal_back() {
    let daemon = Daemon::start("emu:cd-search-24");
    let (programs, status) = two_programs(&daemon);
    let partita = binaries::binary("partita").display().to_string();
    // The process id is the shell's that becomes `partita`.
    let top = format!("sh -c 'echo $$ > \"$0\"; exec {partita} top --interval 0.2'");
    let folder = tempfile::tempdir().expect("a folder");
    let pid_file = folder.path().join("pid").display().to_string();
    let after = "echo \"ended $?\"; stty -a | grep -o ' icanon'";
    let shell = format!("{top} {pid_file}; {after}; {top} {pid_file}; {after}; sleep 600");
    let terminal = Terminal::start(&daemon, &shell);
    let screen = terminal.wait_for(&[&map(&status), "poly", "DECISIONS", "q quit", "runs"]);
    for application in &status.applications {
        let row = format!("{} ", application.id.0);
        assert!(
            screen.lines().any(|line| line.contains(&row) && line.contains("poly")),
            "{screen}"
        );
    }
    terminal.press(&["-"]);
    terminal.wait_for(&["pinned: ", "11*"]);
    let one_less = daemon.wait_for("one SM less", |status| {
        status.partitions.iter().any(|one| one.pinned && one.sms.len() == 11)
    });
    assert_eq!(one_less.partitions.len(), 2);
    terminal.press(&["p"]);
    daemon.wait_for("no pin, and even shares again", |status| {
        status.partitions.iter().all(|one| !one.pinned && one.sms.len() == 12)
    });
    terminal.press(&["c"]);
    terminal.wait_for(&["Cancel all queued and running work of application"]);
    terminal.press(&["n"]);
    // Before the first view ends: the second one writes its own as soon as it has.
    let first = std::fs::read_to_string(&pid_file).expect("the shell wrote it");
    terminal.press(&["q"]);
    // Without a pin the policy has decided again. The second view shows that.
    let start = Instant::now();
    while std::fs::read_to_string(&pid_file).is_ok_and(|pid| pid == first || pid.is_empty()) {
        assert!(start.elapsed() < PATIENCE, "q ends no view:\n{}", terminal.screen());
        std::thread::sleep(Duration::from_millis(20));
    }
    terminal.wait_for(&[&map(&daemon.status()), "runs", "q quit"]);
    let pid = std::fs::read_to_string(&pid_file).expect("the shell wrote it");
    assert!(Command::new("kill").args(["-TERM", pid.trim()]).status().expect("kill").success());
    let screen = terminal.wait_for(&["ended 0", "ended 143"]);
    assert!(screen.contains("signal 15 ended the view"), "{screen}");
    terminal.wait_for(&["ended 143\n icanon"]);
    assert_eq!(terminal.screen().matches("\n icanon").count(), 2, "{screen}");
    let alternate = terminal.tmux(&["display-message", "-p", "#{alternate_on}"]).output();
    assert_eq!(alternate.expect("tmux can be started").stdout, b"0\n");
    for program in programs {
        assert!(program.release().status.success(), "nothing was cancelled");
    }
}

/// `partita web`. Dropping it ends it.
struct Web {
    child: Child,
    address: String,
}

impl Web {
    fn start(daemon: &Daemon) -> Web {
        let mut child = daemon.partita(&["web"]).stdout(Stdio::piped()).spawn().expect("it starts");
        let mut address = String::new();
        let stdout = child.stdout.take().expect("it is piped");
        BufReader::new(stdout).read_line(&mut address).expect("it prints its address");
        Web { child, address: address.trim().to_owned() }
    }
}

impl Drop for Web {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// The text between two marks, behind `from`.
fn between<'a>(page: &'a str, from: &str, to: &str) -> &'a str {
    let start = page.find(from).unwrap_or_else(|| panic!("no {from} in {page}")) + from.len();
    page[start..].split(to).next().unwrap_or_default()
}

#[test]
fn the_page_shows_what_the_api_says() {
    if Command::new("chromium").arg("--version").output().is_err() {
        eprintln!("skipped: chromium is not installed (Debian: apt-get install chromium)");
        return;
    }
    let daemon = Daemon::start("emu:cd-search-24");
    let (programs, status) = two_programs(&daemon);
    let web = Web::start(&daemon);
    let profile = tempfile::tempdir().expect("a folder");
    let output = Command::new("chromium")
        .args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"])
        .arg(format!("--user-data-dir={}", profile.path().display()))
        .args(["--virtual-time-budget=4000", "--dump-dom", &web.address])
        .output()
        .expect("chromium can be started");
    let page = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(page.contains("data-state=\"shown\""), "{page}");
    for partition in &status.partitions {
        for sm in partition.sms.iter() {
            let cell =
                format!("data-sm=\"{}\" data-applications=\"{}\"", sm.0, partition.application.0);
            assert!(page.contains(&cell), "{cell} is not in {page}");
        }
        let row =
            between(&page, &format!("data-application=\"{}\"", partition.application.0), "</tr>");
        assert!(row.contains(&format!("data-column=\"sms\">{}<", partition.sms)), "{row}");
        assert!(row.contains("poly") && row.contains("data-column=\"state\">"), "{row}");
    }
    let kernels = between(&page, "id=\"kernels\"", "</tbody>");
    for kernel in status.applications.iter().flat_map(|application| &application.kernels) {
        assert!(kernels.contains(&kernel.name) && kernels.contains(&kernel.form), "{kernels}");
    }
    let decisions = between(&page, "id=\"decisions\"", "</div>");
    assert!(decisions.contains("Decision 1 of even"), "{decisions}");
    assert_eq!(between(&page, "id=\"fault\" role=\"status\">", "<"), "");
    drop(programs.map(Held::release));
}
