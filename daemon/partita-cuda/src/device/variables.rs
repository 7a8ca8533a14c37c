//! Variables of modules, placed in their windows ([`mod@partita_ptx::settle`]).

use super::{CudaDevice, refused};
use crate::code::Variables;
use crate::driver::Place;
use crate::zeros::BY_COPIES;
use partita_device::{AddressRange, Device, DeviceError, VariableFacts};
use partita_model::{Bytes, DeviceAddress, ModuleId, WindowId};
use partita_ptx::settle::Part;
use std::collections::BTreeMap;

/// The addresses of a module's variables.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Placed {
    /// The variables' range in the window.
    pub(crate) block: AddressRange,
    /// The address of the managed variables; 0 if there are none.
    pub(crate) managed: u64,
    /// Bytes of constants, from the block's beginning on.
    constants: u64,
    /// The driver's address of the constants; 0 if no code reads them.
    bank: u64,
}

/// Module constants in a range: the driver's address, the address in the window, and the number of
/// bytes.
pub(crate) fn constants_in(
    placed: &BTreeMap<ModuleId, Placed>,
    range: AddressRange,
) -> Vec<(u64, u64, u64)> {
    let overlap = |placed: &Placed| {
        let block = placed.block.start.0;
        let first = range.start.0.max(block);
        let end = range.end().min(block + placed.constants);
        (placed.bank != 0 && first < end)
            .then(|| (placed.bank + (first - block), first, end - first))
    };
    placed.values().filter_map(overlap).collect()
}

impl CudaDevice {
    /// Places a module's variables in its window, and tells the module's code their addresses.
    /// Later launches wait for these writes.
    pub(super) fn place_variables(
        &mut self,
        window: WindowId,
        variables: &Variables,
    ) -> Result<(Vec<VariableFacts>, Option<Placed>), DeviceError> {
        let layout = &variables.layout;
        if layout.header.is_none() {
            return Ok((Vec::new(), None));
        }
        let managed = self.place_managed(window, layout.managed_bytes, layout.alignment)?;
        let result = self.place_block(window, variables, managed);
        if result.is_err()
            && let Some(host) = self.windows.host_of(window)
        {
            host.free(DeviceAddress(managed));
        }
        let placed = result?;
        let facts = layout.variables.iter().map(|variable| {
            let base = if variable.part == Part::Managed { managed } else { placed.block.start.0 };
            VariableFacts {
                name: variable.name.clone(),
                address: DeviceAddress(base + variable.offset),
                size: Bytes(variable.bytes),
            }
        });
        Ok((facts.collect(), Some(placed)))
    }

    /// Reserves memory for managed variables. Returns 0 where the module has none.
    fn place_managed(
        &mut self,
        window: WindowId,
        bytes: u64,
        alignment: u64,
    ) -> Result<u64, DeviceError> {
        if bytes == 0 {
            return Ok(0);
        }
        let host = self.windows.host_of(window).ok_or_else(|| {
            DeviceError::Unsupported(
                "managed variables without memory that the host and the device share".to_owned(),
            )
        })?;
        host.allocate(bytes, alignment).map(|start| start.0)
    }

    fn place_block(
        &mut self,
        window: WindowId,
        variables: &Variables,
        managed: u64,
    ) -> Result<Placed, DeviceError> {
        let layout = &variables.layout;
        let (block, pieces) =
            self.windows.allocate_variables(window, layout.bytes, layout.alignment, &self.zeros)?;
        let placed =
            Placed { block, managed, constants: layout.constant_bytes, bank: variables.constants };
        let zeroed = self.zero(pieces.clone(), Place::Device);
        if let Err(error) = zeroed {
            self.windows.abandon(window, block.start, &pieces)?;
            return Err(error);
        }
        if let Err(error) = self.fill_variables(variables, &placed) {
            self.windows.free(block.start)?;
            return Err(error);
        }
        Ok(placed)
    }

    fn fill_variables(
        &mut self,
        variables: &Variables,
        placed: &Placed,
    ) -> Result<(), DeviceError> {
        let start = placed.block.start.0;
        // The memory may still hold another module's data, so copies zero it. They run beside any
        // kernel, and the pokes follow.
        let end = start + variables.layout.bytes.next_multiple_of(4);
        let pieces =
            (start..end).step_by(BY_COPIES).map(|at| (at, (end - at).min(BY_COPIES as u64)));
        self.zero(pieces.collect(), Place::Device)?;
        let mut constants = vec![0; usize::try_from(placed.constants).unwrap_or(0)];
        let contents = variables.layout.contents(start, placed.managed);
        for (part, at, contents) in contents.iter().chain(&variables.functions) {
            if *part != Part::Constant {
                let base = if *part == Part::Managed { placed.managed } else { start };
                self.poke(DeviceAddress(base + at), contents)?;
                continue;
            }
            let at = usize::try_from(*at).unwrap_or(usize::MAX);
            let into = at.checked_add(contents.len()).and_then(|end| constants.get_mut(at..end));
            if let Some(into) = into {
                into.copy_from_slice(contents);
            }
        }
        if !constants.is_empty() {
            self.poke(placed.block.start, &constants)?;
            if placed.bank != 0 {
                self.signals.poke(Place::Device, placed.bank, &constants).map_err(refused)?;
            }
        }
        if variables.header != 0 {
            let header = [start.to_le_bytes(), placed.managed.to_le_bytes()].concat();
            self.signals.poke(Place::Device, variables.header, &header).map_err(refused)?;
        }
        Ok(())
    }
}
