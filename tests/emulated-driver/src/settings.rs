//! The switches of the environment variable `PARTITA_EMULATED_DRIVER`.
//!
//! The value is a list such as `timing=off,seed=7`. Everything that is not named has its default: a
//! GPU like an H100 that keeps time, and all habits on.

use std::fmt::Write as _;

/// The environment variable with the switches.
pub const VARIABLE: &str = "PARTITA_EMULATED_DRIVER";

/// The most GPUs that the driver shows.
const MOST_GPUS: u8 = 8;

/// The most times that an idle GPU's clock is slower than the host's.
const MOST_IDLE: u32 = 1_000_000;

/// How the driver behaves.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Settings {
    /// The specification of the emulated GPU ([`partita_emu::Spec`]), by name or path.
    pub gpu: String,
    /// GPUs of this kind that the driver shows. A process uses one of them.
    pub gpus: u8,
    /// Bytes of the GPU's memory; `None` for the specification's.
    pub memory: Option<u64>,
    /// The driver's CUDA version: 1000 times major plus 10 times minor.
    pub cuda: u32,
    /// Whether the emulated GPU keeps time. Then events have its times, else the host's.
    pub timing: bool,
    /// How many times slower than the host's clock the GPU's clock is while nothing runs. At 1 it
    /// goes with the host's, and what the host does between two launches takes as long on a GPU
    /// that needs a thousand times its own time for a kernel.
    pub idle: u32,
    /// Launches of kernels whose name contains this end at once and do nothing, so that the time of
    /// the host's side can be measured.
    pub skip: Option<String>,
    /// Decides what hardware leaves open.
    pub seed: u64,
    /// Whether calls of the process's first thread that wait are told ([`crate::waits`]).
    pub watch: bool,
    /// What real drivers and GPUs do and a simple stand-in does not.
    pub habits: Habits,
}

/// Text that names no setting.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SettingsError {
    what: String,
}

impl std::fmt::Display for SettingsError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{VARIABLE}: {}; there are gpu=SPEC, gpus=1 to gpus={MOST_GPUS}, memory=BYTES, \
             cuda=VERSION, idle=FACTOR, skip=KERNEL, seed=NUMBER, ",
            self.what
        )?;
        let mut names = String::from("timing, watch");
        for (name, _) in KNOWN {
            let _ = write!(names, ", {name}");
        }
        write!(f, "and with =on or =off {names}")
    }
}

impl std::error::Error for SettingsError {}

