//! Programs that hold the emulated time of others up.

use super::{Client, Daemon};
use partita_client::Session;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Less than the patience with a silent program.
const PAUSE: Duration = Duration::from_millis(900);
const ROUNDS: u32 = 50;
/// Each round has a launch and several calls. One pause for each launch would take 45 s.
const BOUND: Duration = Duration::from_secs(35);

#[test]
fn a_program_that_calls_now_and_then_holds_nobody_up_for_long() {
    let daemon = Daemon::start();
    let over = AtomicBool::new(false);
    let took = std::thread::scope(|scope| {
        let slow = daemon.connect();
        let over = &over;
        scope.spawn(move || {
            while !over.load(Ordering::Relaxed) {
                slow.session.synchronize(None).unwrap();
                std::thread::sleep(PAUSE);
            }
        });
        let client = Client::new(Session::connect(&daemon.sockets()).unwrap());
        let start = Instant::now();
        for _ in 0..ROUNDS {
            client.check(&client.spin(10, 10));
        }
        let took = start.elapsed();
        over.store(true, Ordering::Relaxed);
        took
    });
    assert!(took < BOUND, "{ROUNDS} rounds take {took:?}");
    let log = daemon.log();
    assert!(log.contains("held up the emulated time of others for 10 s"), "{log}");
    let status = daemon.status();
    assert!(status.gpu.patience_exceeded > 0, "{status:#?}");
}
