//! What the environment of a job's task gets, so that its programs find Partita.
//!
//! A program reaches the shim by `LD_PRELOAD`. A script that sets `LD_PRELOAD` anew loses it;
//! then `LD_LIBRARY_PATH` leads every program that looks for `libcuda.so.1` to a link to the shim.
//! Each step of the job gets both anew.

use crate::options::Wishes;
use crate::settings::Settings;
use std::path::Path;

const SHIM: &str = "libpartita_cuda.so";
/// The folder with `libcuda.so.1` and `ptxas`, links to the shim and to the command `partita`.
const LINKS: &str = "cuda";

/// The name of a job's reservation, and the tag of its application.
pub(crate) fn name_of(job: u32) -> String {
    format!("slurm-{job}")
}

/// The variables to set. `current` tells what a variable is now.
pub(crate) fn changes(
    settings: &Settings,
    wishes: &Wishes,
    job: u32,
    current: impl Fn(&str) -> Option<String>,
) -> Vec<(&'static str, String)> {
    let shim = settings.lib_dir.join(SHIM);
    let links = settings.lib_dir.join(LINKS);
    let mut all = vec![
        ("LD_PRELOAD", with(&shim, current("LD_PRELOAD"), &[' ', ':'], Side::Last)),
        ("PARTITA_SOCKET_DIR", settings.socket_dir.display().to_string()),
        ("PARTITA_APP", name_of(job)),
    ];
    if links.join("libcuda.so.1").exists() {
        let path = with(&links, current("LD_LIBRARY_PATH"), &[':'], Side::First);
        all.push(("LD_LIBRARY_PATH", path));
    }
    // The variables of `partita run` for Python's compilers; what the user has set stays.
    let ptxas = links.join("ptxas").display().to_string();
    let mut unless_set =
        vec![("CUPY_COMPILE_WITH_PTX", "1".to_owned()), ("CUPY_ACCELERATORS", String::new())];
    if links.join("ptxas").exists() {
        unless_set.push(("TRITON_LIBCUDA_PATH", links.display().to_string()));
        unless_set.push(("TRITON_PTXAS_PATH", ptxas.clone()));
        unless_set.push(("TRITON_PTXAS_BLACKWELL_PATH", ptxas));
    }
    unless_set.retain(|(name, _)| current(name).is_none());
    all.extend(unless_set);
    all.extend(wishes.terms());
    all
}

/// Where an entry stands in a list of paths.
enum Side {
    /// Before all others.
    First,
    /// Behind all others: a tool that wraps the driver's functions stands before the shim.
    Last,
}

/// The list of paths with `path` in it once, at this side.
fn with(path: &Path, list: Option<String>, separators: &[char], side: Side) -> String {
    let path = path.display().to_string();
    let list = list.unwrap_or_default();
    let others = list.split(separators).filter(|other| !other.is_empty() && *other != path);
    let mut all: Vec<&str> = others.collect();
    match side {
        Side::First => all.insert(0, &path),
        Side::Last => all.push(&path),
    }
    all.join(":")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(settings: &Settings, current: &[(&str, &str)]) -> Vec<(&'static str, String)> {
        let wishes = Wishes { sms: Some("8".parse().unwrap()), ..Wishes::default() };
        changes(settings, &wishes, 42, |name| {
            current.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).into())
        })
    }

    fn value<'a>(changes: &'a [(&str, String)], name: &str) -> Option<&'a str> {
        changes.iter().find(|(key, _)| *key == name).map(|(_, value)| value.as_str())
    }

    #[test]
    fn a_task_finds_the_shim_and_its_job() {
        let found = of(&Settings::default(), &[]);
        assert_eq!(value(&found, "LD_PRELOAD"), Some("/usr/lib/partita/libpartita_cuda.so"));
        assert_eq!(value(&found, "PARTITA_APP"), Some("slurm-42"));
        assert_eq!(value(&found, "PARTITA_SOCKET_DIR"), Some("/run/partita"));
        assert_eq!(value(&found, "PARTITA_SMS"), Some("8.."));
        assert_eq!(value(&found, "CUPY_COMPILE_WITH_PTX"), Some("1"));
    }

    #[test]
    fn what_the_user_preloads_stays_and_the_shim_comes_once() {
        let shim = "/usr/lib/partita/libpartita_cuda.so";
        let check = |before: &str, after: &str| {
            let found = of(&Settings::default(), &[("LD_PRELOAD", before)]);
            assert_eq!(value(&found, "LD_PRELOAD"), Some(after), "{before}");
        };
        check("libtool.so", &format!("libtool.so:{shim}"));
        check(&format!("{shim}:a.so b.so"), &format!("a.so:b.so:{shim}"));
    }

    #[test]
    fn links_lead_programs_that_are_not_preloaded() {
        let folder = tempfile::tempdir().unwrap();
        let settings = Settings { lib_dir: folder.path().into(), ..Settings::default() };
        let before = [("LD_LIBRARY_PATH", "/opt/lib"), ("TRITON_PTXAS_PATH", "/mine")];
        assert_eq!(value(&of(&settings, &before), "LD_LIBRARY_PATH"), None);
        let links = folder.path().join("cuda");
        std::fs::create_dir(&links).unwrap();
        for name in ["libcuda.so.1", "ptxas"] {
            std::fs::write(links.join(name), "").unwrap();
        }
        let found = of(&settings, &before);
        let expected = format!("{}:/opt/lib", links.display());
        assert_eq!(value(&found, "LD_LIBRARY_PATH"), Some(expected.as_str()));
        assert_eq!(value(&found, "TRITON_PTXAS_PATH"), None, "the user's own stays");
        assert_eq!(value(&found, "TRITON_LIBCUDA_PATH"), links.to_str());
    }
}
