//! The `.target` of a module, and the GPUs that it is for (PTX ISA, "PTX Module Directives:
//! .target").
//!
//! PTX for `sm_XY` runs on compute capability X.Y and higher. With the suffix `a` it runs on X.Y
//! only, with `f` on the family: X.Y and higher with the same X.

use partita_ptx::Module;

/// The GPUs that a target is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Reach {
    Higher,
    Family,
    One,
}

/// The `.target` of a module.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Target {
    name: String,
    major: u32,
    minor: u32,
    reach: Reach,
}

impl Target {
    /// `None` where the module names no architecture.
    pub(super) fn of(module: &Module) -> Option<Self> {
        let name = module.text(*module.target.first()?).to_owned();
        let number = module.sm()?;
        let reach = match name.trim_start_matches(|c: char| !c.is_ascii_digit()) {
            text if text.ends_with('a') => Reach::One,
            text if text.ends_with('f') => Reach::Family,
            _ => Reach::Higher,
        };
        Some(Target { name, major: number / 10, minor: number % 10, reach })
    }

    /// Why a GPU cannot run the module; `None` where it can.
    pub(super) fn refusal(&self, capability: [u8; 2]) -> Option<String> {
        let own = (u32::from(capability[0]), u32::from(capability[1]));
        let least = (self.major, self.minor);
        let (fits, range) = match self.reach {
            Reach::Higher => (own >= least, " or higher"),
            Reach::Family => (own >= least && own.0 == self.major, " or higher of its family"),
            Reach::One => (own == least, " only"),
        };
        let Target { name, major, minor, .. } = self;
        let (x, y) = own;
        (!fits).then(|| {
            format!(
                "`.target {name}` is for compute capability {major}.{minor}{range}, and this GPU \
                 has {x}.{y}; build the program for compute_{x}{y} or older, or let the emulated \
                 GPU announce another with `capability={major}.{minor}`"
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_follow_the_rule_of_the_isa() {
        let fits = |target: &str, capability| {
            let text =
                format!(".version 9.0\n.target {target}\n.address_size 64\n.entry k() {{ ret; }}");
            let module = partita_ptx::parse(&text).expect("PTX");
            let refusal = Target::of(&module).and_then(|target| target.refusal(capability));
            assert!(refusal.as_ref().is_none_or(|why| why.contains(target) && why.contains(';')));
            refusal.is_none()
        };
        for (target, capability, wanted) in [
            ("sm_75", [9, 0], true),
            ("sm_90", [8, 0], false),
            ("sm_90", [12, 0], true),
            ("sm_90a", [9, 0], true),
            ("sm_90a", [10, 0], false),
            ("sm_100", [9, 0], false),
            ("sm_100a", [10, 0], true),
            ("sm_100a", [10, 3], false),
            ("sm_100f", [10, 3], true),
            ("sm_100f", [11, 0], false),
            ("sm_103f", [10, 0], false),
            ("sm_120", [12, 1], true),
            ("sm_120a", [12, 1], false),
            ("sm_120f", [12, 1], true),
            ("sm_121", [12, 0], false),
            ("sm_121a", [12, 1], true),
            ("compute_120a", [12, 0], true),
        ] {
            assert_eq!(fits(target, capability), wanted, "{target} on {capability:?}");
        }
    }
}
