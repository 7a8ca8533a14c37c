//! Names of kernels in columns.
//!
//! A kernel of a template library has a name of a thousand characters and more, which is no column.
//! Short names stay as the API has them, because other commands take them.

use cpp_demangle::{DemangleOptions, Symbol};

/// Characters of a name that stays as it is.
const SHORT: usize = 64;

/// A kernel's name as a column shows it: a long name of C++ without its parameters and with `…` for
/// its inner template arguments, and at most [`SHORT`] characters.
pub fn kernel(name: &str) -> String {
    if name.chars().count() <= SHORT {
        return name.to_owned();
    }
    let options = DemangleOptions::new().no_params().no_return_type();
    let whole =
        Symbol::new(name).ok().and_then(|symbol| symbol.demangle_with_options(&options).ok());
    let whole = whole.unwrap_or_else(|| name.to_owned());
    let shorter = (1..=3).rev().map(|depth| without_inner(&whole, depth));
    let mut texts = [whole.clone()].into_iter().chain(shorter);
    let fitting = texts.find(|text| text.chars().count() <= SHORT);
    cut(&fitting.unwrap_or_else(|| without_inner(&whole, 0)))
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

    #[test]
    fn long_names_lose_their_middle() {
        let name = format!("matmul_{}_end", "0d1d".repeat(40));
        let shown = kernel(&name);
        assert_eq!(shown.chars().count(), SHORT);
        assert!(shown.starts_with("matmul_0d1d") && shown.ends_with("0d1d_end"), "{shown}");
    }
}
