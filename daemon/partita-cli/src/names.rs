//! Names of kernels in columns.
//!
//! A kernel of a template library has a name of a thousand characters and more, which is no column.
//! Short names stay as the API has them, because other commands take them.

use cpp_demangle::{DemangleOptions, Symbol};
use std::fmt;

/// Characters of a name that stays as it is.
const SHORT: usize = 64;
/// Bytes of a demangled name that is shown.
const LONGEST: usize = 64 * 1024;

/// A kernel's name as a column shows it: a long name of C++ without its parameters and with `…` for
/// its inner template arguments, and at most [`SHORT`] characters.
pub fn kernel(name: &str) -> String {
    if name.chars().count() <= SHORT {
        return name.to_owned();
    }
    let whole = demangled(name).unwrap_or_else(|| name.to_owned());
    let shorter = (1..=3).rev().map(|depth| without_inner(&whole, depth));
    let mut texts = [whole.clone()].into_iter().chain(shorter);
    let fitting = texts.find(|text| text.chars().count() <= SHORT);
    cut(&fitting.unwrap_or_else(|| without_inner(&whole, 0)))
}

/// A name of C++ without its parameters; `None` for other names, and for those that are too long.
fn demangled(name: &str) -> Option<String> {
    let options = DemangleOptions::new().no_params().no_return_type();
    let mut text = Bounded(String::new());
    Symbol::new(name).ok()?.structured_demangle(&mut text, &options).ok()?;
    Some(text.0)
}

/// Text of at most [`LONGEST`] bytes: a hostile program's name of some hundred characters may stand
/// for gigabytes, because parts of it refer to each other.
struct Bounded(String);

impl fmt::Write for Bounded {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        if self.0.len() + text.len() > LONGEST {
            return Err(fmt::Error);
        }
        self.0.push_str(text);
        Ok(())
    }
}

/// The text with `…` for template arguments inside `depth` others.
fn without_inner(text: &str, depth: usize) -> String {
    let (mut shown, mut inside) = (String::new(), 0_usize);
    for c in text.chars() {
        if c == '>' {
            inside = inside.saturating_sub(1);
        }
        if inside <= depth {
            shown.push(c);
        }
        if c == '<' {
            inside += 1;
            if inside == depth + 1 {
                shown.push('…');
            }
        }
    }
    shown
}

/// The first and last characters, where the text is long.
fn cut(text: &str) -> String {
    let chars: Vec<char> = text.chars().collect();
    if chars.len() <= SHORT {
        return text.to_owned();
    }
    let (first, last) = (&chars[..SHORT / 2], &chars[chars.len() - (SHORT - SHORT / 2 - 1)..]);
    first.iter().chain(['…'].iter()).chain(last).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_names_stay() {
        for name in ["poly", "_Z4polyPf", "", &"k".repeat(SHORT)] {
            assert_eq!(kernel(name), name);
        }
    }

    #[test]
    fn a_template_keeps_its_outer_arguments() {
        let reduce = "_ZN3cub12CUB_2003_NS_6detail6reduce18DeviceReduceKernelINS2_10policy_hubIij\
                      N4cuda3std3__44plusIvEEE10Policy1000EEEvT_";
        let shown = kernel(reduce);
        assert_eq!(shown, "cub::CUB_2003_NS_::detail::reduce::DeviceReduceKernel<…>", "{reduce}");
        let fill = "_ZN7cutlass9reference6device6kernel12BlockForEachIfNS1_6detail17RandomUniform\
                    FuncIfEEEEvPT_mNT0_6ParamsE";
        let shown = kernel(fill);
        assert_eq!(shown, "cutlass::reference::device::kernel::BlockForEach<…>");
    }

    /// Each template argument is a pair of the one before it: whole, the name takes gigabytes.
    #[test]
    fn a_name_that_refers_to_itself_is_cut() {
        let digit = |n: u32| char::from_digit(n, 36).unwrap().to_ascii_uppercase();
        let pairs: String = (2..32).map(|n| format!("S0_IS{0}_S{0}_E", digit(n))).collect();
        let name = format!("_Z1fI1PI1AS1_E{pairs}Evv");
        let shown = kernel(&name);
        assert!(shown.chars().count() <= SHORT && shown.starts_with("_Z1f"), "{shown}");
    }

    #[test]
    fn long_names_lose_their_middle() {
        let name = format!("matmul_{}_end", "0d1d".repeat(40));
        let shown = kernel(&name);
        assert_eq!(shown.chars().count(), SHORT);
        assert!(shown.starts_with("matmul_0d1d") && shown.ends_with("0d1d_end"), "{shown}");
    }
}
