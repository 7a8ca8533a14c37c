//! The types of what C passes in; each type carries its own checks.
//!
//! Every parameter of an export is an integer or one of this module's transparent pointer types.
//! Values of these types come from C only. Their common invariant is C's own: **a pointer that is
//! not null points to what the CUDA Driver API says of that parameter, and nobody writes there
//! during the call.** The program upholds this invariant, as it must with NVIDIA's library.
//! [`Argument::check`] runs for every parameter before the body of an export, so a body never meets
//! a null where CUDA allows none. No code relies on alignment.

use crate::error::{CuError, CuResult};
use std::ffi::{CStr, c_char, c_void};
use std::os::fd::BorrowedFd;
use std::slice;

/// A parameter of an export.
pub trait Argument {
    /// Refuses values that no call may pass.
    fn check(&self) -> CuResult {
        Ok(())
    }
}

macro_rules! plain {
    ($($type:ty)*) => { $(impl Argument for $type {})* };
}
plain!(i8 u8 u16 i32 u32 u64 usize f32);

/// Types of which every bit pattern is a value, so that C may hand over any bytes.
///
/// # Safety
/// The type has no padding that is read, no niche and no drop glue.
pub unsafe trait Plain: Copy {}

macro_rules! plain_data {
    ($($type:ty)*) => { $(
        // SAFETY: an integer, float or raw pointer, or an array of them.
        unsafe impl Plain for $type {}
    )* };
}
plain_data!(i8 u8 u16 i32 u32 u64 usize f32 *const c_void *mut c_void *const c_char
    [u8; 16] [u8; 64] [u8; 128] [u64; 2] [u64; 4]);

/// 64 bytes that C passes by value: `CUipcMemHandle`, `CUipcEventHandle`.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Bytes64(pub [u8; 64]);

impl Argument for Bytes64 {}

/// A file that the program has open during the call; `None` for numbers that name no file.
pub fn file(descriptor: i32) -> Option<BorrowedFd<'static>> {
    // SAFETY: open during the call by the module's invariant, and no caller keeps it for longer.
    (descriptor >= 0).then(|| unsafe { BorrowedFd::borrow_raw(descriptor) })
}

/// An output; must not be null.
#[repr(transparent)]
pub struct Out<T>(*mut T);

impl<T: Plain> Out<T> {
    /// Writes the answer.
    pub fn set(&self, value: T) {
        // SAFETY: not null by `check`; writable by the module's invariant.
        unsafe { self.0.write_unaligned(value) };
    }

    /// The value before the call, for parameters that are both input and output.
    pub fn read(&self) -> T {
        // SAFETY: not null by `check`; readable by the module's invariant.
        unsafe { self.0.read_unaligned() }
    }

    /// Writes the answer and gives what was there before: parameters that go both ways.
    pub fn exchange(&self, value: T) -> T {
        // SAFETY: not null by `check`; readable by the module's invariant.
        let before = unsafe { self.0.read_unaligned() };
        self.set(value);
        before
    }

    /// Writes `values` one after the other. The program has said by another parameter that there is
    /// room for them.
    pub fn set_all(&self, values: &[T]) {
        for (i, value) in values.iter().enumerate() {
            let at = self.0.wrapping_add(i);
            // SAFETY: inside the array whose length the program gave.
            unsafe { at.write_unaligned(*value) };
        }
    }
}

impl<T> Argument for Out<T> {
    fn check(&self) -> CuResult {
        if self.0.is_null() { Err(CuError::INVALID_VALUE) } else { Ok(()) }
    }
}

/// An optional output: null if the program does not want it.
#[repr(transparent)]
pub struct OptionalOut<T>(*mut T);

impl<T: Plain> OptionalOut<T> {
    /// An answer that nobody wants.
    pub const fn none() -> Self {
        OptionalOut(std::ptr::null_mut())
    }

