//! The options that the plugin adds to `srun`, `sbatch` and `salloc`.
//!
//! Each option may also stand in the environment, as `SLURM_PARTITA_SMS` and its like. Slurm hands
//! the options of a job on to the job's steps, to its prolog and to its epilog by itself.

use partita_model::{MemoryAmount, Priority};
use std::ffi::CStr;
use std::num::NonZeroU16;
use std::sync::{Mutex, PoisonError};

/// An option as Slurm shows it.
#[derive(Debug)]
pub(crate) struct Known {
    /// The name, without dashes.
    pub(crate) name: &'static CStr,
    /// The word for its value.
    pub(crate) argument: &'static CStr,
    /// The line of `--help`.
    pub(crate) usage: &'static CStr,
    /// The environment variable that a user sets in its place.
    pub(crate) variable: &'static str,
    /// The environment variable from which Slurm itself reads it.
    pub(crate) inner: &'static str,
}

/// All options; their places are their numbers.
pub(crate) const OPTIONS: [Known; 3] = [
    Known {
        name: c"partita-sms",
        argument: c"MIN[-MAX]",
        usage: c"SMs of the shared GPU: MIN whenever the job has work, and at most MAX",
        variable: "SLURM_PARTITA_SMS",
        inner: "SLURM_SPANK__SLURM_SPANK_OPTION_partita_partita_sms",
    },
    Known {
        name: c"partita-priority",
        argument: c"PRIORITY",
        usage: c"latency, normal or batch: batch jobs leave their SMs to latency jobs",
        variable: "SLURM_PARTITA_PRIORITY",
        inner: "SLURM_SPANK__SLURM_SPANK_OPTION_partita_partita_priority",
    },
    Known {
        name: c"partita-memory",
        argument: c"SIZE",
        usage: c"memory of the shared GPU that is kept free for the job, as in 8G",
        variable: "SLURM_PARTITA_MEMORY",
        inner: "SLURM_SPANK__SLURM_SPANK_OPTION_partita_partita_memory",
    },
];

/// Where the library is loaded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Place {
    /// In `srun`, `sbatch` or `salloc`.
    Submission,
    /// In the process that starts a step's tasks.
    Step,
    /// In `slurmd`, a prolog or an epilog.
    Node,
}

/// SMs that a job asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Sms {
    /// At least.
    pub(crate) min: NonZeroU16,
    /// At most.
    pub(crate) max: Option<NonZeroU16>,
}

/// What a job asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Wishes {
    pub(crate) sms: Option<Sms>,
    pub(crate) priority: Option<Priority>,
    pub(crate) memory: Option<MemoryAmount>,
}

/// What the options of this process have said so far. Slurm hands them over one at a time.
static GIVEN: Mutex<Wishes> = Mutex::new(Wishes { sms: None, priority: None, memory: None });

/// Slurm has read the option with this number.
pub(crate) fn take(number: usize, value: &str) -> Result<(), String> {
    GIVEN.lock().unwrap_or_else(PoisonError::into_inner).take(number, value)
}

