//! From a configuration to the state machines that it names.

use crate::markov::ModelError;
use crate::{
    CalibrationError, CdSearch, CdSearchPaper, CdSearchSettings, Demand, Even, Everyone, Kernelet,
    KerneletSettings, Matching, MatchingSettings, Partitioner, Selector, SlateTable, Slowdowns,
    Smra, SmraSettings, StaticShares, Turns, check_calibration,
};
use partita_model::{Calibration, PartitionerKind, PolicyConfig, SelectorKind};

/// Who answers the two questions.
pub type Deciders = (Box<dyn Selector + Send>, Box<dyn Partitioner + Send>);

/// Why a policy cannot be built.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
pub enum BuildError {
    /// The calibration describes no GPU.
    #[error(transparent)]
    Calibration(#[from] CalibrationError),
    /// Kernelet's model cannot use a number.
    #[error(transparent)]
    Model(#[from] ModelError),
}

/// The state machines that a configuration names, with the estimated slowdowns.
///
/// # Errors
/// Where the calibration describes no GPU.
pub fn build(config: &PolicyConfig, hardware: &Calibration) -> Result<Deciders, BuildError> {
    build_with(config, hardware, Slowdowns::default())
}

/// The state machines that a configuration names, with measured slowdowns.
///
/// # Errors
/// Where the calibration describes no GPU.
pub fn build_with(
    config: &PolicyConfig,
    hardware: &Calibration,
    slowdowns: Slowdowns,
) -> Result<Deciders, BuildError> {
    if config.compares_speeds() {
        check_calibration(hardware)?;
    }
    let selector: Box<dyn Selector + Send> = match config.selector {
        SelectorKind::Everyone => Box::new(Everyone::default()),
        SelectorKind::Slate => {
            Box::new(Turns::new(SlateTable::new(*hardware), hardware.sm_clock_khz))
        }
        SelectorKind::Kernelet => {
            let kernelet = Kernelet::new(*hardware, KerneletSettings::default())?;
            Box::new(Turns::new(kernelet, hardware.sm_clock_khz))
        }
        SelectorKind::Matching => {
            let settings = MatchingSettings { group: config.group, ..MatchingSettings::default() };
            let matching = Matching::new(*hardware, settings, slowdowns);
            Box::new(Turns::new(matching, hardware.sm_clock_khz))
        }
    };
    let partitioner: Box<dyn Partitioner + Send> = match config.partitioner {
        PartitionerKind::Even => Box::new(Even),
        PartitionerKind::Static => Box::new(StaticShares::new(config.shares.clone())),
        PartitionerKind::CdSearch => {
            let settings =
                CdSearchSettings { supply: config.supply, ..CdSearchSettings::default() };
            Box::new(CdSearch::new(settings, *hardware)?)
        }
        PartitionerKind::Demand => Box::new(Demand::new(*hardware)),
        PartitionerKind::CdSearchPaper => Box::new(CdSearchPaper::new(*hardware)?),
        PartitionerKind::Smra => Box::new(Smra::new(SmraSettings::default(), *hardware)),
    };
    Ok((selector, partitioner))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_gets_the_machine_of_its_name() {
        let hardware = Calibration {
            sms: 24,
            sm_clock_khz: 700_000,
            warp_instructions_per_cycle: 2.0,
            access_bytes: 32,
            noc_bytes_per_second: 268.8e9,
            llc_bytes_per_second: 268.8e9,
            dram_bytes_per_second: 177.4e9,
            dram_utilisation: 0.5,
        };
        for (partitioner, name) in [
            (PartitionerKind::Even, "even"),
            (PartitionerKind::Static, "static"),
            (PartitionerKind::CdSearch, "cd-search"),
            (PartitionerKind::CdSearchPaper, "cd-search-paper"),
            (PartitionerKind::Demand, "demand"),
            (PartitionerKind::Smra, "smra"),
        ] {
            for (selector, other) in [
                (SelectorKind::Everyone, "everyone"),
                (SelectorKind::Slate, "slate"),
                (SelectorKind::Kernelet, "kernelet"),
                (SelectorKind::Matching, "matching"),
            ] {
                let config = PolicyConfig { selector, partitioner, ..PolicyConfig::default() };
                let (selector, partitioner) = build(&config, &hardware).unwrap();
                assert_eq!((selector.name(), partitioner.name()), (other, name));
            }
        }
    }
}
