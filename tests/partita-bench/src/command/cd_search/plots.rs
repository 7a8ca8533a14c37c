//! What a run leaves in a folder: curves, sorted bars, a table of all mixes.

use super::figures::{Figures, percent};
use partita_bench::plot::{Bars, Line, curves, sorted_bars};
use partita_bench::study::Kind;
use partita_cli::failure::Failure;
use partita_model::Class;
use std::fs;
use std::path::Path;

/// Writes everything into a folder, which is made.
pub fn write(folder: &Path, figures: &Figures<'_>) -> Result<(), Failure> {
    let failed = |error: std::io::Error| Failure::new(format!("{}: {error}", folder.display()));
    fs::create_dir_all(folder).map_err(failed)?;
    let put = |name: &str, text: String| fs::write(folder.join(name), text).map_err(failed);
    for (class, file, title) in [
        (Class::Compute, "curves-compute.svg", "Alone: speed grows with SMs"),
        (Class::Memory, "curves-memory.svg", "Alone: speed saturates"),
    ] {
        let lines = lines(figures, class);
        if !lines.is_empty() {
            put(file, curves(title, "SMs", "speed against all SMs", &lines))?;
        }
    }
    for (kind, file, title) in [
        (Kind::Mixed, "performance-mode.svg", "Performance mode: change against even shares"),
        (Kind::Memory, "power-mode.svg", "Power mode: change against even shares"),
        (Kind::Compute, "compute-mixes.svg", "Compute-intensive mixes: change against even shares"),
    ] {
        let bars = bars(figures, kind);
        if !bars.names.is_empty() {
            put(file, sorted_bars(title, "per cent", &bars))?;
        }
    }
    put("mixes.csv", figures.csv())
}

fn lines(figures: &Figures<'_>, class: Class) -> Vec<Line> {
    let study = figures.study;
    let of_class =
        study.applications.iter().zip(&study.alone).filter(|(_, alone)| alone.truth == class);
    of_class
        .enumerate()
        .map(|(index, (application, alone))| Line {
            name: application.name.clone(),
            points: alone.curve.iter().map(|(sms, speed)| (f64::from(*sms), *speed)).collect(),
            dashed: index >= 7,
        })
        .collect()
}

fn bars(figures: &Figures<'_>, kind: Kind) -> Bars {
    let mixes: Vec<_> = figures.mixes.iter().filter(|mix| mix.kind == kind).collect();
    let names = mixes.iter().map(|mix| figures.names(&mix.members)).collect();
    let mut kinds = vec![
        (
            "STP".to_owned(),
            mixes.iter().map(|mix| percent(mix.searched.stp(), mix.even.stp())).collect(),
        ),
        (
            "ANTT".to_owned(),
            mixes.iter().map(|mix| percent(mix.searched.antt(), mix.even.antt())).collect(),
        ),
    ];
    if kind == Kind::Memory {
        kinds.push((
            "power".to_owned(),
            mixes.iter().map(|mix| percent(mix.searched.watts, mix.even.watts)).collect(),
        ));
    }
    Bars { names, kinds }
}
