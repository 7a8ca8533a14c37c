//! Applications whose launches are cut into slices (Kernelet, TPDS '14, §4.1): consecutive ranges
//! of CTAs, each a launch of its own in the application's stream.

use crate::application::{Application, Step};
use partita_model::Dim3;
use partita_ptx::slice;
use partita_ptx::worker::WorkerOptions;
use std::sync::Arc;

/// Bytes that the first parameter of a slice is aligned to.
const ALIGNMENT: usize = 8;

/// The application with every launch cut into slices of so many CTAs. The last slice of a launch
/// has what is left.
///
/// # Errors
/// A module that is not PTX, or a kernel that cannot run in slices, in words.
pub fn sliced(application: &Application, ctas: u32) -> Result<Application, String> {
    let mut modules: Vec<Arc<str>> = Vec::new();
    let mut entries = Vec::new();
    for text in &application.modules {
        let module = partita_ptx::parse(text).map_err(|errors| errors.to_string())?;
        let beside = slice::beside(module, &WorkerOptions::default(), &|_| true);
        modules.push(partita_ptx::print(&beside.module).into());
        entries.push(beside.entries);
    }
    let mut pass = Vec::new();
    for step in &application.pass {
        let entry = entries.get(step.module).and_then(|entries| entries.get(&step.kernel));
        let entry = entry.ok_or_else(|| format!("`{}` cannot run in slices", step.kernel))?;
        let all = u32::try_from(step.grid.count()).map_err(|error| error.to_string())?;
        let size = ctas.max(1);
        let firsts = (0..all).step_by(size as usize);
        pass.extend(firsts.map(|first| of_step(step, entry, first, size.min(all - first))));
    }
    Ok(Application { modules, pass, ..application.clone() })
}

/// The slice of a launch that begins at a CTA.
fn of_step(step: &Step, entry: &str, first: u32, ctas: u32) -> Step {
    let mut params = step.params.clone();
    params.resize(params.len().next_multiple_of(ALIGNMENT), 0);
    params.extend(u64::from(first).to_le_bytes());
    params.extend([step.grid.x, step.grid.y, step.grid.z].into_iter().flat_map(u32::to_le_bytes));
    Step { kernel: entry.to_owned(), grid: Dim3::linear(ctas), params, ..step.clone() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::eight::eight;

    #[test]
    fn slices_cover_a_launch() {
        for program in eight(1) {
            let all = program.pass[0].grid.count();
            let cut = sliced(&program, 100).unwrap();
            assert_eq!(cut.ctas(), all, "{}", program.name);
            assert_eq!(cut.pass.len() as u128, all.div_ceil(100), "{}", program.name);
            let [.., last] = cut.pass.as_slice() else { unreachable!("it has slices") };
            assert_eq!(last.grid.count(), (all - 1) % 100 + 1, "{}", program.name);
        }
    }

    #[test]
    fn who_has_no_such_kernel_is_told() {
        let mut program = eight(1).remove(0);
        program.pass[0].kernel = "nothing".to_owned();
        assert_eq!(sliced(&program, 1).unwrap_err(), "`nothing` cannot run in slices");
    }
}