/// What all options have said.
pub(crate) fn given() -> Wishes {
    *GIVEN.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Wishes {
    /// Whether the job asks for nothing, and is no job of Partita's.
    pub(crate) fn is_empty(&self) -> bool {
        *self == Wishes::default()
    }

    /// Adds the value of one option.
    pub(crate) fn take(&mut self, number: usize, value: &str) -> Result<(), String> {
        let name = OPTIONS.get(number).map_or("", |option| option.name.to_str().unwrap_or(""));
        let wrong = |why: String| format!("--{name}={value}: {why}");
        match number {
            0 => self.sms = Some(value.parse().map_err(wrong)?),
            1 => self.priority = Some(value.parse().map_err(wrong)?),
            2 => self.memory = Some(value.parse().map_err(wrong)?),
            _ => return Err(format!("an option with the number {number} is not Partita's")),
        }
        Ok(())
    }

    /// The options as variables of a program, which asks the daemon for them by itself.
    pub(crate) fn terms(&self) -> impl Iterator<Item = (&'static str, String)> {
        let sms = self.sms.map(|Sms { min, max }| {
            let most = max.map(|max| max.to_string()).unwrap_or_default();
            ("PARTITA_SMS", format!("{min}..{most}"))
        });
        let priority = self.priority.map(|one| ("PARTITA_PRIORITY", one.name().to_owned()));
        let memory = self.memory.map(|memory| ("PARTITA_MEMORY", memory.to_string()));
        sms.into_iter().chain(priority).chain(memory)
    }
}

/// The variables to set so that Slurm reads what a user's environment says. An option of the
/// command line goes before them, and so does what a job hands on to its steps.
pub(crate) fn from_environment(
    current: impl Fn(&str) -> Option<String>,
) -> impl Iterator<Item = (&'static str, String)> {
    OPTIONS.iter().filter_map(move |option| {
        let value = current(option.variable).filter(|value| !value.is_empty())?;
        current(option.inner).is_none().then_some((option.inner, value))
    })
}

impl std::str::FromStr for Sms {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let number = |text: &str| text.parse::<NonZeroU16>().ok();
        let read = match text.split_once('-') {
            Some((min, max)) => number(min).zip(number(max)).map(|(min, max)| (min, Some(max))),
            None => number(text).map(|min| (min, None)),
        };
        let Some((min, max)) = read else {
            return Err("write SMs as in `8` (at least 8) or `8-24` (8 at least, 24 at most), \
                        from 1 to 65535"
                .into());
        };
        match max {
            Some(max) if max < min => {
                Err(format!("the maximum is below the minimum: write it as `{max}-{min}`"))
            }
            _ => Ok(Sms { min, max }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use partita_model::{SmAmount, SmRange};

    #[test]
    fn what_is_written_is_read() {
        let mut wishes = Wishes::default();
        assert!(wishes.is_empty());
        for (number, value) in ["8-24", "batch", "512M"].into_iter().enumerate() {
            wishes.take(number, value).unwrap();
        }
        assert!(!wishes.is_empty());
        let terms: Vec<_> = wishes.terms().map(|(_, value)| value).collect();
        assert_eq!(terms, ["8..24", "batch", "512MiB"]);
        // The program's own library reads what is written for it.
        let range: SmRange = terms[0].parse().unwrap();
        assert_eq!((range.min, range.max), (Some(SmAmount::Sms(8)), Some(SmAmount::Sms(24))));
        let least = Wishes { sms: Some("3".parse().unwrap()), ..Wishes::default() };
        assert_eq!(least.terms().next(), Some(("PARTITA_SMS", "3..".to_owned())));
    }

    #[test]
    fn wrong_values_name_the_option_and_the_remedy() {
        for (number, value, words) in [
            (0, "", ["--partita-sms=:", "write SMs as in `8`"]),
            (0, "0", ["--partita-sms=0:", "from 1 to 65535"]),
            (0, "8-", ["--partita-sms=8-:", "`8-24`"]),
            (0, "-8", ["--partita-sms=-8:", "`8-24`"]),
            (0, "8..24", ["--partita-sms=8..24:", "`8-24`"]),
            (0, "70000", ["--partita-sms=70000:", "65535"]),
            (0, "24-8", ["--partita-sms=24-8:", "write it as `8-24`"]),
            (1, "high", ["--partita-priority=high:", "`latency`, `normal` or `batch`"]),
            (2, "8", ["--partita-memory=8:", "write it as in `8G`"]),
            (2, "much", ["--partita-memory=much:", "write it as in `8G`"]),
            (7, "x", ["number 7", "not Partita's"]),
        ] {
            let mut wishes = Wishes::default();
            let error = wishes.take(number, value).unwrap_err();
            assert!(words.iter().all(|word| error.contains(word)), "{error}");
            assert!(wishes.is_empty());
        }
    }

    #[test]
    fn the_environment_says_what_no_option_says() {
        let of = |variables: &[(&str, &str)]| -> Vec<(&str, String)> {
            let current = |name: &str| {
                variables.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).into())
            };
            from_environment(current).collect()
        };
        let inner = OPTIONS[0].inner;
        assert_eq!(of(&[("SLURM_PARTITA_SMS", "8-24")]), [(inner, "8-24".to_owned())]);
        assert_eq!(of(&[("SLURM_PARTITA_SMS", "8-24"), (inner, "3")]), []);
        assert_eq!(of(&[("SLURM_PARTITA_SMS", "")]), []);
    }
}
