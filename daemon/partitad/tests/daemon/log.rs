//! Readers of the log that stall or go away.

use super::{DEVICE, Daemon};
use rustix::pipe::fcntl_setpipe_size;
use rustix::process::{Pid, Signal, kill_process};
use std::io::{PipeReader, Read};
use std::path::Path;
use std::process::Stdio;

/// A daemon whose stderr is a pipe of one page, and the other end of the pipe.
fn piped() -> (Daemon, PipeReader) {
    let (reader, writer) = std::io::pipe().unwrap();
    fcntl_setpipe_size(&reader, 4096).unwrap();
    let variables = [("PARTITA_LOG", Path::new("debug"))];
    let policy = ["--policy", "even"];
    let daemon = Daemon::logging_to(Some(Stdio::from(writer)), DEVICE, &variables, &policy);
    (daemon, reader)
}

/// Programs come, compute and go, and so does the data plane.
fn check_service(daemon: &Daemon) {
    let serve = || {
        let client = daemon.connect();
        client.check(&client.spin(10, 10));
    };
    for _ in 0..20 {
        serve();
    }
    let gpu = daemon.status().gpu.pid;
    kill_process(Pid::from_raw(gpu.cast_signed()).unwrap(), Signal::KILL).unwrap();
    serve();
    assert_eq!(daemon.status().gpu.restarts, 1);
}

#[test]
fn a_filter_that_cannot_be_read_is_named_and_the_default_holds() {
    let variables = [("PARTITA_LOG", Path::new("loud"))];
    let daemon = Daemon::serving(DEVICE, &variables, &["--policy", "even"]);
    let log = daemon.log();
    for words in ["PARTITA_LOG=loud: `loud` cannot be used", "serving Emulated GPU"] {
        assert!(log.contains(words), "`{words}` in {log}");
    }
    let config = daemon.ask("GET /v1/config", "").body.to_string();
    assert!(config.contains("info") && !config.contains("loud"), "{config}");
}

#[test]
fn a_reader_of_the_log_that_has_gone_stops_nobody() {
    let (daemon, reader) = piped();
    drop(reader);
    check_service(&daemon);
}

#[test]
fn a_reader_of_the_log_that_stalls_stops_nobody() {
    let (mut daemon, mut reader) = piped();
    check_service(&daemon);
    // The reader goes on: what waited comes, up to the end.
    let reading = std::thread::spawn(move || {
        let mut text = String::new();
        reader.read_to_string(&mut text).map(|_| text)
    });
    assert!(daemon.end(Signal::TERM).success());
    let text = reading.join().unwrap().unwrap();
    assert!(text.len() > 4096 && text.contains("ending"), "{text}");
}