    /// Writes the answer unless nobody wants it.
    pub fn set(&self, value: T) {
        if !self.0.is_null() {
            // SAFETY: not null; writable by the module's invariant.
            unsafe { self.0.write_unaligned(value) };
        }
    }
}

impl<T> Argument for OptionalOut<T> {}

/// A structure to read; must not be null.
#[repr(transparent)]
pub struct In<T>(*const T);

impl<T: Plain> In<T> {
    /// A copy of the structure.
    pub fn get(&self) -> T {
        // SAFETY: not null by `check`; readable by the module's invariant.
        unsafe { self.0.read_unaligned() }
    }
}

impl<T> Argument for In<T> {
    fn check(&self) -> CuResult {
        if self.0.is_null() { Err(CuError::INVALID_VALUE) } else { Ok(()) }
    }
}

/// An array to read whose length another parameter tells; null counts as empty.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub struct Array<T>(*const T);

impl<T: Plain> Array<T> {
    /// An array that a structure points to.
    pub const fn at(address: *const T) -> Self {
        Array(address)
    }

    /// Whether the program passed none.
    pub fn is_null(&self) -> bool {
        self.0.is_null()
    }

    /// The address of the element at `index`, for outputs.
    pub fn slot(&self, index: usize) -> Memory {
        Memory(self.0.wrapping_add(index).cast_mut().cast())
    }

    /// The element at `index`, which the program has said to exist.
    pub fn get(&self, index: usize) -> Option<T> {
        if self.0.is_null() {
            return None;
        }
        let at = self.0.wrapping_add(index);
        // SAFETY: inside the array whose length the program gave.
        Some(unsafe { at.read_unaligned() })
    }
}

impl<T> Argument for Array<T> {}

/// A text that ends with a NUL; must not be null.
#[repr(transparent)]
pub struct Text(*const c_char);

impl Text {
    /// The text.
    pub fn get(&self) -> &CStr {
        // SAFETY: not null by `check`; ends with a NUL by the module's invariant.
        unsafe { CStr::from_ptr(self.0) }
    }

    /// The text in UTF-8; CUDA's names are ASCII.
    pub fn utf8(&self) -> CuResult<&str> {
        self.get().to_str().map_err(|_| CuError::INVALID_VALUE)
    }
}

impl Argument for Text {
    fn check(&self) -> CuResult {
        if self.0.is_null() { Err(CuError::INVALID_VALUE) } else { Ok(()) }
    }
}

/// The program's memory: what a copy reads or writes, or where an image lies. May be null; the
/// users say where not.
#[repr(transparent)]
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Memory(*mut c_void);

impl Memory {
    /// The memory at an address that came in as an integer, as in default-kind copies.
    pub const fn at(address: u64) -> Self {
        Memory(address as *mut c_void)
    }

    /// Its address.
    pub fn address(self) -> u64 {
        self.0 as u64
    }

    /// Its address for C.
    pub fn pointer(self) -> *mut c_void {
        self.0
    }

    /// Whether it is null.
    pub fn is_null(self) -> bool {
        self.0.is_null()
    }

    /// The memory `bytes` further on.
    pub fn offset(self, bytes: u64) -> Self {
        Memory((self.0 as u64).wrapping_add(bytes) as *mut c_void)
    }

    /// `bytes` bytes to read. The slice is used within the call only.
    pub fn bytes<'a>(self, bytes: usize) -> CuResult<&'a [u8]> {
        if bytes == 0 {
            return Ok(&[]);
        }
        if self.0.is_null() || isize::try_from(bytes).is_err() {
            return Err(CuError::INVALID_VALUE);
        }
        // SAFETY: not null; the program said that so many bytes can be read there.
        Ok(unsafe { slice::from_raw_parts(self.0.cast(), bytes) })
    }

