//! `partita run` as its user sees it, with a stand-in for the daemon.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]
#![cfg(target_os = "linux")]

mod common;
mod parts;

use common::{expect, partita, run, text};
use parts::{Parts, wait_for};
use rustix::process::{Pid, Signal, kill_process, kill_process_group, test_kill_process};
use std::io::{Read, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, Command, Stdio};

const SHELL: &str = "/bin/sh";

fn pid(text: &str) -> Pid {
    Pid::from_raw(text.parse().unwrap()).unwrap()
}

fn private<'a>(args: &[&'a str]) -> Vec<&'a str> {
    ["run", "--private", "--"].into_iter().chain(args.iter().copied()).collect()
}

/// Starts a program that says `up` when it runs.
fn start(parts: &Parts, script: &str, adapt: impl FnOnce(&mut Command)) -> Child {
    let mut command = parts.partita(&private(&[SHELL, "-c", script]));
    command.stdout(Stdio::piped()).stderr(Stdio::null());
    adapt(&mut command);
    let mut child = command.spawn().unwrap();
    let mut up = [0; 3];
    child.stdout.as_mut().unwrap().read_exact(&mut up).unwrap();
    assert_eq!(&up, b"up\n");
    child
}

#[track_caller]
fn expect_gone(parts: &Parts) {
    let daemon = pid(&parts.said("pid"));
    wait_for("the daemon to end", || test_kill_process(daemon).is_err());
    let folder = parts.said("dir");
    wait_for("its folder to go", || !Path::new(&folder).exists());
}

#[test]
fn the_exit_code_is_the_programs() {
    let parts = Parts::new();
    for (script, code) in [("exit 0", 0), ("exit 7", 7), ("exit 255", 255)] {
        expect(&mut parts.partita(&private(&[SHELL, "-c", script])), code, &["emulated GPU"]);
    }
    expect_gone(&parts);
}

#[test]
fn a_program_that_a_signal_kills_dies_of_it() {
    let parts = Parts::new();
    for signal in [Signal::TERM, Signal::USR1, Signal::KILL, Signal::SEGV, Signal::PIPE] {
        let script = format!("ulimit -c 0; kill -{} $$; sleep 5", signal.as_raw());
        let output = run(&mut parts.partita(&private(&[SHELL, "-c", &script])));
        assert_eq!(output.status.signal(), Some(signal.as_raw()), "{signal:?}: {output:?}");
    }
    expect_gone(&parts);
}

/// The daemon and its keeper survive a limit on the size of files; the program dies as without us.
#[test]
fn a_program_that_writes_over_the_limit_of_files_dies_of_it() {
    let parts = Parts::new();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    let script = format!("ulimit -c 0; ulimit -f 0; echo long > {}", file.display());
    let output = run(&mut parts.partita(&private(&[SHELL, "-c", &script])));
    assert_eq!(output.status.signal(), Some(Signal::XFSZ.as_raw()), "{output:?}");
    expect_gone(&parts);

    // A caller that ignores the signal has a program that ignores it.
    let ignoring = r#"trap '' XFSZ; exec "$0" run --private -- /bin/sh -c 'ulimit -f 0
        echo long > "$FILE" || echo survived'"#;
    let command = parts.partita(&[]);
    let mut shell = Command::new(SHELL);
    for (name, value) in command.get_envs() {
        shell.env(name, value.unwrap_or_default());
    }
    shell.args(["-c", ignoring]).arg(command.get_program()).env("FILE", &file);
    let output = run(&mut shell);
    assert_eq!(text(&output.stdout), "survived\n", "{output:?}");
}

#[test]
fn with_coverage_the_program_ends_the_run_all_the_same() {
    let parts = Parts::new();
    let check = |script: &str, code| {
        let mut command = parts.partita(&["run", "--private", "--coverage", SHELL, "-c", script]);
        expect(&mut command, code, &["the program made no CUDA call"])
    };
    check("exit 0", 0);
    check("exit 7", 7);
    check("kill -KILL $$", 137);
    check("kill -TERM $PPID; exec sleep 60", 143);
    let output = check("test -n \"$PARTITA_COVERAGE\" && echo $PARTITA_COVERAGE", 0);
    assert!(!Path::new(text(&output.stdout).trim()).exists(), "nothing is left");
    expect(
        &mut parts.partita(&["run", "--private", "--coverage", "/etc/passwd"]),
        126,
        &["/etc/passwd"],
    );
    expect_gone(&parts);
}