macro_rules! habits {
    ($($(#[doc = $words:literal])* $field:ident: $name:literal;)*) => {
        /// Habits of drivers and hardware, each with a switch of its own.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub struct Habits {
            $($(#[doc = $words])* pub $field: bool,)*
        }

        impl Default for Habits {
            fn default() -> Self {
                Habits { $($field: true,)* }
            }
        }

        /// The switches by name.
        const KNOWN: &[(&str, fn(&mut Habits) -> &mut bool)] =
            &[$(($name, |habits| &mut habits.$field),)*];
    };
}

habits! {
    /// Kernels do not reach the process's memory
    /// (`CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS` is 0).
    no_pageable_access: "no-pageable-access";
    /// Loading, unloading, page-locking and green contexts wait for everything that was submitted,
    /// and hold the context's lock meanwhile.
    context_lock: "context-lock";
    /// Unmapping waits for the grids that run.
    unmap_waits: "unmap-waits";
    /// Streams share 32 channels, and a channel's first operation holds up all behind it.
    channels: "channels";
    /// A stream takes 1,024 operations; a call that submits one more waits.
    entries: "entries";
    /// Addresses are aligned to 1 GiB at most; larger alignments are refused.
    small_alignment: "small-alignment";
    /// A kernel with more local memory than any before waits in its launch for the grids that run.
    local_resize: "local-resize";
    /// A fault ends the context for everybody; without the habit it ends its grid only.
    sticky_faults: "sticky-faults";
    /// A function of a module, which is the primary context's, is refused on a stream of a green
    /// context.
    matching_contexts: "matching-contexts";
    /// Fills run as kernels do: they need room on an SM.
    fills_need_room: "fills-need-room";
    /// Each CTA takes 1 KiB of shared memory beside its own.
    reserved_shared: "reserved-shared";
    /// A warp's registers must fit into one of an SM's four parts.
    parted_registers: "parted-registers";
    /// An SM keeps its setting of shared memory until its last CTA has left.
    carve_out: "carve-out";
    /// A CTA goes to the SM with the most room.
    most_room: "most-room";
    /// The seed decides which SM has which `%smid`.
    permuted_smids: "permuted-smids";
    /// Some numbers below the greatest `%smid` belong to no SM.
    smid_gaps: "smid-gaps";
    /// Kernels are loaded at their first launch, unless `CUDA_MODULE_LOADING` is `EAGER` (CUDA C++
    /// Programming Guide, "Lazy Loading").
    lazy_loading: "lazy-loading";
    /// What a kernel prints goes to this process's file descriptor 1.
    printf_on_stdout: "printf-on-stdout";
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            gpu: "h200".to_owned(),
            gpus: 1,
            memory: Some(80 << 30),
            cuda: 13_000,
            timing: true,
            idle: 1,
            skip: None,
            seed: 0,
            watch: false,
            habits: Habits::default(),
        }
    }
}

impl Settings {
    /// Reads a list of switches.
    ///
    /// # Errors
    /// [`SettingsError`], which names the switches.
    pub fn parse(text: &str) -> Result<Settings, SettingsError> {
        let mut settings = Settings::default();
        for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
            let unknown = || SettingsError { what: format!("`{part}` is no switch") };
            let (name, value) = part.split_once('=').ok_or_else(unknown)?;
            let switch = || match value {
                "on" => Ok(true),
                "off" => Ok(false),
                _ => Err(unknown()),
            };
            match name {
                "gpu" => value.clone_into(&mut settings.gpu),
                "gpus" => {
                    let count = value.parse().map_err(|_| unknown())?;
                    if !(1..=MOST_GPUS).contains(&count) {
                        return Err(unknown());
                    }
                    settings.gpus = count;
                }
                "memory" => settings.memory = Some(value.parse().map_err(|_| unknown())?),
                "cuda" => settings.cuda = value.parse().map_err(|_| unknown())?,
                "idle" => {
                    let factor = value.parse().map_err(|_| unknown())?;
                    if !(1..=MOST_IDLE).contains(&factor) {
                        return Err(unknown());
                    }
                    settings.idle = factor;
                }
                "skip" if !value.is_empty() => settings.skip = Some(value.to_owned()),
                "seed" => settings.seed = value.parse().map_err(|_| unknown())?,
                "timing" => settings.timing = switch()?,
                "watch" => settings.watch = switch()?,
                _ => {
                    let known = KNOWN.iter().find(|(known, _)| *known == name);
                    let (_, field) = known.ok_or_else(unknown)?;
                    *field(&mut settings.habits) = switch()?;
                }
            }
        }
        Ok(settings)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_named_has_its_default() {
        assert_eq!(Settings::parse(""), Ok(Settings::default()));
        let settings = Settings::parse("timing=off, no-pageable-access=off,seed=7");
        let settings = settings.expect("these are switches");
        assert!(!settings.timing && !settings.habits.no_pageable_access);
        assert!(settings.seed == 7 && settings.habits.printf_on_stdout);
    }

    #[test]
    fn errors_name_the_switches() {
        let habits = ["timing", "timing=maybe", "tinning=off", "no-pageable-access=1"];
        for wrong in habits.into_iter().chain(["seed=x", "skip=", "gpus=0", "gpus=9", "idle=0"]) {
            let error = Settings::parse(wrong).expect_err(wrong).to_string();
            let named = ["printf-on-stdout", "timing", "seed=NUMBER", wrong];
            assert!(named.iter().all(|name| error.contains(name)), "{error}");
        }
    }
}
