//! Options of the JIT compiler (CUDA Driver API, `CUjit_option`). Only the options for log buffers
//! matter here.
//!
//! Values come as an array of pointers in which small numbers are stored as if they were pointers.
//! The option for a log's size is both input and output: the buffer's size at the call, the bytes
//! written at the return.

use crate::abi::{Array, Memory};
use crate::error::CuResult;
use std::ffi::c_void;

const INFO_LOG: i32 = 3;
const INFO_LOG_BYTES: i32 = 4;
const ERROR_LOG: i32 = 5;
const ERROR_LOG_BYTES: i32 = 6;
/// More options than CUDA has.
const MAX_OPTIONS: usize = 1024;

/// The program's log buffers.
#[derive(Default)]
pub struct Logs {
    info: Log,
    error: Log,
}

#[derive(Default)]
struct Log {
    buffer: Option<Memory>,
    bytes: usize,
    /// The output for the number of bytes written.
    written: Option<Memory>,
}

impl Logs {
    /// Reads the options, and empties the logs.
    pub fn read(count: usize, options: Array<i32>, values: Array<Memory>) -> CuResult<Self> {
        let mut logs = Logs::default();
        for index in 0..count.min(MAX_OPTIONS) {
            let (Some(option), Some(value)) = (options.get(index), values.get(index)) else {
                break;
            };
            match option {
                INFO_LOG => logs.info.buffer = Some(value),
                ERROR_LOG => logs.error.buffer = Some(value),
                INFO_LOG_BYTES => logs.info.set_room(value, values.slot(index)),
                ERROR_LOG_BYTES => logs.error.set_room(value, values.slot(index)),
                _ => {}
            }
        }
        logs.info.write("")?;
        logs.error.write("")?;
        Ok(logs)
    }

    /// Writes what is wrong with the code.
    pub fn write_error(&self, text: &str) -> CuResult {
        self.error.write(text)
    }
}

impl Log {
    fn set_room(&mut self, value: Memory, slot: Memory) {
        // The number is stored in the lower half; CUDA reads an unsigned int.
        self.bytes = usize::try_from(value.address() & 0xffff_ffff).expect("masked to 32 bits");
        self.written = Some(slot);
    }

    fn write(&self, text: &str) -> CuResult {
        let Some(buffer) = self.buffer.filter(|buffer| !buffer.is_null() && self.bytes > 0) else {
            return Ok(());
        };
        let cut = &text.as_bytes()[..text.len().min(self.bytes - 1)];
        buffer.bytes_mut(cut.len())?.copy_from_slice(cut);
        buffer.offset(cut.len() as u64).write(0u8)?;
        if let Some(written) = self.written {
            written.write(cut.len() as *const c_void)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_reaches_the_buffer_and_its_length_the_size_option() {
        let mut buffer = [0xffu8; 8];
        let options = [7, ERROR_LOG, ERROR_LOG_BYTES];
        let mut values = [4u64, buffer.as_mut_ptr() as u64, buffer.len() as u64];
        let logs =
            Logs::read(3, Array::at(options.as_ptr()), Array::at(values.as_mut_ptr().cast()))
                .unwrap();
        assert_eq!((buffer[0], values[2]), (0, 0), "emptied");
        logs.write_error("line 3: expected `;`").unwrap();
        assert_eq!(&buffer, b"line 3:\0");
        assert_eq!(values[2], 7);
    }

    #[test]
    fn no_options_no_log() {
        let null = Array::at(std::ptr::null());
        let logs = Logs::read(5, null, Array::at(std::ptr::null())).unwrap();
        assert!(logs.info.buffer.is_none() && logs.error.buffer.is_none());
        logs.write_error("text").unwrap();
    }
}