#[test]
fn signals_reach_the_program_once() {
    let parts = Parts::new();
    for (name, signal) in [
        ("TERM", Signal::TERM),
        ("INT", Signal::INT),
        ("HUP", Signal::HUP),
        ("QUIT", Signal::QUIT),
        ("USR1", Signal::USR1),
        ("USR2", Signal::USR2),
        ("WINCH", Signal::WINCH),
    ] {
        let script = format!(
            "n=0; trap 'n=$((n+1))' {name}; echo up; while [ $n = 0 ]; do sleep 0.01; done; sleep \
             0.1; exit $((40+n))"
        );
        let mut child = start(&parts, &script, |_| {});
        kill_process(Pid::from_child(&child), signal).unwrap();
        assert_eq!(child.wait().unwrap().code(), Some(41), "{name}");
    }
}

#[test]
fn a_terminals_interrupt_reaches_the_program_once_and_spares_the_daemon() {
    let parts = Parts::new();
    // What a terminal does at Ctrl-C: the signal goes to the whole foreground group. The program
    // says that the signal has come, and ends when its input does; a second signal has until then,
    // and a moment more, to come.
    let script = "n=0; trap 'n=$((n+1))' INT; echo up; while [ $n = 0 ]; do sleep 0.01; done; \
        echo told; read line; sleep 0.1; exit $((40+n))";
    let mut child = start(&parts, script, |command| {
        command.process_group(0).stdin(Stdio::piped());
    });
    let daemon = pid(&parts.said("pid"));
    kill_process_group(Pid::from_child(&child), Signal::INT).unwrap();
    let mut told = [0; 5];
    child.stdout.as_mut().unwrap().read_exact(&mut told).unwrap();
    assert_eq!(&told, b"told\n");
    assert!(test_kill_process(daemon).is_ok(), "the program still needs its daemon");
    drop(child.stdin.take());
    assert_eq!(child.wait().unwrap().code(), Some(41));
    expect_gone(&parts);
}

#[test]
fn the_daemon_goes_even_if_the_run_is_killed() {
    let parts = Parts::new();
    let mut child = start(&parts, "echo up; sleep 60", |_| {});
    child.kill().unwrap();
    assert_eq!(child.wait().unwrap().signal(), Some(9));
    expect_gone(&parts);
}

#[test]
fn the_program_has_no_child_that_it_did_not_make() {
    let parts = Parts::new();
    let script = "cat /proc/$$/task/$$/children; echo; echo \"pid $$\"; ps -o pgid= -p $$ \
        2>/dev/null || true";
    let child = parts
        .partita(&private(&[SHELL, "-c", script]))
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn();
    let child = child.unwrap();
    let own = child.id();
    let stdout = text(&child.wait_with_output().unwrap().stdout);
    let children = stdout.lines().next().unwrap();
    // `cat` itself is one, and the only one.
    assert_eq!(children.split_whitespace().count(), 1, "{stdout}");
    assert!(
        stdout.contains(&format!("pid {own}\n")),
        "the program is the process that was started: {stdout}"
    );
}

#[test]
fn arguments_environment_input_and_folder_are_untouched() {
    let parts = Parts::new();
    let echoed = run(&mut parts.partita(&private(&[
        SHELL,
        "-c",
        "printf '%s|' \"$@\"",
        "x",
        "--help",
        "a b",
        "",
    ])));
    assert_eq!(text(&echoed.stdout), "--help|a b||");

    let mut command = parts.partita(&private(&["cat"]));
    let mut child =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(b"through\0\xff").unwrap();
    assert_eq!(child.wait_with_output().unwrap().stdout, b"through\0\xff");

    let mut command = parts.partita(&private(&["env"]));
    let output = run(command
        .env_clear()
        .env("PARTITA_LIB_DIR", parts.path())
        .env("PATH", "/usr/bin:/bin")
        .env("MINE", "1")
        .env("CUPY_ACCELERATORS", "cub"));
    let stdout = text(&output.stdout);
    let mut names: Vec<&str> = stdout.lines().filter_map(|line| line.split('=').next()).collect();
    names.sort_unstable();
    let partitas = ["CUPY_COMPILE_WITH_PTX", "LD_PRELOAD", "PARTITA_SOCKET_DIR"];
    names.retain(|name| !partitas.contains(name));
    assert_eq!(names, ["CUPY_ACCELERATORS", "MINE", "PARTITA_LIB_DIR", "PATH"], "{stdout}");
    assert!(
        stdout.contains("CUPY_ACCELERATORS=cub\n") && stdout.contains("CUPY_COMPILE_WITH_PTX=1\n"),
        "{stdout}"
    );
    let shim = parts.path().join("libpartita_cuda.so");
    assert!(stdout.contains(&format!("LD_PRELOAD={}\n", shim.display())), "{stdout}");
    let folders: Vec<&str> =
        stdout.lines().filter_map(|line| line.strip_prefix("PARTITA_SOCKET_DIR=")).collect();
    let log = std::fs::read_to_string(parts.path().join("log")).unwrap();
    assert!(log.contains(&format!("dir {}\n", folders[0])), "{log}");

    let folder = tempfile::tempdir().unwrap();
    let output = run(parts.partita(&private(&["pwd"])).current_dir(folder.path()));
    assert_eq!(text(&output.stdout).trim_end(), folder.path().to_str().unwrap());
}