    /// `bytes` bytes to write. The slice is used within the call only.
    pub fn bytes_mut<'a>(self, bytes: usize) -> CuResult<&'a mut [u8]> {
        if bytes == 0 {
            return Ok(&mut []);
        }
        if self.0.is_null() || isize::try_from(bytes).is_err() {
            return Err(CuError::INVALID_VALUE);
        }
        // SAFETY: not null; the program said that so many bytes can be written there.
        Ok(unsafe { slice::from_raw_parts_mut(self.0.cast(), bytes) })
    }

    /// Copies `bytes` bytes to here; the two ranges may overlap.
    pub fn copy_from(self, from: Memory, bytes: usize) -> CuResult {
        if bytes == 0 {
            return Ok(());
        }
        if self.0.is_null() || from.0.is_null() {
            return Err(CuError::INVALID_VALUE);
        }
        // SAFETY: not null; the program said that so many bytes can be read there and written here.
        unsafe { std::ptr::copy(from.0.cast::<u8>(), self.0.cast::<u8>(), bytes) };
        Ok(())
    }

    /// The value at the start, whatever its alignment.
    pub fn read<T: Plain>(self) -> CuResult<T> {
        if self.0.is_null() {
            return Err(CuError::INVALID_VALUE);
        }
        // SAFETY: not null; the program said that such a value lies there.
        Ok(unsafe { self.0.cast::<T>().read_unaligned() })
    }

    /// Writes a value to the start, whatever its alignment.
    pub fn write<T: Plain>(self, value: T) -> CuResult {
        if self.0.is_null() {
            return Err(CuError::INVALID_VALUE);
        }
        // SAFETY: not null; the program said that there is room for such a value.
        unsafe { self.0.cast::<T>().write_unaligned(value) };
        Ok(())
    }

    /// The text at the start, which ends with a NUL.
    pub fn text<'a>(self) -> CuResult<&'a CStr> {
        if self.0.is_null() {
            return Err(CuError::INVALID_VALUE);
        }
        // SAFETY: not null; the program said that a text lies there.
        Ok(unsafe { CStr::from_ptr(self.0.cast()) })
    }
}

impl Argument for Memory {}

// SAFETY: a transparent pointer; every bit pattern is one.
unsafe impl Plain for Memory {}

// SAFETY: an address. What is there, the program answers for in whatever thread it is followed.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

/// Writes `text` and a NUL into a buffer of `bytes` bytes, cutting it where there is no room.
pub fn write_text(buffer: &Out<u8>, bytes: usize, text: &str) {
    let Some(room) = bytes.checked_sub(1) else { return };
    let mut cut = text.as_bytes()[..text.len().min(room)].to_vec();
    cut.push(0);
    buffer.set_all(&cut);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn null_is_refused_where_cuda_refuses_it() {
        assert_eq!(Out::<u32>(std::ptr::null_mut()).check(), Err(CuError::INVALID_VALUE));
        assert_eq!(In::<u32>(std::ptr::null()).check(), Err(CuError::INVALID_VALUE));
        assert_eq!(Text(std::ptr::null()).check(), Err(CuError::INVALID_VALUE));
        assert_eq!(OptionalOut::<u32>(std::ptr::null_mut()).check(), Ok(()));
        assert_eq!(Memory::at(0).bytes(1), Err(CuError::INVALID_VALUE));
        assert_eq!(Memory::at(0).bytes(0), Ok(&[][..]));
        assert_eq!(Array::<u32>(std::ptr::null()).get(3), None);
    }

    #[test]
    fn text_is_cut_to_the_buffer() {
        let check = |bytes: usize, expect: &[u8; 4]| {
            let mut buffer = [0xffu8; 4];
            write_text(&Out(buffer.as_mut_ptr()), bytes, "abc");
            assert_eq!(&buffer, expect, "{bytes}");
        };
        check(4, b"abc\0");
        check(3, b"ab\0\xff");
        check(1, b"\0\xff\xff\xff");
        check(0, b"\xff\xff\xff\xff");
    }
}
