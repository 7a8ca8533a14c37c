//! A crowd of programs at once.

use super::{Client, Daemon, THREADS};
use partita_client::Session;
use partita_model::TraceReport;

const PROGRAMS: u32 = 64;
/// Launches of each program, one after the other.
const ROUNDS: u32 = 4;
const CTAS: u32 = 200;
/// Starts of CTAs on SMs, for each CTA that the programs launch. A worker runs several CTAs.
const STARTS: usize = 2;

#[test]
fn a_crowd_is_done_where_no_time_is_kept() {
    let daemon = Daemon::serving("emu:h200,timing=off", &[], &[]);
    std::thread::scope(|scope| {
        for _ in 0..PROGRAMS {
            scope.spawn(|| {
                let client = Client::new(Session::connect(&daemon.sockets()).unwrap());
                for _ in 0..ROUNDS {
                    client.check(&client.spin(CTAS, THREADS));
                }
            });
        }
    });
    let trace: TraceReport = serde_json::from_value(daemon.ask("GET /v1/trace", "").body).unwrap();
    let starts = (trace.entries.len() + usize::try_from(trace.dropped).unwrap()) / 2;
    let ctas = (PROGRAMS * ROUNDS * CTAS) as usize;
    assert!(
        starts < ctas * STARTS,
        "{starts} CTAs started for {ctas}: the others started on foreign SMs and left"
    );
}