#[test]
fn what_is_preloaded_already_stays() {
    let parts = Parts::new();
    let other = parts.path().join("other.so");
    std::fs::copy(parts.path().join("libpartita_cuda.so"), &other).unwrap();
    let mut command = parts.partita(&private(&[SHELL, "-c", "echo $LD_PRELOAD"]));
    let output = run(command.env("LD_PRELOAD", &other));
    let expected =
        format!("{}:{}\n", other.display(), parts.path().join("libpartita_cuda.so").display());
    assert_eq!(text(&output.stdout), expected);
}

#[test]
fn a_private_daemon_is_announced_in_one_line_and_quiet() {
    let parts = Parts::new();
    let output = run(&mut parts.partita(&["run", "--device", "emu:small", "true"]));
    let stderr = text(&output.stderr);
    let folder = parts.said("dir");
    let expected = format!(
        "partita: a private daemon serves the emulated GPU (emu:small) in {folder}\na last word\n"
    );
    assert_eq!(stderr, expected, "and what the daemon logs is passed on");
    let args = parts.said("args");
    for part in ["--device emu:small", "--end-with-parent", &format!("--socket-dir {folder}")] {
        assert!(args.contains(part), "{args}");
    }
    assert_eq!(parts.said("filter"), "warn");
    assert!(
        !Path::new(&folder).exists(),
        "who has seen the end of stderr has seen the end of the daemon"
    );
}

/// The command with the first three descriptors only, whatever this process has inherited: with
/// more no daemon is kept.
fn without_descriptors(command: &Command) -> Command {
    let close = r#"for each in /proc/self/fd/*; do
            number=${each##*/}; (( number > 2 )) && eval "exec $number>&-"
        done
        exec "$@""#;
    let mut shell = Command::new("bash");
    shell.args(["-c", close, "bash"]).arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => shell.env(name, value),
            None => shell.env_remove(name),
        };
    }
    shell
}

/// The script in a session of its own; `$PARTITA` is the command. This process's session may have
/// its leader in another PID namespace, and keeps no daemon then.
fn session(parts: &Parts, script: &str) -> Command {
    let command = parts.partita(&[]);
    let mut session = Command::new("setsid");
    for (name, value) in command.get_envs() {
        session.env(name, value.unwrap_or_default());
    }
    session.args(["--wait", SHELL, "-c", script]).env("PARTITA", command.get_program());
    without_descriptors(&session)
}

#[test]
fn a_session_whose_leader_is_in_another_pid_namespace_keeps_no_daemon() {
    let parts = Parts::new();
    // `cat` ends when the keeper lets go of its stderr; a daemon to keep would start next.
    let script = r#"unshare --pid --fork --mount-proc \
        sh -c '"$PARTITA" run --private true 2>&1 | cat; sleep 1'"#;
    if !run(Command::new("unshare").args(["--pid", "--fork", "--mount-proc", "true"]))
        .status
        .success()
    {
        let line = "SKIPPED: PID namespaces of the test need root and `unshare`\n";
        std::io::stderr().write_all(line.as_bytes()).unwrap();
        return;
    }
    let output = run(session(&parts, script).env("PARTITA_KEEP", "600"));
    assert!(text(&output.stdout).contains("emulated GPU"), "{output:?}");
    let made = parts.all("dir");
    assert!(made.len() == 1 && !Path::new(&made[0]).exists(), "{made:?}");
}

