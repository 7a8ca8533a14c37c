//! An application of a benchmark: modules, memory with its contents, and the launches of one pass,
//! which repeats.

use partita_model::Dim3;
use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

/// A program without its host side.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct Application {
    /// Its name.
    pub name: String,
    /// PTX texts.
    pub modules: Vec<Arc<str>>,
    /// Variables of its modules whose first value differs from the text's.
    pub variables: Vec<Variable>,
    /// Its memory.
    pub buffers: Vec<Buffer>,
    /// One pass, in order. It begins again when it has ended.
    pub pass: Vec<Step>,
    /// Streams that take its launches in turn. With 0 all go to the default stream.
    pub streams: u32,
    /// What is put back before each pass, between launches and without taking time: what a pass
    /// must find as it was.
    pub restored: Vec<Restored>,
    /// The buffer that the program reads back at the end of each pass. The program waits for its
    /// bytes before it begins the next pass, as a server does between two requests. Without one it
    /// enqueues passes ahead and waits for none.
    pub answer: Option<usize>,
}

/// What a variable of a module holds at the start.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Variable {
    /// Index of its module.
    pub module: usize,
    /// Its name.
    pub name: String,
    /// Its bytes.
    pub contents: Vec<u8>,
}

/// One allocation.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Buffer {
    /// Its size in bytes, at least that of its contents.
    pub bytes: u64,
    /// Its first bytes; what is behind them is zero.
    pub contents: Vec<u8>,
    /// Addresses among the contents.
    pub pointers: Vec<Pointer>,
}

/// Eight bytes that hold an address, to be filled in when it is known where buffers lie.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Pointer {
    /// Where the address stands.
    pub at: u64,
    /// The buffer that it points into.
    pub buffer: usize,
    /// How far.
    pub offset: u64,
}

/// One launch.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Step {
    /// Index of its module.
    pub module: usize,
    /// Its kernel.
    pub kernel: String,
    /// Its grid.
    pub grid: Dim3,
    /// Its block.
    pub block: Dim3,
    /// Its dynamic shared memory.
    pub dynamic_shared: u32,
    /// Its parameter space.
    pub params: Vec<u8>,
    /// Addresses in that.
    pub pointers: Vec<Pointer>,
}

/// Bytes that a pass changes and the next one must find as they were.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Restored {
    /// Of which buffer.
    pub buffer: usize,
    /// From where on.
    pub offset: u64,
    /// How many: they come from the buffer's contents.
    pub bytes: u64,
}

impl Restored {
    /// The bytes that are put back, where buffers of `application` lie at these places; `None`
    /// where its buffer has no such bytes.
    #[must_use]
    pub fn of(&self, application: &Application, places: &[u64]) -> Option<Vec<u8>> {
        let contents = application.buffers.get(self.buffer)?.placed(places);
        let from = usize::try_from(self.offset).ok()?;
        let to = from.checked_add(usize::try_from(self.bytes).ok()?)?;
        contents.get(from..to).map(<[u8]>::to_vec)
    }
}

impl Buffer {
    /// So many zeros.
    #[must_use]
    pub fn zeros(bytes: u64) -> Buffer {
        Buffer { bytes, contents: Vec::new(), pointers: Vec::new() }
    }

    /// These bytes.
    #[must_use]
    pub fn of(contents: Vec<u8>) -> Buffer {
        Buffer { bytes: contents.len() as u64, contents, pointers: Vec::new() }
    }

    /// These words.
    #[must_use]
    pub fn words(words: impl IntoIterator<Item = u32>) -> Buffer {
        Buffer::of(words.into_iter().flat_map(u32::to_le_bytes).collect())
    }

    /// These numbers.
    #[must_use]
    pub fn floats(numbers: impl IntoIterator<Item = f32>) -> Buffer {
        Buffer::of(numbers.into_iter().flat_map(f32::to_le_bytes).collect())
    }

    /// The contents with the addresses filled in, where buffers lie at these places.
    #[must_use]
    pub fn placed(&self, places: &[u64]) -> Vec<u8> {
        fill_in(self.contents.clone(), &self.pointers, places)
    }
}

/// A parameter of a kernel.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Param {
    /// The address of a buffer.
    Address(usize),
    /// 32 bits.
    Word(u32),
    /// A number.
    Float(f32),
}

impl Step {
    /// A launch without dynamic shared memory of a kernel of the first module; parameters lie where
    /// C lays them out.
    #[must_use]
    pub fn new(kernel: &str, grid: Dim3, block: Dim3, given: &[Param]) -> Step {
        let (mut params, mut pointers) = (Vec::new(), Vec::new());
        for param in given {
            match *param {
                Param::Address(buffer) => {
                    params.resize(params.len().next_multiple_of(8), 0);
                    pointers.push(Pointer { at: params.len() as u64, buffer, offset: 0 });
                    params.extend([0; 8]);
                }
                Param::Word(word) => params.extend(word.to_le_bytes()),
                Param::Float(number) => params.extend(number.to_le_bytes()),
            }
        }
        Step {
            module: 0,
            kernel: kernel.to_owned(),
            grid,
            block,
            dynamic_shared: 0,
            params,
            pointers,
        }
    }

    /// The parameters with the addresses filled in, where buffers lie at these places.
    #[must_use]
    pub fn placed(&self, places: &[u64]) -> Vec<u8> {
        fill_in(self.params.clone(), &self.pointers, places)
    }
}

impl Application {
    /// The same for applications that are the same: names files in caches.
    #[must_use]
    pub fn digest(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        self.hash(&mut hasher);
        hasher.finish()
    }

    /// CTAs of one pass.
    #[must_use]
    pub fn ctas(&self) -> u128 {
        self.pass.iter().map(|step| step.grid.count()).sum()
    }
}

fn fill_in(mut bytes: Vec<u8>, pointers: &[Pointer], places: &[u64]) -> Vec<u8> {
    for pointer in pointers {
        let at = usize::try_from(pointer.at).unwrap_or(usize::MAX);
        if let (Some(into), Some(place)) =
            (bytes.get_mut(at..at.saturating_add(8)), places.get(pointer.buffer))
        {
            into.copy_from_slice(&(place + pointer.offset).to_le_bytes());
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_lie_where_c_lays_them_out() {
        let one = Dim3::linear(1);
        let given = [Param::Word(7), Param::Address(1), Param::Float(1.0), Param::Word(9)];
        let step = Step::new("kernel", one, one, &given);
        let placed = step.placed(&[0x1000, 0x2000]);
        assert_eq!(placed.len(), 24);
        assert_eq!(placed[..4], 7_u32.to_le_bytes());
        assert_eq!(placed[8..16], 0x2000_u64.to_le_bytes());
        assert_eq!(placed[20..], 9_u32.to_le_bytes());
    }

    #[test]
    fn digests_tell_applications_apart() {
        let mut application = Application { name: "a".to_owned(), ..Application::default() };
        let before = application.digest();
        assert_eq!(before, application.clone().digest());
        application.buffers.push(Buffer::words([1]));
        assert_ne!(before, application.digest());
    }
}
