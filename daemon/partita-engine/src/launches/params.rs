//! The parameter space of a launch: the program's own parameters, then hidden ones.
//!
//! Each hidden parameter is a `u64` and begins behind the others, at the next multiple of 8. Three
//! `u32` lie behind the hidden parameter of a slice. A kernel takes only the hidden parameters that
//! its form needs, always in the order of [`Hidden`].

use partita_model::{DeviceAddress, Dim3};

/// Bytes of a hidden parameter, which are also its alignment.
const BYTES: usize = 8;

/// The hidden parameters, in the order in which they lie behind the program's own.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Hidden {
    /// The first address of the window's cell ([`crate::Fence::Code`]).
    Cell,
    /// The barrier of a cooperative launch in the original form, 0 for other launches.
    Barrier,
    /// Which CTAs a slice runs ([`Params::push_slice`]).
    Slice,
    /// The block in which a counting launch counts.
    CountBlock,
    /// The control block. For workers of a helper grid the lowest bits hold the grid's number.
    ControlBlock,
}

/// The parameters of one launch.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Params {
    bytes: Vec<u8>,
    last: Option<Hidden>,
}

impl Params {
    /// The program's own parameters.
    pub(crate) fn new(program: Vec<u8>) -> Self {
        Params { bytes: program, last: None }
    }

    /// Adds a hidden parameter behind those that are there.
    pub(crate) fn push(&mut self, hidden: Hidden, value: u64) {
        debug_assert!(self.last < Some(hidden), "{hidden:?} behind {:?}", self.last);
        self.bytes.resize(self.bytes.len().next_multiple_of(BYTES), 0);
        self.bytes.extend_from_slice(&value.to_le_bytes());
        self.last = Some(hidden);
    }

    /// Adds the hidden parameters of a slice behind the present parameters: the linear index of the
    /// slice's first CTA, and the size of the original's grid.
    pub(crate) fn push_slice(&mut self, first: u64, grid: Dim3) {
        self.push(Hidden::Slice, first);
        for extent in [grid.x, grid.y, grid.z] {
            self.bytes.extend_from_slice(&extent.to_le_bytes());
        }
    }

    /// A copy with `pointer` as the control block, which is the last parameter of workers and
    /// tickets.
    pub(crate) fn with_control_block(&self, pointer: DeviceAddress) -> Vec<u8> {
        debug_assert_eq!(self.last, Some(Hidden::ControlBlock));
        let mut bytes = self.bytes.clone();
        if let Some(last) = bytes.last_chunk_mut::<BYTES>() {
            *last = pointer.0.to_le_bytes();
        }
        bytes
    }

    /// All bytes.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// All bytes, where no other grid of the launch needs them.
    pub(crate) fn take(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hidden_parameters_lie_at_multiples_of_eight_in_order() {
        let mut params = Params::new(vec![7; 12]);
        params.push(Hidden::Cell, 1);
        params.push(Hidden::ControlBlock, 2);
        let words: Vec<u64> = params.bytes()[16..]
            .as_chunks()
            .0
            .iter()
            .map(|word| u64::from_le_bytes(*word))
            .collect();
        assert_eq!((params.bytes().len(), words), (32, vec![1, 2]));
        let helper = params.with_control_block(DeviceAddress(0x105));
        assert_eq!(helper[..24], params.bytes()[..24]);
        assert_eq!(helper[24..], 0x105_u64.to_le_bytes());
    }

    #[test]
    fn a_slices_parameters_lie_before_the_control_block() {
        let mut params = Params::new(vec![7; 4]);
        params.push_slice(1 << 40, Dim3::new(2, 3, 4));
        params.push(Hidden::ControlBlock, 5);
        let wanted =
            [&[7; 4][..], &[0; 4], &(1_u64 << 40).to_le_bytes(), &[2, 0, 0, 0, 3, 0, 0, 0]];
        let wanted = [wanted.concat(), vec![4, 0, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0]];
        assert_eq!(params.bytes(), wanted.concat());
    }

    #[test]
    #[should_panic(expected = "Cell behind Some(ControlBlock)")]
    fn the_order_is_one_for_all_launches() {
        let mut params = Params::new(Vec::new());
        params.push(Hidden::ControlBlock, 1);
        params.push(Hidden::Cell, 2);
    }
}
