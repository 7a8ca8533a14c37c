//! The options in `--device cuda…`.

use partita_model::AddressPart;
use std::path::PathBuf;

/// The way by which the host writes memory that running kernels poll.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum SignalPath {
    /// By copies on their own stream.
    #[default]
    Copy,
    /// By stores and loads in host memory that is mapped for the device.
    Mapped,
}

/// The clock of the device's time.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum ClockSource {
    /// The host's.
    #[default]
    Host,
    /// The GPU's, by its events. For drivers that emulate a GPU, whose kernels take much more of
    /// the host's time than of the GPU's.
    Gpu,
}

/// Whether kernels are guarded.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Guarding {
    /// Kernels are guarded: they keep to their window, and traps end their launch.
    #[default]
    On,
    /// All faults of kernels that can be found end their launch. Allocations may then wait until no
    /// kernel runs.
    Strict,
    /// Kernels run at full speed, and a faulty program stops all others. For measurements and
    /// trusted programs only.
    Off,
}

/// The program of the self-test ([`crate::self_test`]). Its last argument is the list of checks.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Tester {
    /// The executable.
    pub program: PathBuf,
    /// The arguments before the list.
    pub arguments: Vec<String>,
}

/// A GPU, and how it is used.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Options {
    /// Its number, as CUDA counts; 0 where nothing is said.
    pub ordinal: Option<u32>,
    /// The way of signals.
    pub signals: SignalPath,
    /// The clock of the device's time.
    pub clock: ClockSource,
    /// Whether kernels are rewritten so that they keep to their window and end no more than their
    /// launch.
    pub guards: Guarding,
    /// Whether long launches stay on the device while it drains
    /// ([`partita_device::Device::launches_may_leave`]).
    pub launches_stay: bool,
    /// Whether the GPU is taken to be at its worst, and no self-test is made.
    pub without_self_test: bool,
    /// Who makes the self-test; `None` where nobody can.
    pub tester: Option<Tester>,
    /// The number of windows whose addresses are kept ready, so that a session opens without a
    /// pause of other sessions.
    pub prepared_windows: u8,
    /// The folder of cached machine code; `None` disables the cache.
    pub cache: Option<PathBuf>,
    /// The driver's library instead of NVIDIA's.
    pub library: Option<PathBuf>,
    /// NVML's library instead of NVIDIA's.
    pub nvml: Option<PathBuf>,
    /// The part of the address space that holds the windows.
    pub part: AddressPart,
}

/// The text does not name a GPU.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "`{text}`: {what}; say cuda, cuda:NUMBER, and after it ,signals=copy|mapped and \
     ,guards=on|strict|off and ,clock=host|gpu and ,leaving=on|off and ,self-test=on|off"
)]
pub struct OptionsError {
    text: String,
    what: &'static str,
}

impl Options {
    /// Reads `cuda[:NUMBER][,signals=copy|mapped][,guards=on|strict|off][,clock=host|gpu]
    /// [,leaving=on|off][,self-test=on|off]`.
    ///
    /// # Errors
    /// [`OptionsError`].
    pub fn parse(text: &str) -> Result<Options, OptionsError> {
        let wrong = |what| OptionsError { text: text.to_owned(), what };
        let mut parts = text.split(',');
        let mut options = Options::default();
        let device = parts.next().unwrap_or_default();
        match device.split_once(':') {
            None if device == "cuda" => {}
            Some(("cuda", number)) => {
                options.ordinal =
                    Some(number.parse().map_err(|_| wrong("a GPU has a number from 0"))?);
            }
            _ => return Err(wrong("no device of this name")),
        }
        for part in parts {
            match part.split_once('=') {
                Some(("signals", "copy")) => options.signals = SignalPath::Copy,
                Some(("signals", "mapped")) => options.signals = SignalPath::Mapped,
                Some(("guards", "on")) => options.guards = Guarding::On,
                Some(("guards", "strict")) => options.guards = Guarding::Strict,
                Some(("guards", "off")) => options.guards = Guarding::Off,
                Some(("clock", "host")) => options.clock = ClockSource::Host,
                Some(("clock", "gpu")) => options.clock = ClockSource::Gpu,
                Some(("leaving", "on")) => options.launches_stay = false,
                Some(("leaving", "off")) => options.launches_stay = true,
                Some(("self-test", "on")) => options.without_self_test = false,
                Some(("self-test", "off")) => options.without_self_test = true,
                Some(("part", part)) => {
                    options.part =
                        AddressPart::parse(part).ok_or(wrong("a part is INDEX/COUNT"))?;
                }
                // Every device accepts this option; a real GPU supports no other value.
                Some(("sharing", "spatial")) => {}
                Some(("sharing", _)) => return Err(wrong("a real GPU is shared out by SMs only")),
                _ => return Err(wrong("an option that a real GPU does not have")),
            }
        }
        Ok(options)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts() {
        let check = |text: &str, ordinal, signals| {
            assert_eq!(
                Options::parse(text),
                Ok(Options { ordinal, signals, ..Options::default() }),
                "{text}"
            );
        };
        check("cuda", None, SignalPath::Copy);
        check("cuda:3", Some(3), SignalPath::Copy);
        check("cuda:0,signals=mapped,sharing=spatial", Some(0), SignalPath::Mapped);
        let guards = |text| Options::parse(text).map(|options| options.guards);
        assert_eq!(guards("cuda"), Ok(Guarding::On));
        assert_eq!(guards("cuda,guards=strict"), Ok(Guarding::Strict));
        assert_eq!(
            Options::parse("cuda,guards=off").map(|options| options.guards),
            Ok(Guarding::Off)
        );
        let clock = |text| Options::parse(text).map(|options| options.clock);
        assert_eq!(clock("cuda,clock=gpu"), Ok(ClockSource::Gpu));
        for text in ["cuda", "cuda,clock=host"] {
            assert_eq!(clock(text), Ok(ClockSource::Host), "{text}");
        }
        let stay = |text| Options::parse(text).map(|options| options.launches_stay);
        assert_eq!([stay("cuda"), stay("cuda,leaving=off")], [Ok(false), Ok(true)]);
        let without = |text| Options::parse(text).map(|options| options.without_self_test);
        assert_eq!([without("cuda"), without("cuda,self-test=off")], [Ok(false), Ok(true)]);
        for text in [
            "",
            "cuda0",
            "cuda:",
            "cuda:-1",
            "emu",
            "cuda,timing=off",
            "cuda,sharing=mps",
            "cuda,signals=x",
            "cuda,self-test=never",
        ] {
            let error = Options::parse(text).unwrap_err().to_string();
            assert!(error.contains("say cuda"), "{error}");
        }
    }
}