/// Runs three programs in a session of its own: two of a kind, and one with another GPU.
#[test]
fn a_session_keeps_a_daemon_for_its_next_run() {
    let parts = Parts::new();
    let script = r#"
        run() { "$PARTITA" run --device "$1" -- /bin/sh -c 'echo $PARTITA_SOCKET_DIR'; }
        until_kept() {
            # The flag of a socket that listens.
            socket="00010000 .* @partita-spare/$(id -u)/$$/"
            for i in $(seq 6000); do
                grep -q "$socket" /proc/net/unix && return; sleep 0.01
            done
        }
        run emu:small; until_kept; run emu:small; until_kept; run emu:other"#;
    let output = run(session(&parts, script).env("PARTITA_KEEP", "600"));
    let (used, stderr) = (text(&output.stdout), text(&output.stderr));
    let used: Vec<&str> = used.lines().collect();
    // The daemon of the first run, two spares, of which one was used, and that of the last run.
    let made = parts.all("dir");
    assert_eq!(used[..2], made[..2], "{output:?}");
    assert!(made.len() >= 4 && used[2] != made[2], "{made:?} {output:?}");
    assert!(
        stderr.matches("a last word").count() >= 2,
        "each run shows what its daemon says: {stderr}"
    );
    for folder in made {
        wait_for("all folders to go with the session", || !Path::new(&folder).exists());
    }
}

#[test]
fn a_daemon_that_records_is_not_kept() {
    let parts = Parts::new();
    // `cat` ends when the keeper lets go of its stderr; a daemon to keep would start next.
    let script = r#""$PARTITA" run --device emu:small,record=run.rec -- true 2>&1 | cat; sleep 1"#;
    let output = run(session(&parts, script).env("PARTITA_KEEP", "600"));
    assert!(text(&output.stdout).contains("emulated GPU"), "{output:?}");
    let made = parts.all("dir");
    assert!(made.len() == 1 && !Path::new(&made[0]).exists(), "{made:?}");
}

