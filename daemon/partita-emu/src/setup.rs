//! The text of an emulated GPU: `emu`, `emu:SPEC`, `emu:SPEC,OPTION,…`.
//!
//! `partita run --device`, `partitad --device` and `partita-gpu --device` take the same text. This
//! file alone knows its grammar. A spec is a name, or a file's path with a slash; neither has a
//! comma.

use crate::gpu::{Cancel, EmulatedGpu, Kernels, MemoryOrder, Options, Timing};
use crate::memory::MemoryCheck;
use crate::spec::{Spec, SpecError};
use partita_model::{AddressPart, HostTime, Nanos, Sharing};
use std::path::{Path, PathBuf};

/// The spec that `emu` stands for where none is named.
pub const DEFAULT_SPEC: &str = "h200";

/// The options that may follow the spec, for messages and help texts.
const KNOWN: &str = "timing=on, timing=off, weak, cancel=off, memcheck=on, guards=on, kernels=off, \
    seed=NUMBER, sharing=spatial, sharing=timeslice, sharing=mps, \
                     thread-percentage=1..100, capability=MAJOR.MINOR, record=FILE, \
                     call=NANOSECONDS, call=off, \
                     patience=MILLISECONDS, budget=MILLISECONDS, budget=off, \
                     together=PROGRAMS, part=INDEX/COUNT, threads=1..256";

/// What host time is worth to live runs: 2 us from call to call, of the order of a launch on the
/// host's side, a second of patience, and 10 s for which a program may hold up others.
pub const HOST_TIME: HostTime =
    HostTime { call: Nanos(2_000), patience_ms: 1_000, together: 1, budget_ms: Some(10_000) };

/// How many of the host's threads may execute kernels.
const THREADS: std::ops::RangeInclusive<u16> = 1..=256;

/// What a device text says.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Setup {
    /// Name or path of the spec, where one is named.
    pub spec: Option<String>,
    /// The compute capability that is announced in place of the spec's, major and minor: compilers
    /// write for that then.
    pub capability: Option<[u8; 2]>,
    /// The options.
    pub options: Options,
    /// Where what the device is asked to do is recorded ([`crate::record`]). Where no way of
    /// sharing is named, kernels run as they were written then.
    pub record: Option<PathBuf>,
}

impl Default for Setup {
    fn default() -> Self {
        let options = Options { host_time: Some(HOST_TIME), ..Options::default() };
        Setup { spec: None, capability: None, options, record: None }
    }
}

/// Why a text names no emulated GPU.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum SetupError {
    /// The text names another kind of device, or none.
    #[error(
        "`{0}` is no device: expected `emu` or `emu:SPEC`, and then options as in \
         `emu:SPEC,timing=off` \
         (`partita emu specs` lists the specifications)"
    )]
    NoEmulator(String),
    /// No option has this name.
    #[error("`{0}` is no option of the emulated GPU; there are {KNOWN}")]
    UnknownOption(String),
    /// The option occurs twice.
    #[error("`{0}` is given twice")]
    Twice(String),
    /// Several threads execute kernels only where nothing depends on their order.
    #[error(
        "`{0}` needs `timing=off`, without `weak`: one thread alone keeps time, or the order of \
         weak memory"
    )]
    KeepsTime(String),
}

