//! Kernels that we did not write: recorded programs, each kernel alone and beside a companion.

use crate::recordings;
use partita_bench::study::{Alone, CURVE_CYCLES, Study};
use partita_bench::{Application, Arrangement, Cell, Cells, recorded};
use partita_cli::failure::{Failure, complain};
use partita_cli::progress::Bar;
use partita_emu::Spec;
use partita_model::Class;
use std::path::PathBuf;

/// A kernel has at least so many CTAs for each SM: what does not fill the GPU has no class.
const LEAST_CTAS_PER_SM: u128 = 4;
/// Cycles in which the policy has classified two applications, its longest windows included.
const CLASS_CYCLES: u64 = 2 * CURVE_CYCLES;

/// What was found of one kernel.
pub struct Stranger {
    /// Recording and kernel.
    pub name: String,
    /// Alone.
    pub alone: Alone,
    /// What the policy took it for.
    pub found: Option<Class>,
}

/// Measures every kernel of these recordings that is large enough, each beside the companion, too.
/// Those that cannot be run are named.
pub fn measure(
    files: &[PathBuf],
    companion: &Application,
    spec: &Spec,
    threads: usize,
    cells: &mut Cells,
) -> Result<Vec<Stranger>, Failure> {
    let mut applications = Vec::new();
    for path in files {
        let entries = recordings::entries(path)?;
        let name = path.file_stem().unwrap_or_default().to_string_lossy();
        let least = LEAST_CTAS_PER_SM * u128::from(spec.sms);
        let (found, reason) = recorded::applications(&name, &entries, least);
        if let Some(reason) = reason {
            complain(&format!("{}: followed only in part: {reason}", path.display()));
        }
        applications.extend(found);
    }
    let mut strangers = Vec::new();
    let mut bar = Bar::new("strangers", "kernels");
    let of = applications.len();
    for (index, application) in applications.iter().enumerate() {
        let mut study = Study::new(spec, vec![application]);
        let beside = Cell {
            applications: vec![application, companion],
            spec,
            arrangement: Arrangement::CdSearch,
            cycles: CLASS_CYCLES,
            launches: Vec::new(),
            arrivals: Vec::new(),
        };
        let mut wanted = study.alone_cells(&[]);
        wanted.push(beside.clone());
        let measured = cells
            .compute(&wanted, threads, &mut |_| ())
            .and_then(|()| study.measure_alone(&[], cells))
            .and_then(|()| cells.get(&beside));
        bar.step(index + 1, of, &application.name);
        match measured {
            Ok(shared) => strangers.extend(study.alone.pop().map(|alone| Stranger {
                name: application.name.clone(),
                alone,
                found: shared.shares[0].class,
            })),
            Err(error) => complain(&format!("not tried: {error}")),
        }
    }
    bar.end();
    Ok(strangers)
}
