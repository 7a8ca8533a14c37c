//! The printer's oracle: `ptxas` must turn the original and the printed text into the same machine
//! code; and it must take the worker form of the same modules.
//!
//! Needs the CUDA compiler: `PARTITA_NVCC` names `nvcc`, `PARTITA_PTXAS` names `ptxas`. Without
//! both the tests skip, and say so.

use std::path::{Path, PathBuf};
use std::process::Command;

use partita_ptx::{WorkerOptions, parse, print, verify, worker};

struct Tools {
    nvcc: PathBuf,
    ptxas: PathBuf,
}

impl Tools {
    fn find() -> Option<Self> {
        let tool = |name: &str| std::env::var_os(name).map(PathBuf::from);
        let tools = tool("PARTITA_NVCC")
            .zip(tool("PARTITA_PTXAS"))
            .map(|(nvcc, ptxas)| Self { nvcc, ptxas });
        if tools.is_none() {
            skip("PARTITA_NVCC and PARTITA_PTXAS do not name the tools, so nothing is compared");
        }
        tools
    }

    fn ptx(&self, source: &Path, architecture: u32, folder: &Path) -> String {
        let out = folder.join("module.ptx");
        run(Command::new(&self.nvcc)
            .args(["--ptx", "-std=c++17"])
            .arg(format!("-arch=compute_{architecture}"))
            .arg(source)
            .arg("-o")
            .arg(&out));
        std::fs::read_to_string(out).expect("nvcc has written it")
    }

    fn assemble(&self, text: &str, architecture: u32, folder: &Path) -> Vec<u8> {
        // The file's name is in the output, so both texts go by the same.
        std::fs::write(folder.join("module.ptx"), text).expect("the folder is ours");
        let architecture = format!("-arch=sm_{architecture}");
        run(Command::new(&self.ptxas).current_dir(folder).args([
            architecture.as_str(),
            "module.ptx",
            "-o",
            "module.cubin",
        ]));
        std::fs::read(folder.join("module.cubin")).expect("ptxas has written it")
    }
}

/// Says that something is not tested. A passing test's `eprintln!` is kept from the reader.
fn skip(what: &str) {
    let line = format!("SKIPPED: {what}\n");
    std::io::Write::write_all(&mut std::io::stderr(), line.as_bytes())
        .expect("standard error can be written");
}

fn run(command: &mut Command) {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn machine_code_stays_the_same() {
    let Some(tools) = Tools::find() else { return };
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../corpus/cu");
    for (source, architectures) in [("basics.cu", &[75, 80, 90][..]), ("machine.cu", &[80, 90][..])]
    {
        for &architecture in architectures {
            let folder = tempfile::tempdir().expect("a temporary folder");
            let original = tools.ptx(&root.join(source), architecture, folder.path());
            let module =
                parse(&original).unwrap_or_else(|errors| panic!("{}", errors.in_file(source)));
            verify(&module).unwrap_or_else(|errors| {
                panic!("{}", errors.with_source(&original).in_file(source))
            });
            let printed = print(&module);
            let before = tools.assemble(&original, architecture, folder.path());
            let after = tools.assemble(&printed, architecture, folder.path());
            assert!(before == after, "{source} for {architecture}: the machine code differs");

            let rewritten = worker(&module, &WorkerOptions::default());
            let done =
                rewritten.reports.iter().filter(|report| report.rewritten().is_some()).count();
            assert!(
                done * 10 >= rewritten.reports.len() * 7,
                "{source}: only {done} kernels as workers"
            );
            tools.assemble(&print(&rewritten.module), architecture, folder.path());
        }
    }
}
