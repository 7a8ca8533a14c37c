//! The effects of kernels, which their names decide.
//!
//! | name begins with, or for `fault` contains | parameters | effect |
//! | --- | --- | --- |
//! | `spin` | any | runs until `release NAME` |
//! | `await` | address, value (`u64` each) | runs until the `u64` at the address is at least the value |
//! | `store` | address, value (`u64` each) | writes the value to the address |
//! | `fault` | any | ends with `CUDA_ERROR_ILLEGAL_ADDRESS`, which sticks |
//! | `partita_where` | address | CTA i writes the number of its SM, plus one, into word i |
//! | `partita_numbers` | address | writes the number of SMs into the word |
//! | anything else | any | none |

use crate::state::{CHANGED, lock, wait};
use std::time::{Duration, Instant};

/// Runs one to its end, on these SMs; all of the GPU's where none is named.
pub fn run(name: &str, params: &[u8], ctas: u32, sms: &[u32]) {
    let mut state = lock();
    state.running.insert(name.to_owned());
    let place = if sms.is_empty() { String::new() } else { format!(" on {sms:?}") };
    state.log.push(format!("runs: {name}{place}"));
    CHANGED.notify_all();
    let word = |at: usize| {
        params
            .get(at..at + 8)
            .map(|bytes| u64::from_le_bytes(bytes.try_into().expect("eight bytes")))
    };
    if name.starts_with("spin") {
        (state, _) = wait(state, |state| state.released.contains(name) || state.sticky != 0);
    } else if name.contains("fault") {
        state.sticky = 700;
    } else if name == "partita_where" {
        // SMs that a test names lie: they are told for others.
        let lie = u32::try_from(state.setting("lie", 0)).unwrap_or(0);
        let all = u32::try_from(state.setting("sms", 132)).unwrap_or(0);
        drop(state);
        // Only grids that are kept to SMs lie.
        let (all, lie) = if sms.is_empty() { ((0..all).collect(), 0) } else { (sms.to_vec(), lie) };
        let count = u32::try_from(all.len()).unwrap_or(1).max(1);
        for (cta, at) in (0..ctas).zip((word(0).unwrap_or(0)..).step_by(4)) {
            let sm = all.get((cta % count) as usize).copied().unwrap_or(0);
            write_word(at, sm.max(lie) + 1);
        }
        state = lock();
    } else if name == "partita_numbers" {
        let count = u32::try_from(state.setting("sms", 132)).unwrap_or(0);
        drop(state);
        if let Some(at) = word(0) {
            write_word(at, count);
        }
        state = lock();
    } else if let (Some(address), Some(value)) = (word(0), word(8)) {
        drop(state);
        if name.starts_with("await") {
            let end = Instant::now() + crate::state::PATIENCE;
            while read(address) < value && Instant::now() < end {
                std::thread::sleep(Duration::from_micros(50));
            }
        } else if name.starts_with("store") {
            write(address, value);
        }
        state = lock();
    }
    state.running.remove(name);
    drop(state);
    CHANGED.notify_all();
}

/// A word of device memory.
pub fn read(address: u64) -> u64 {
    // SAFETY: a kernel of a test is given addresses of device memory, which is memory of this
    // process.
    unsafe { std::ptr::read_volatile(address as *const u64) }
}

fn write_word(address: u64, value: u32) {
    // SAFETY: as in `read`.
    unsafe { std::ptr::write_volatile(address as *mut u32, value) };
}

fn write(address: u64, value: u64) {
    // SAFETY: as in `read`.
    unsafe { std::ptr::write_volatile(address as *mut u64, value) };
}
