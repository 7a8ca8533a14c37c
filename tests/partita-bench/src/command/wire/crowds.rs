//! Crowds of programs that launch workers, on an emulated GPU with time and without: how long until
//! all of them are done.
//!
//! Each program opens a session, loads a module, and launches small grids, each after the end of
//! the one before. Kernels are executed, and each program has SMs of its own where there are
//! enough.

use super::{Client, Config, WireError};
use partita_cli::failure::Failure;
use partita_cli::report::Metric;
use partita_cli::run::child::{ChildDaemon, Parts};
use partita_client::Session;
use std::path::Path;
use std::time::Instant;

/// Devices, with a word for each in the names of figures.
const DEVICES: [(&str, &str); 2] = [("emu:h200,timing=off", "off"), ("emu:h200", "on")];
/// Numbers of programs, of which `--quick` takes the first two.
const PROGRAMS: [u16; 4] = [16, 64, 256, 1024];
const QUICK: usize = 2;
/// The largest crowd that is measured with timing.
const MOST_TIMED: u16 = 64;
/// Launches of one program, one after the other.
const LAUNCHES: u16 = 4;
const CTAS: u32 = 64;

/// Measures all crowds, each with a daemon of its own.
pub(super) fn measure(is_quick: bool, metrics: &mut Vec<Metric>) -> Result<(), Failure> {
    let count = if is_quick { QUICK } else { PROGRAMS.len() };
    for programs in &PROGRAMS[..count] {
        // With timing the largest crowd takes minutes.
        let devices = if *programs > MOST_TIMED { &DEVICES[..1] } else { &DEVICES[..] };
        for (device, timing) in devices {
            let partitioner = if *timing == "on" { "cd-search" } else { "even" };
            let config = Config::new(partitioner)?;
            let parts = Parts::find((*device).to_owned())?;
            let daemon = ChildDaemon::start(&parts, &config.arguments())?;
            let seconds = until_done(daemon.folder(), *programs)?;
            let launches = f64::from(*programs) * f64::from(LAUNCHES);
            let name = format!("{programs} programs, timing={timing}");
            metrics.push(Metric::plain(format!("{name}: until all are done"), seconds, "s"));
            metrics.push(Metric::plain(format!("{name}: launches"), launches / seconds, "/s"));
        }
    }
    Ok(())
}

/// Seconds from the first program's start to the last one's end.
fn until_done(folder: &Path, programs: u16) -> Result<f64, WireError> {
    let work = |session| -> Result<(), WireError> {
        let client = Client::new(session)?;
        for _ in 0..LAUNCHES {
            client.launch(CTAS)?;
            client.session.synchronize(None)?;
        }
        Ok(())
    };
    let start = Instant::now();
    // One after the other: `partitad` refuses a user who begins many sessions at once.
    let sessions: Vec<Session> =
        (0..programs).map(|_| Session::connect(folder)).collect::<Result<_, _>>()?;
    std::thread::scope(|scope| {
        let begin = |session| scope.spawn(move || work(session));
        let threads: Vec<_> = sessions.into_iter().map(begin).collect();
        threads.into_iter().try_for_each(|thread| {
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    })?;
    Ok(start.elapsed().as_secs_f64())
}
