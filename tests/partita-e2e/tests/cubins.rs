//! Machine code from `ptxas`: its tables agree with the text.

use partita_e2e::toolchain;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The texts that compilers and people wrote, and our own.
fn texts() -> Vec<PathBuf> {
    let root = partita_e2e::workspace().join("kernels-ptx");
    let mut texts = Vec::new();
    let mut folders = vec![root.join("corpus"), root.join("device")];
    while let Some(folder) = folders.pop() {
        for entry in
            std::fs::read_dir(&folder).expect("a folder of the repository").filter_map(Result::ok)
        {
            let path = entry.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "ptx") {
                texts.push(path);
            }
        }
    }
    texts.sort();
    texts
}

/// Compares one text's kernels with those of its machine code. Returns their number, or `None`
/// where the assembler or the verifier rejects the text.
fn compare(ptxas: &Path, path: &Path, architecture: u32, folder: &Path) -> Option<usize> {
    let text = std::fs::read_to_string(path).expect("a file of the repository");
    let module = partita_ptx::parse(&text).ok()?;
    partita_ptx::verify(&module).ok()?;
    let output = folder.join("module.cubin");
    let made = Command::new(ptxas)
        .arg(format!("-arch=sm_{architecture}"))
        .arg("-o")
        .args([&output, path])
        .output()
        .expect("ptxas can be started");
    if !made.status.success() {
        return None;
    }
    let image = std::fs::read(&output).expect("ptxas has written it");
    let cubin =
        partita_cubin::read(&image).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    assert_eq!(cubin.architecture, architecture, "{}", path.display());
    let written = module.kernels();
    assert_eq!(written.len(), cubin.kernels.len(), "{}", path.display());
    for kernel in &written {
        let found = cubin.kernels.iter().find(|found| found.name == kernel.name);
        let found = found.unwrap_or_else(|| panic!("{}: no `{}`", path.display(), kernel.name));
        let params: Vec<(u64, u64)> =
            kernel.params.iter().map(|param| (param.offset, param.size)).collect();
        let theirs: Vec<(u64, u64)> =
            found.params.iter().map(|param| (param.offset.into(), param.size.into())).collect();
        let place = format!("{}: `{}` for sm_{architecture}", path.display(), kernel.name);
        assert_eq!(theirs, params, "{place}");
        assert_eq!(u64::from(found.param_bytes), kernel.param_bytes, "{place}");
        assert!((1..=255).contains(&found.registers), "{place}: {} registers", found.registers);
    }
    Some(written.len())
}

#[test]
fn tables_of_machine_code_say_what_the_text_says() {
    let ptxas = toolchain::toolkit().join("bin/ptxas");
    let folder = tempfile::tempdir().expect("a folder");
    let texts = texts();
    // Each text for one architecture, because assembling takes long: in turn, or the newest where
    // that is too old for it.
    let (mut files, mut kernels) = (0, 0);
    for (turn, path) in texts.iter().enumerate() {
        let first = [75, 90, 120][turn % 3];
        let compared =
            [first, 120].into_iter().find_map(|arch| compare(&ptxas, path, arch, folder.path()));
        files += usize::from(compared.is_some());
        kernels += compared.unwrap_or(0);
    }
    assert!(files >= 150 && kernels >= 200, "{kernels} kernels of {files} files only");
}
