//! Modules. The "machine code" compiled here is a mark before the PTX text. Of real machine code
//! only the names are read.

use crate::memory;
use crate::state::State;
use std::collections::BTreeMap;

/// The mark before the text in a linked image.
pub const MARK: &[u8] = b"\x7fELF-fake\n";

/// A loaded module.
pub struct Module {
    pub kernels: Vec<String>,
    /// Address and size.
    pub variables: BTreeMap<String, (u64, u64)>,
}

/// The `.version` of a text as `major * 10 + minor`.
pub fn version(text: &str) -> u32 {
    let line = text.lines().map(str::trim).find_map(|line| line.strip_prefix(".version"));
    let number = line.unwrap_or_default().trim().split_once('.');
    let parse = |text: &str| text.trim().parse::<u32>().unwrap_or(0);
    number.map_or(0, |(major, minor)| parse(major) * 10 + parse(minor))
}

/// The newest `.version` that a driver takes: 8.4 with 12.4.
pub fn newest(driver: u64) -> u32 {
    let (major, minor) = (driver / 1000, driver % 1000 / 10);
    let newest = match (major, minor) {
        (13.., minor) => 90 + minor,
        (_, 6..) => 79 + minor,
        _ => 80 + minor,
    };
    u32::try_from(newest).unwrap_or(u32::MAX)
}

/// Loads a text: entries and variables, found by their directives.
pub fn load(state: &mut State, text: &str) -> Result<Module, u32> {
    let mut module = Module { kernels: Vec::new(), variables: BTreeMap::new() };
    for line in text.lines().map(str::trim) {
        if let Some((_, rest)) = line.split_once(".entry") {
            let name: String =
                rest.trim().chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
            module.kernels.push(name);
        } else if (line.contains(".global ") || line.contains(".const "))
            && line.ends_with(';')
            && !line.contains("ld.")
            && !line.contains("st.")
        {
            let Some((name, bytes)) = variable(line) else { continue };
            let address = memory::pin(state, bytes)?;
            module.variables.insert(name, (address, bytes));
        }
    }
    Ok(module)
}

/// The kernels of a real image, by its sections, and its variables with their sizes, by its
/// symbols.
///
/// # Safety
/// The image is whole.
unsafe fn names_of_elf(image: *const u8) -> (Vec<String>, Vec<(String, u64)>) {
    let byte = |at: usize| -> u8 {
        // SAFETY: the caller's promise.
        unsafe { image.wrapping_add(at).read() }
    };
    let number = |at: usize, bytes: usize| -> usize {
        (0..bytes).fold(0, |sum, place| sum | usize::from(byte(at + place)) << (8 * place))
    };
    let (sections, count, names) = (number(40, 8), number(60, 2), number(62, 2));
    let string = |table: usize, at: usize| -> String {
        let start = number(sections + 64 * table + 24, 8) + at;
        (start..).map(byte).take_while(|byte| *byte != 0).map(char::from).collect()
    };
    let name = |section: usize| string(names, number(sections + 64 * section, 4));
    let kernels = (0..count)
        .filter_map(|section| name(section).strip_prefix(".text.").map(str::to_owned))
        .collect();
    let mut variables = Vec::new();
    for table in (0..count).filter(|section| number(sections + 64 * section + 4, 4) == 2) {
        let [start, size, strings] = [(24, 8), (32, 8), (40, 4)]
            .map(|(at, bytes)| number(sections + 64 * table + at, bytes));
        for symbol in (start..start + size).step_by(24) {
            let section = number(symbol + 6, 2);
            let is_object = byte(symbol + 4) & 15 == 1 && section < count;
            let place = if is_object { name(section) } else { String::new() };
            if place.starts_with(".nv.global") || place == ".nv.constant3" {
                variables.push((string(strings, number(symbol, 4)), number(symbol + 16, 8) as u64));
            }
        }
    }
    (kernels, variables)
}

/// Loads a real image.
///
/// # Safety
/// The image is whole.
pub unsafe fn load_elf(state: &mut State, image: *const u8) -> Result<Module, u32> {
    // SAFETY: the caller's promise.
    let (kernels, variables) = unsafe { names_of_elf(image) };
    let mut module = Module { kernels, variables: BTreeMap::new() };
    for (name, bytes) in variables {
        module.variables.insert(name, (memory::pin(state, bytes)?, bytes));
    }
    Ok(module)
}

/// `.visible .global .align 8 .b8 table[64];`
fn variable(line: &str) -> Option<(String, u64)> {
    let declared = line.trim_end_matches(';').split('=').next()?.trim();
    let last = declared.split_whitespace().next_back()?;
    let width =
        |kind: &str| kind.trim_start_matches(|c: char| !c.is_ascii_digit()).parse::<u64>().ok();
    let kind = declared.split_whitespace().rev().nth(1)?;
    let bits = width(kind)?;
    match last.split_once('[') {
        Some((name, count)) => {
            Some((name.to_owned(), count.trim_end_matches(']').parse::<u64>().ok()? * bits / 8))
        }
        None => Some((last.to_owned(), bits / 8)),
    }
}