impl Setup {
    /// Reads a device text. Whether the spec exists is not looked at.
    ///
    /// # Errors
    /// [`SetupError`].
    pub fn parse(text: &str) -> Result<Setup, SetupError> {
        let mut parts = text.split(',');
        let device = parts.next().unwrap_or_default();
        let spec = match device.split_once(':') {
            None if device == "emu" => None,
            Some(("emu", spec)) if !spec.is_empty() => Some(spec.to_owned()),
            _ => return Err(SetupError::NoEmulator(text.to_owned())),
        };
        let mut setup = Setup { spec, ..Setup::default() };
        let mut seen = Vec::new();
        let (mut host_time, mut charged) = (HOST_TIME, true);
        for option in parts {
            let (key, value) = match option.split_once('=') {
                Some((key, value)) => (key, Some(value)),
                None => (option, None),
            };
            if seen.contains(&key) {
                return Err(SetupError::Twice(key.to_owned()));
            }
            seen.push(key);
            match (key, value) {
                ("timing", Some("on")) => setup.options.timing = Timing::On,
                ("timing", Some("off")) => setup.options.timing = Timing::Off,
                ("cancel", Some("off")) => setup.options.cancel = Cancel::Never,
                ("memcheck", Some("on")) => setup.options.memcheck = MemoryCheck::Exact,
                ("memcheck", Some("off")) => setup.options.memcheck = MemoryCheck::Pages,
                ("guards", Some("on")) => setup.options.guarded = true,
                ("guards", Some("off")) => setup.options.guarded = false,
                ("kernels", Some("on")) => setup.options.kernels = Kernels::Run,
                ("kernels", Some("off")) => setup.options.kernels = Kernels::Skip,
                ("weak", None) => setup.options.memory = MemoryOrder::Weak,
                ("seed", Some(seed)) => {
                    let unknown = |_| SetupError::UnknownOption(option.to_owned());
                    setup.options.seed = seed.parse().map_err(unknown)?;
                }
                ("sharing", Some(name)) => {
                    let sharing = Sharing::ALL.into_iter().find(|sharing| sharing.name() == name);
                    let unknown = || SetupError::UnknownOption(option.to_owned());
                    setup.options.sharing = sharing.ok_or_else(unknown)?;
                }
                ("thread-percentage", Some(part)) => {
                    let part = part.parse().ok().filter(|part| (1..=100).contains(part));
                    let unknown = || SetupError::UnknownOption(option.to_owned());
                    setup.options.thread_percentage = Some(part.ok_or_else(unknown)?);
                }
                ("capability", Some(text)) => {
                    let unknown = || SetupError::UnknownOption(option.to_owned());
                    setup.capability = Some(capability(text).ok_or_else(unknown)?);
                }
                ("threads", Some(number)) => {
                    let number = number.parse().ok().filter(|number| THREADS.contains(number));
                    let unknown = || SetupError::UnknownOption(option.to_owned());
                    let number: u16 = number.ok_or_else(unknown)?;
                    setup.options.helpers = number - 1;
                }
                ("record", Some(path)) if !path.is_empty() => setup.record = Some(path.into()),
                ("part", Some(part)) => {
                    let unknown = || SetupError::UnknownOption(option.to_owned());
                    setup.options.part = AddressPart::parse(part).ok_or_else(unknown)?;
                }
                ("call", Some("off")) => charged = false,
                ("call", Some(nanos)) => {
                    let unknown = |_| SetupError::UnknownOption(option.to_owned());
                    host_time.call = Nanos(nanos.parse().map_err(unknown)?);
                }
                ("patience", Some(millis)) => {
                    let unknown = |_| SetupError::UnknownOption(option.to_owned());
                    host_time.patience_ms = millis.parse().map_err(unknown)?;
                }
                ("budget", Some("off")) => host_time.budget_ms = None,
                ("budget", Some(millis)) => {
                    let unknown = |_| SetupError::UnknownOption(option.to_owned());
                    host_time.budget_ms = Some(millis.parse().map_err(unknown)?);
                }
                ("together", Some(programs)) => {
                    let unknown = |_| SetupError::UnknownOption(option.to_owned());
                    host_time.together = programs.parse().map_err(unknown)?;
                }
                _ => return Err(SetupError::UnknownOption(option.to_owned())),
            }
        }
        let unordered =
            setup.options.timing == Timing::Off && setup.options.memory == MemoryOrder::InOrder;
        if setup.options.helpers > 0 && !unordered {
            return Err(SetupError::KeepsTime(format!("threads={}", setup.options.helpers + 1)));
        }
        // Programs that start together are measured, and wait for each other as long as it takes.
        if host_time.together > 1 && !seen.contains(&"budget") {
            host_time.budget_ms = None;
        }
        // Without timing the host's clock decides who goes on, which no replay could repeat.
        let repeats = setup.record.is_some() && setup.options.timing == Timing::Off;
        setup.options.host_time = Some(host_time).filter(|_| charged && !repeats);
        // Without the option `sharing`, kernels are recorded as they were written. Nor can workers,
        // whose claims follow each other, run on several threads.
        let as_written = setup.record.is_some() || setup.options.helpers > 0;
        if as_written && !seen.contains(&"sharing") {
            setup.options.sharing = Sharing::Mps;
        }
        Ok(setup)
    }

    /// The spec as it is written, without what the options change.
    ///
    /// # Errors
    /// [`SpecError`].
    pub fn find_spec(&self) -> Result<Spec, SpecError> {
        Spec::find(self.spec.as_deref().unwrap_or(DEFAULT_SPEC))
    }

    /// Builds the GPU; a recorder is the caller's to put before it.
    ///
    /// # Errors
    /// [`SpecError`].
    pub fn open(&self) -> Result<EmulatedGpu, SpecError> {
        let mut spec = self.find_spec()?;
        spec.compute_capability = self.capability.unwrap_or(spec.compute_capability);
        if self.options.timing == Timing::Off {
            // CTAs that start on SMs of others leave at once, and cost the host more than the
            // programs' own. Where no time is kept, no figure depends on them.
            spec.sm_group = 1;
        }
        Ok(EmulatedGpu::new(spec, self.options))
    }
}

/// Reads a compute capability such as `8.0`. The oldest is 5.0, the oldest for which CUDA's
/// compilers still write PTX.
fn capability(text: &str) -> Option<[u8; 2]> {
    let (major, minor) = text.split_once('.')?;
    let (major, minor) = (major.parse().ok()?, minor.parse().ok()?);
    ((5..=99).contains(&major) && minor <= 9).then_some([major, minor])
}