#[test]
fn a_daemon_that_nobody_wants_is_not_kept_longer() {
    let parts = Parts::new();
    let mut session = session(&parts, r#""$PARTITA" run --private true && read until_it_closes"#);
    let mut session = session.env("PARTITA_KEEP", "1").stdin(Stdio::piped()).spawn().unwrap();
    wait_for("a spare", || parts.all("dir").len() == 2);
    wait_for("its end", || parts.all("ended").len() == 2);
    assert_eq!(session.try_wait().unwrap(), None, "the session has not ended");
    session.wait().unwrap();
    for folder in parts.all("dir") {
        wait_for("its folder to go", || !Path::new(&folder).exists());
    }
    expect(
        parts.partita(&private(&["true"])).env("PARTITA_KEEP", "long"),
        0,
        &["PARTITA_KEEP=long is no number of seconds"],
    );
}

#[test]
fn without_timing_a_private_daemon_is_told_so() {
    for (options, device) in [
        (&["--no-timing"][..], "emu,timing=off"),
        (&["--no-timing", "--device", "emu:small"], "emu:small,timing=off"),
    ] {
        let parts = Parts::new();
        let output = run(&mut parts.partita(&[&["run"], options, &["true"]].concat()));
        assert!(
            text(&output.stderr).contains(&format!("the emulated GPU ({device})")),
            "{output:?}"
        );
        assert!(
            parts.said("args").contains(&format!("--device {device} ")),
            "{}",
            parts.said("args")
        );
    }
}

#[test]
fn without_a_daemon_a_private_one_serves() {
    if Path::new("/dev/nvidiactl").exists() {
        // A passing test's `eprintln!` is kept from the reader.
        let line = "SKIPPED: this machine has a GPU, so nothing falls back to the emulator\n";
        std::io::stderr().write_all(line.as_bytes()).unwrap();
        return;
    }
    let parts = Parts::new();
    expect(
        &mut parts.partita(&["run", "true"]),
        0,
        &["no daemon answers (tried /nonexistent/partita)", "emulated GPU"],
    );
}

#[test]
fn a_daemon_that_answers_is_used() {
    use rustix::net::{
        AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, listen, socket_with,
    };
    let parts = Parts::new();
    let sockets = tempfile::tempdir().unwrap();
    let socket =
        socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
            .unwrap();
    bind(&socket, &SocketAddrUnix::new(sockets.path().join("partitad.sock")).unwrap()).unwrap();
    listen(&socket, 8).unwrap();

    let mut command = parts.partita(&["run", SHELL, "-c", "echo $PARTITA_SOCKET_DIR"]);
    let output = run(command.env("PARTITA_SOCKET_DIR", sockets.path()));
    assert_eq!(text(&output.stdout).trim_end(), sockets.path().to_str().unwrap());
    assert_eq!(text(&output.stderr), "");
    assert!(!parts.path().join("log").exists(), "no private daemon was started");

    // A relative folder must mean the same to a program that goes elsewhere.
    let name = sockets.path().file_name().unwrap();
    let mut command = parts.partita(&[
        "run",
        "--socket-dir",
        name.to_str().unwrap(),
        SHELL,
        "-c",
        "echo $PARTITA_SOCKET_DIR",
    ]);
    let output = run(command.current_dir(sockets.path().parent().unwrap()));
    assert_eq!(text(&output.stdout).trim_end(), sockets.path().to_str().unwrap());
}

#[test]
fn a_daemon_that_is_named_must_answer() {
    let parts = Parts::new();
    expect(
        &mut parts.partita(&["run", "--socket-dir", "/none", "true"]),
        1,
        &["no daemon answers in /none"],
    );
}

#[test]
fn what_cannot_be_started_is_named() {
    let parts = Parts::new();
    let plain = parts.path().join("plain.txt");
    std::fs::write(&plain, "not a program").unwrap();
    let plain = plain.to_str().unwrap();
    expect(
        &mut parts.partita(&private(&["/no/such/program"])),
        127,
        &["/no/such/program: no such program"],
    );
    expect(
        &mut parts.partita(&private(&["no-such-program"])),
        127,
        &["no-such-program: no such program in PATH"],
    );
    expect(&mut parts.partita(&private(&[plain])), 126, &["plain.txt: not executable", "chmod"]);
    expect(&mut parts.partita(&private(&["/"])), 126, &["/: is a directory"]);
    assert!(!parts.path().join("log").exists(), "all of that is known before a daemon is started");

    let script = parts.path().join("script");
    std::fs::write(&script, "#!/no/such/interpreter\n").unwrap();
    Command::new("chmod").arg("+x").arg(&script).status().unwrap();
    expect(
        &mut parts.partita(&private(&[script.to_str().unwrap()])),
        126,
        &["interpreter does not exist"],
    );
    expect_gone(&parts);
}

#[test]
fn a_daemon_that_cannot_start_is_explained() {
    let parts = Parts::new();
    let stderr = ["cannot start", "exit status: 3", "\n  no such specification: broken"];
    expect(&mut parts.partita(&["run", "--device", "emu:broken", "true"]), 1, &stderr);

    std::fs::write(parts.path().join("partitad"), "#!/no/such/interpreter\n").unwrap();
    expect(&mut parts.partita(&private(&["true"])), 1, &["partitad: No such file"]);
}

#[test]
fn a_daemon_that_dies_is_reported() {
    let parts = Parts::new();
    let stderr = ["the private daemon ended with exit status: 4", "CUDA calls"];
    expect(&mut parts.partita(&["run", "--device", "emu:dying", "sleep", "0.5"]), 0, &stderr);
}

#[test]
fn missing_parts_name_where_they_were_looked_for() {
    let parts = Parts::new();
    std::fs::remove_file(parts.path().join("partitad")).unwrap();
    let looked = parts.path().join("partitad").display().to_string();
    expect(
        &mut parts.partita(&private(&["true"])),
        1,
        &["partitad is not installed", &looked, "PARTITA_LIB_DIR"],
    );
    std::fs::remove_file(parts.path().join("libpartita_cuda.so")).unwrap();
    let looked = parts.path().join("libpartita_cuda.so").display().to_string();
    expect(
        &mut parts.partita(&private(&["true"])),
        1,
        &["libpartita_cuda.so is not installed", &looked],
    );
}

#[test]
fn wrong_usage() {
    for (args, part) in [
        (&["run"][..], "PROGRAM"),
        (&["run", "--bogus", "true"], "--bogus"),
        (&["run", "--device", "gtx", "true"], "emu:SPEC"),
        (&["run", "--device", "emu,fast", "true"], "`fast` is no option of the emulated GPU"),
        (&["run", "--no-timing", "--device", "emu,timing=on", "true"], "`timing` is given twice"),
        (&["run", "--no-timing", "--socket-dir", "/x", "true"], "cannot be used with"),
        (&["run", "--private", "--socket-dir", "/x", "true"], "cannot be used with"),
        (&["no-such-command"], "no-such-command"),
        (&[], "Usage"),
    ] {
        expect(&mut partita(args), 2, &[part]);
    }
    expect(&mut partita(&["run", "--help"]), 0, &[]);
}
