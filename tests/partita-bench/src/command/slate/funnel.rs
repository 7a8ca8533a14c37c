//! What the funnel costs an application: a program through shim, rings and `partita-gpu` (Slate
//! §V-D, Fig. 6).
//!
//! The program is `funnel`, which knows nothing of Partita. It loads an application's modules,
//! makes and fills its memory, launches its kernels and fetches the memory, and times its calls.
//! The device executes no kernel, so the times are those of the funnel alone:
//!
//! - **Communication**: all calls but loads, copies included. Launches return before the kernel has
//!   run, so on a GPU most of this time passes while kernels run.
//! - **Injection and compilation**: loads, from the call to its return. The same without rewriting
//!   tells injection alone.
//!
//! The application's time is that of kernels for [`LOOP`], as in the paper, and these times. Copies
//! of real programs go on while kernels run, and real drivers compile longer than the emulated GPU.

use super::figures::Funnel;
use partita_bench::Application;
use partita_bench::pairing::Pairing;
use partita_cli::demo::toolkit::{Compiler, Program};
use partita_cli::failure::{Failure, say};
use partita_cli::progress::Bar;
use partita_cli::run::child::{ChildDaemon, Parts};
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

const FUNNEL: Program = Program { name: "funnel", source: include_str!("programs/funnel.cu") };
/// The nanoseconds for which an application loops its kernels (Slate §V-A: about 30 s).
const LOOP: f64 = 30e9;
/// Launches that are made; the time of more follows in proportion.
const MOST_LAUNCHES: f64 = 200_000.0;
const QUICK_LAUNCHES: f64 = 20_000.0;
/// Loads of each kind. The shortest counts: other programs only make them longer.
const LOADS: usize = 3;

/// How the daemon treats kernels.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kernels {
    /// As they are.
    Written,
    /// Rewritten for partitions.
    Rewritten,
}

/// Nanoseconds of the calls of one run.
#[derive(Clone, Copy, PartialEq, Debug)]
struct Calls {
    load: f64,
    setup: f64,
    launch: f64,
    finish: f64,
}

impl Calls {
    /// Of what the program prints.
    fn parse(line: &str) -> Option<Calls> {
        let numbers: Option<Vec<f64>> =
            line.split_whitespace().map(|word| word.parse().ok()).collect();
        match numbers?[..] {
            [load, setup, launch, finish] => Some(Calls { load, setup, launch, finish }),
            _ => None,
        }
    }
}

/// Measures every application.
pub fn measure(spec: &str, is_quick: bool, pairing: &Pairing<'_>) -> Result<Vec<Funnel>, Failure> {
    let program = Compiler::find(&mut |text| say(text))?.build(&FUNNEL)?;
    let parts = Parts::find(format!("emu:{spec},timing=off,kernels=off,call=off"))?;
    let most = if is_quick { QUICK_LAUNCHES } else { MOST_LAUNCHES };
    let mut bar = Bar::new("funnel", "programs");
    let mut found = Vec::new();
    for (application, solo) in pairing.applications.iter().zip(&pairing.solos) {
        let launches = LOOP / (solo.original / solo.launches as f64).max(1.0);
        let made = launches.clamp(1.0, most).ceil();
        #[expect(clippy::cast_possible_truncation, reason = "between 1 and MOST_LAUNCHES")]
        let count = made as u64;
        let folder = TempDir::new()?;
        let loads = plan(application, folder.path(), 0)?;
        let run = |kernels, path: &Path| run(&parts, kernels, &program, path);
        let load = |kernels| -> Result<f64, Failure> {
            let runs: Result<Vec<Calls>, Failure> =
                (0..LOADS).map(|_| run(kernels, &loads)).collect();
            Ok(runs?.iter().map(|calls| calls.load).fold(f64::INFINITY, f64::min))
        };
        let (written, rewritten) = (load(Kernels::Written)?, load(Kernels::Rewritten)?);
        // Without kernels no worker says that it is done, so launches are made as they are.
        let all = run(Kernels::Written, &plan(application, folder.path(), count)?)?;
        let communication = all.setup + all.launch * launches / made + all.finish;
        let time = LOOP + communication + rewritten;
        let part = |nanos: f64| 100.0 * nanos / time;
        found.push(Funnel {
            name: application.name.clone(),
            communication: part(communication),
            injection: part((rewritten - written).max(0.0)),
            compilation: part(written.min(rewritten)),
            launch_micros: all.launch / made / 1e3,
            load_millis: rewritten / 1e6,
        });
        bar.step(found.len(), pairing.applications.len(), &application.name);
    }
    bar.end();
    Ok(found)
}

