//! Where a program finds what its kernels say.

/// One of a program's two outputs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Console {
    /// Standard output: `printf`.
    Output,
    /// Standard error: `assert`.
    Error,
}
