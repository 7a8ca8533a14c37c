//! Parses and prints files and says how fast: `roundtrip [--worker] [--out FILE] FILE…`.
//!
//! With `--worker` the kernels are brought into the worker form between the two, and those that refuse are listed.

use std::time::Instant;

fn main() -> std::process::ExitCode {
    let mut out = None;
    let mut files = Vec::new();
    let mut rewrite = false;
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--out" => out = arguments.next(),
            "--worker" => rewrite = true,
            _ => files.push(argument),
        }
    }
    let (mut bytes, mut failed) = (0, false);
    let mut seconds = 0.0;
    for file in &files {
        let source = match std::fs::read_to_string(file) {
            Ok(source) => source,
            Err(error) => {
                eprintln!("{file}: {error}");
                failed = true;
                continue;
            }
        };
        let verified = partita_ptx::parse(&source).and_then(|module| partita_ptx::verify(&module));
        if let Err(errors) = verified {
            println!("{}", errors.with_source(&source).in_file(file));
            failed = true;
            continue;
        }
        let start = Instant::now();
        let result = partita_ptx::parse(&source).map(|module| {
            if !rewrite {
                return partita_ptx::print(&module);
            }
            let rewritten = partita_ptx::worker(&module, &partita_ptx::WorkerOptions::default());
            for report in rewritten.reports.iter().filter(|report| report.rewritten().is_none()) {
                let reasons: Vec<String> = report.refusals().iter().map(ToString::to_string).collect();
                println!("{file}: {}: {}", report.name, reasons.join("; "));
            }
            let done = rewritten.reports.iter().filter(|report| report.rewritten().is_some()).count();
            println!("{file}: {done} of {} kernels", rewritten.reports.len());
            partita_ptx::print(&rewritten.module)
        });
        seconds += start.elapsed().as_secs_f64();
        bytes += source.len();
        match (result, &out) {
            (Ok(text), Some(out)) => {
                if let Err(error) = std::fs::write(out, text) {
                    eprintln!("{out}: {error}");
                    failed = true;
                }
            }
            (Ok(_), None) => {}
            (Err(errors), _) => {
                println!("{}", errors.in_file(file));
                failed = true;
            }
        }
    }
    #[expect(clippy::cast_precision_loss, reason = "a rate for people")]
    let rate = bytes as f64 / 1e6 / seconds;
    println!("{} files, {bytes} bytes, {rate:.1} MB/s", files.len());
    std::process::ExitCode::from(u8::from(failed))
}
