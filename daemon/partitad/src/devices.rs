//! The GPUs that the command line names, one text for each `partita-gpu`.
//!
//! `partita-gpu` interprets a text. This module refuses a real GPU that is named twice, replaces
//! `auto` by every GPU, and gives each of several GPUs its part of the device addresses. It refuses
//! two emulated GPUs that would record into one file, too.

use partita_wire::MAX_GPUS;
use std::path::{Path, PathBuf};

/// Why these GPUs are not served.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum DevicesError {
    /// One is named twice.
    #[error(
        "`{first}` and `{second}` are the same GPU, which is served once: leave one of the two \
         --device out"
    )]
    Twice {
        /// As it was named first.
        first: String,
        /// As it was named then.
        second: String,
    },
    /// Two would record into one file.
    #[error(
        "`{first}` and `{second}` record into the same file, {}: give each GPU a file of its own",
        file.display()
    )]
    SameRecord {
        /// One.
        first: String,
        /// The other.
        second: String,
        /// The file.
        file: PathBuf,
    },
    /// A text stands for every GPU already.
    #[error(
        "`{0}` is every GPU that there is: leave the other --device out, or name the GPUs one by \
         one"
    )]
    Auto(String),
    /// Too many.
    #[error(
        "{0} GPUs: one daemon serves at most {MAX_GPUS}; start a second one with another \
         --socket-dir"
    )]
    TooMany(usize),
}

/// The texts for `partita-gpu --device`, in order of the GPUs' numbers. `count_gpus` is called for
/// `auto` only.
///
/// # Errors
/// [`DevicesError`].
pub fn texts(
    named: &[String],
    sharing: Option<&str>,
    count_gpus: &dyn Fn() -> usize,
) -> Result<Vec<String>, DevicesError> {
    let mut devices = named.to_vec();
    if let Some(auto) = named.iter().find(|text| head(text) == "auto") {
        if named.len() > 1 {
            return Err(DevicesError::Auto(auto.clone()));
        }
        let options = &auto["auto".len()..];
        // The first text stays `auto`: on a machine without a GPU it means the emulated GPU.
        if let count @ 2.. = count_gpus() {
            devices = (0..count).map(|number| format!("cuda:{number}{options}")).collect();
        }
    }
    if devices.len() > MAX_GPUS {
        return Err(DevicesError::TooMany(devices.len()));
    }
    for (index, second) in devices.iter().enumerate() {
        let same = |first: &&String| real(first).is_some() && real(first) == real(second);
        if let Some(first) = devices[..index].iter().find(same) {
            return Err(DevicesError::Twice { first: first.clone(), second: second.clone() });
        }
        let Some(file) = record(second) else { continue };
        let shares = |first: &&String| record(first).as_ref() == Some(&file);
        if let Some(first) = devices[..index].iter().find(shares) {
            let (first, second) = (first.clone(), second.clone());
            return Err(DevicesError::SameRecord { first, second, file });
        }
    }
    let count = devices.len();
    for (index, device) in devices.iter_mut().enumerate() {
        if let Some(sharing) = sharing {
            device.push_str(",sharing=");
            device.push_str(sharing);
        }
        if count > 1 {
            device.push_str(&format!(",part={index}/{count}"));
        }
    }
    Ok(devices)
}

/// Whether the devices are named by `auto`, so that the GPUs have to be counted.
#[must_use]
pub fn ask_for_all(named: &[String]) -> bool {
    named.iter().any(|text| head(text) == "auto")
}

/// A text without its options.
fn head(text: &str) -> &str {
    text.split_once(',').map_or(text, |(head, _)| head)
}

/// The number of a real GPU.
fn real(text: &str) -> Option<u32> {
    match head(text).strip_prefix("cuda")? {
        "" => Some(0),
        number => number.strip_prefix(':')?.parse().ok(),
    }
}

/// The file into which an emulated GPU records. `partita-gpu` finds out about other names of it.
fn record(text: &str) -> Option<PathBuf> {
    // A real GPU records nothing, and says so itself.
    if !text.starts_with("emu") {
        return None;
    }
    let file = text.split(',').skip(1).find_map(|option| option.strip_prefix("record="));
    let file = file.filter(|file| !file.is_empty())?;
    Some(std::path::absolute(file).unwrap_or_else(|_| Path::new(file).to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(named: &[&str], sharing: Option<&str>, gpus: usize, expected: &[&str]) {
        let named: Vec<String> = named.iter().map(|text| (*text).to_owned()).collect();
        assert_eq!(texts(&named, sharing, &|| gpus).unwrap(), expected, "{named:?}");
    }

    #[test]
    fn one_text_for_each_gpu() {
        check(&["emu:h200,weak"], None, 0, &["emu:h200,weak"]);
        check(&["emu"], Some("mps"), 0, &["emu,sharing=mps"]);
        let two = ["emu,record=a", "emu,record=b"];
        check(&two, None, 0, &["emu,record=a,part=0/2", "emu,record=b,part=1/2"]);
        check(&["emu", "emu"], None, 0, &["emu,part=0/2", "emu,part=1/2"]);
        check(
            &["cuda:1", "cuda:0,guards=off"],
            None,
            2,
            &["cuda:1,part=0/2", "cuda:0,guards=off,part=1/2"],
        );
    }

    #[test]
    fn auto_is_every_gpu() {
        check(&["auto"], None, 0, &["auto"]);
        check(&["auto,signals=copy"], None, 1, &["auto,signals=copy"]);
        check(
            &["auto,signals=copy"],
            None,
            2,
            &["cuda:0,signals=copy,part=0/2", "cuda:1,signals=copy,part=1/2"],
        );
    }

    #[test]
    fn what_cannot_be_is_refused_with_a_remedy() {
        let refused = |named: &[&str], gpus: usize, words: &[&str]| {
            let named: Vec<String> = named.iter().map(|text| (*text).to_owned()).collect();
            let error = texts(&named, None, &|| gpus).unwrap_err().to_string();
            assert!(words.iter().all(|word| error.contains(word)), "{error}");
        };
        refused(
            &["cuda:1", "emu", "cuda:1,guards=off"],
            4,
            &["`cuda:1`", "`cuda:1,guards=off`", "leave one"],
        );
        refused(
            &["emu,record=/a/b.rec", "emu:h200,weak,record=/a/./b.rec"],
            0,
            &["`emu,record=/a/b.rec`", "`emu:h200,weak,record=/a/./b.rec`", "/a/b.rec: give"],
        );
        refused(&["emu,record=b", "emu,record=./b"], 0, &["same file", "a file of its own"]);
        refused(&["cuda", "cuda:0"], 4, &["`cuda`", "`cuda:0`"]);
        refused(&["auto", "emu"], 4, &["`auto`", "every GPU"]);
        refused(&["emu"; 17], 0, &["17 GPUs", "at most 16", "--socket-dir"]);
        refused(&["auto"], 20, &["20 GPUs"]);
    }
}
