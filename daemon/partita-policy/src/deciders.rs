//! From a configuration to the state machines that it names.

use crate::{
    CalibrationError, CdSearch, CdSearchPaper, CdSearchSettings, Even, Everyone, Partitioner,
    Selector, StaticShares,
};
use partita_model::{Calibration, PartitionerKind, PolicyConfig, SelectorKind};

/// Who answers the two questions.
pub type Deciders = (Box<dyn Selector + Send>, Box<dyn Partitioner + Send>);

/// The state machines that a configuration names.
///
/// # Errors
/// Where the calibration describes no GPU.
pub fn build(config: &PolicyConfig, hardware: &Calibration) -> Result<Deciders, CalibrationError> {
    let selector = match config.selector {
        SelectorKind::Everyone => Box::new(Everyone::default()),
    };
    let partitioner: Box<dyn Partitioner + Send> = match config.partitioner {
        PartitionerKind::Even => Box::new(Even),
        PartitionerKind::Static => Box::new(StaticShares::new(config.shares.clone())),
        PartitionerKind::CdSearch => {
            let settings =
                CdSearchSettings { supply: config.supply, ..CdSearchSettings::default() };
            Box::new(CdSearch::new(settings, *hardware)?)
        }
        PartitionerKind::CdSearchPaper => Box::new(CdSearchPaper::new(*hardware)?),
    };
    Ok((selector, partitioner))
}
