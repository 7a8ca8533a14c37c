//! Variables outside of the session's window: the device's driver chooses the addresses of
//! variables of machine code.

use crate::inbox::lock;
use partita_model::DeviceAddress;
use partita_model::request::ModuleHandle;
use std::collections::HashMap;
use std::sync::Mutex;

/// By module: where they are, and how large.
#[derive(Debug, Default)]
pub(crate) struct Outside(Mutex<HashMap<ModuleHandle, Vec<(DeviceAddress, u64)>>>);

impl Outside {
    pub(crate) fn enter(
        &self,
        module: ModuleHandle,
        variables: impl Iterator<Item = (DeviceAddress, u64)>,
    ) {
        let variables: Vec<_> = variables.collect();
        if !variables.is_empty() {
            lock(&self.0).insert(module, variables);
        }
    }

    pub(crate) fn remove(&self, module: ModuleHandle) {
        lock(&self.0).remove(&module);
    }

    /// Whether the bytes lie in one variable.
    pub(crate) fn contain(&self, address: DeviceAddress, bytes: u64) -> bool {
        lock(&self.0).values().flatten().any(|(start, size)| {
            let end = address.0.checked_add(bytes);
            address >= *start && end.is_some_and(|end| end <= start.0.saturating_add(*size))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_come_and_go_with_their_module() {
        let outside = Outside::default();
        let (one, two) = (ModuleHandle(1), ModuleHandle(2));
        outside.enter(one, [(DeviceAddress(1000), 8), (DeviceAddress(2000), 4)].into_iter());
        outside.enter(two, [(DeviceAddress(1008), 8)].into_iter());
        let check = |address, bytes, expect| {
            assert_eq!(outside.contain(DeviceAddress(address), bytes), expect, "{address} {bytes}");
        };
        check(1000, 8, true);
        check(1004, 4, true);
        check(1000, 9, false);
        check(999, 2, false);
        check(1008, u64::MAX, false);
        check(1012, 4, true);
        outside.remove(one);
        check(1000, 8, false);
        check(1012, 4, true);
    }
}
