//! Parses PTX files with `ptx-syntax` and with `partita-ptx`, both compiled alike, and says how
//! fast each was.
//!
//! `cargo run --release --manifest-path tests/ptx-syntax/Cargo.toml -- FILE…`; it is built by hand,
//! not by CI. Only files that both take are counted; those that `ptx-syntax` refuses are named. Of
//! each file and parser the shortest of three times counts.

use std::process::ExitCode;
use std::time::Instant;

/// `ptx-syntax` recurses.
const STACK_BYTES: usize = 1 << 30;

fn main() -> ExitCode {
    let thread = std::thread::Builder::new().stack_size(STACK_BYTES).spawn(compare);
    match thread.map(std::thread::JoinHandle::join) {
        Ok(Ok(())) => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    }
}

fn compare() {
    let (mut theirs, mut ours, mut bytes) = (0.0, 0.0, 0);
    let (mut taken, mut refused) = (0, 0);
    for file in std::env::args().skip(1) {
        let text = match std::fs::read_to_string(&file) {
            Ok(text) => text,
            Err(error) => {
                eprintln!("{file}: {error}");
                continue;
            }
        };
        if let Err(errors) = partita_ptx::parse(&text) {
            eprintln!("partita-ptx: {}", errors.in_file(&file));
            continue;
        }
        if let Err(error) = ptx_syntax::parse_ptx(&text) {
            eprintln!("ptx-syntax: {file}: {error}");
            refused += 1;
            continue;
        }
        taken += 1;
        bytes += text.len();
        theirs += shortest(|| ptx_syntax::parse_ptx(&text).is_ok());
        ours += shortest(|| partita_ptx::parse(&text).is_ok());
    }
    #[expect(clippy::cast_precision_loss, reason = "a few megabytes")]
    let megabytes = bytes as f64 / 1e6;
    println!("{taken} files of {megabytes:.2} MB, {refused} more refused by ptx-syntax");
    println!("ptx-syntax   {:8.2} MB/s", megabytes / theirs);
    println!("partita-ptx  {:8.2} MB/s", megabytes / ours);
}

/// Seconds.
fn shortest(mut work: impl FnMut() -> bool) -> f64 {
    let once = |_| {
        let start = Instant::now();
        std::hint::black_box(work());
        start.elapsed().as_secs_f64()
    };
    (0..3).map(once).fold(f64::INFINITY, f64::min)
}