/// One run of the program, on a daemon of its own: nothing of its modules is known.
fn run(parts: &Parts, kernels: Kernels, program: &Path, plan: &Path) -> Result<Calls, Failure> {
    let arguments: &[&str] = match kernels {
        Kernels::Written => &["--policy", "even", "--sharing", "mps"],
        // Slate needs times, and modules are rewritten alike under every policy.
        Kernels::Rewritten => &["--policy", "even"],
    };
    let daemon = ChildDaemon::start(parts, arguments)?;
    let output = daemon.program(program).arg(plan).output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    let calls = Calls::parse(&text).filter(|_| output.status.success());
    calls.ok_or_else(|| {
        let said = String::from_utf8_lossy(&output.stderr);
        Failure::new(format!("`funnel` ended with {}: {}", output.status, said.trim()))
    })
}

/// Writes the plan of an application for the program, with its contents beside it.
fn plan(application: &Application, folder: &Path, launches: u64) -> Result<PathBuf, Failure> {
    let mut text = String::new();
    let file = |name: String, bytes: &[u8]| -> Result<String, Failure> {
        if bytes.is_empty() {
            return Ok("-".to_owned());
        }
        let path = folder.join(name);
        fs::write(&path, bytes)?;
        Ok(path.display().to_string())
    };
    for (index, module) in application.modules.iter().enumerate() {
        let path = file(format!("module-{index}"), module.as_bytes())?;
        let _ = writeln!(text, "module {path}");
    }
    for variable in &application.variables {
        let path = file(format!("variable-{}", variable.name), &variable.contents)?;
        let _ = writeln!(text, "variable {} {} {path}", variable.module, variable.name);
    }
    for (index, buffer) in application.buffers.iter().enumerate() {
        let path = file(format!("buffer-{index}"), &buffer.contents)?;
        let _ = writeln!(text, "buffer {} {path}", buffer.bytes.max(1));
    }
    for step in &application.pass {
        let ([gx, gy, gz], [bx, by, bz]) =
            ([step.grid.x, step.grid.y, step.grid.z], [step.block.x, step.block.y, step.block.z]);
        let mut parameters: String = step.params.iter().map(|byte| format!("{byte:02x}")).collect();
        if parameters.is_empty() {
            parameters.push('-');
        }
        let _ = write!(
            text,
            "step {} {} {gx} {gy} {gz} {bx} {by} {bz} {} {parameters} {}",
            step.module,
            step.kernel,
            step.dynamic_shared,
            step.pointers.len()
        );
        for pointer in &step.pointers {
            let _ = write!(text, " {} {} {}", pointer.at, pointer.buffer, pointer.offset);
        }
        text.push('\n');
    }
    let _ = writeln!(text, "launches {launches}");
    let path = folder.join(format!("plan-{launches}"));
    fs::write(&path, text)?;
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use partita_bench::samples;

    #[test]
    fn a_plan_has_everything_of_an_application() {
        let folder = tempfile::tempdir().unwrap();
        let quasirandom = &samples(1)[3];
        let path = plan(quasirandom, folder.path(), 7).unwrap();
        let text = fs::read_to_string(path).unwrap();
        let kinds: Vec<&str> = text.lines().filter_map(|line| line.split(' ').next()).collect();
        assert_eq!(kinds, ["module", "variable", "buffer", "step", "launches"]);
        assert!(text.contains("step 0 quasirandom 128 1 1 128 3 1 0 "), "{text}");
        // An address, the seed 0 and 2^18 numbers.
        assert!(text.contains(" 00000000000000000000000000000400 1 0 0 0\n"), "{text}");
        assert!(text.ends_with("launches 7\n"));
    }

    #[test]
    fn what_the_program_prints_is_read() {
        let calls = Calls { load: 1.0, setup: 2.0, launch: 3.0, finish: 4.0 };
        assert_eq!(Calls::parse("1 2 3 4\n"), Some(calls));
        assert_eq!(Calls::parse("1 2 3\n"), None);
        assert_eq!(Calls::parse(""), None);
    }
}