impl Spec {
    /// The spec of that name, or in that file where the name has a slash.
    ///
    /// # Errors
    /// [`SpecError`].
    pub fn find(name: &str) -> Result<Spec, SpecError> {
        if name.contains('/') { Spec::from_path(Path::new(name)) } else { Spec::named(name) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts() {
        let check = |text: &str, spec: Option<&str>, timing: Timing| {
            let options = Options { timing, ..Setup::default().options };
            let expected = Setup { spec: spec.map(str::to_owned), options, ..Setup::default() };
            assert_eq!(Setup::parse(text), Ok(expected), "{text}");
        };
        check("emu", None, Timing::On);
        check("emu:small", Some("small"), Timing::On);
        check("emu,timing=off", None, Timing::Off);
        check("emu:./a=b:c.toml,timing=on", Some("./a=b:c.toml"), Timing::On);
        check("emu:h200,timing=off", Some("h200"), Timing::Off);
        let options = Setup::parse("emu,weak,seed=7,timing=off").unwrap().options;
        let expected = Options {
            seed: 7,
            timing: Timing::Off,
            memory: MemoryOrder::Weak,
            ..Setup::default().options
        };
        assert_eq!(options, expected);
        let setup = Setup::parse("emu,record=a/b=c").unwrap();
        assert_eq!((setup.record, setup.options.sharing), (Some("a/b=c".into()), Sharing::Mps));
        assert!(setup.options.host_time.is_some());
        let untimed = Setup::parse("emu,timing=off,record=a").unwrap();
        assert_eq!(untimed.options.host_time, None);
        let setup = Setup::parse("emu,record=a,sharing=spatial").unwrap();
        assert_eq!(setup.options.sharing, Sharing::Spatial);
        let threads = |text: &str| Setup::parse(text).unwrap().options.helpers + 1;
        assert_eq!((threads("emu"), threads("emu,threads=1")), (1, 1));
        assert_eq!(threads("emu,threads=4,timing=off"), 4);
        let sharing = |text: &str| Setup::parse(text).unwrap().options.sharing;
        assert_eq!(sharing("emu,timing=off,threads=4"), Sharing::Mps);
        assert_eq!(sharing("emu,timing=off,threads=4,sharing=spatial"), Sharing::Spatial);
        assert_eq!(sharing("emu,timing=off,threads=1"), Sharing::Spatial);
        assert!(Setup::parse("emu,guards=on").unwrap().options.guarded);
        let memcheck = |text: &str| Setup::parse(text).unwrap().options.memcheck;
        assert_eq!(memcheck("emu"), MemoryCheck::Pages);
        assert_eq!(memcheck("emu,memcheck=on"), MemoryCheck::Exact);
        let host_time = Setup::parse("emu,patience=7").unwrap().options.host_time;
        assert_eq!(host_time, Some(HostTime { patience_ms: 7, ..HOST_TIME }));
        assert_eq!(Setup::parse("emu,call=off").unwrap().options.host_time, None);
        let part = Setup::parse("emu,part=1/2").unwrap().options.part;
        assert_eq!((part.index(), part.is_whole()), (1, false));
    }

    #[test]
    fn errors_name_the_remedy() {
        let check = |text: &str, words: &str| {
            let error = Setup::parse(text).unwrap_err().to_string();
            assert!(error.contains(words), "{text}: {error}");
        };
        check("", "expected `emu`");
        check("cuda:0", "`cuda:0` is no device");
        check("emulator", "expected `emu`");
        check("emu:", "emu:SPEC");
        check("emu:,timing=off", "emu:SPEC");
        check(
            "emu,timing",
            "`timing` is no option of the emulated GPU; there are timing=on, timing=off, weak, \
             cancel=off, ",
        );
        check("emu,record=", "`record=` is no option");
        check("emu,timing=of", "`timing=of` is no option");
        check("emu:h200,", "`` is no option");
        check("emu,weak=on", "`weak=on` is no option");
        check("emu,seed=-1", "`seed=-1` is no option");
        check("emu,part=2/2", "`part=2/2` is no option");
        for wrong in ["threads=0", "threads=257", "threads=many", "threads"] {
            check(&format!("emu,timing=off,{wrong}"), &format!("`{wrong}` is no option"));
        }
        check("emu,threads=2", "`threads=2` needs `timing=off`");
        check("emu,timing=off,threads=2,weak", "without `weak`");
        for wrong in ["8", "8.", "4.9", "8.10", "-8.0"] {
            check(
                &format!("emu,capability={wrong}"),
                &format!("`capability={wrong}` is no option"),
            );
        }
        check("emu,timing=off,timing=on", "`timing` is given twice");
    }

    #[test]
    fn a_setup_opens_its_gpu() {
        use partita_device::Device as _;
        use partita_model::Timekeeping;
        let open = |text: &str| Setup::parse(text).unwrap().open();
        assert_eq!(open("emu").unwrap().facts().timekeeping, Timekeeping::Simulated);
        let gpu = open("emu:cd-search-24,timing=off").unwrap();
        assert_eq!((gpu.facts().sm_count, gpu.facts().timekeeping), (24, Timekeeping::Off));
        let capability = open("emu:a100,capability=8.0").unwrap().facts().compute_capability;
        assert_eq!((capability.major, capability.minor), (8, 0));
        assert!(matches!(open("emu:gtx"), Err(SpecError::Unknown { .. })));
        assert!(matches!(open("emu:/no/such/file"), Err(SpecError::Unreadable { .. })));
    }
}
