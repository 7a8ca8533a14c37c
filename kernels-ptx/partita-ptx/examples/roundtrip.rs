//! Parses and prints files and says how fast: `roundtrip [--pass PASS]… [--out FILE] FILE…`.
//!
//! With `--pass` the kernels are rewritten between the two, and those that refuse are listed.

use std::time::Instant;

use partita_ptx::{Pass, WorkerOptions, passes};

fn main() -> std::process::ExitCode {
    let mut out = None;
    let mut files = Vec::new();
    let mut wanted = Vec::new();
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--out" => out = arguments.next(),
            "--pass" => {
                let name = arguments.next().unwrap_or_default();
                let Some(pass) = Pass::named(&name) else {
                    eprintln!("no pass is named `{name}`");
                    return std::process::ExitCode::from(2);
                };
                wanted.push(pass);
            }
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
            let applied = passes::apply(&module, &wanted, &WorkerOptions::default());
            for (pass, reports) in &applied.steps {
                let refused = reports.iter().filter(|report| report.rewritten().is_none());
                for report in refused.clone() {
                    let reasons: Vec<String> =
                        report.refusals().iter().map(ToString::to_string).collect();
                    println!("{file}: {}: {}: {}", pass.name(), report.name, reasons.join("; "));
                }
                let done = reports.len() - refused.count();
                println!("{file}: {}: {done} of {} kernels", pass.name(), reports.len());
            }
            partita_ptx::print(&applied.module)
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
