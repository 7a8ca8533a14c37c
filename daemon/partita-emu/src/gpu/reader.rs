//! Modules that are read ahead of their loading, by other threads.
//!
//! Reading a text is most of what loading it costs, and needs no device: the text is parsed, and
//! where the module has no variables its kernels are decoded. A module that was read is kept until
//! it is loaded. Few are kept; a module that is not kept any more is read when it is loaded, with
//! the same result.

use super::target::Target;
use crate::exec::decode::{self, Image, Kernels};
use partita_device::Reading;
use partita_ptx::Module;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// Texts whose modules are kept, at most, and their bytes. A module takes some 40 times the bytes
/// of its text.
const MOST_TEXTS: usize = 16;
const MOST_BYTES: usize = 16 << 20;

/// A module that was read.
pub(super) struct Read {
    /// The GPUs that it is for.
    pub(super) target: Option<Target>,
    /// The places of its variables, from address 0 on.
    pub(super) image: Image,
    pub(super) code: Code,
}

/// The code of a module that was read.
pub(super) enum Code {
    /// Its kernels, which name no address.
    Decoded(Kernels),
    /// The module: its kernels are decoded when its variables have addresses.
    Parsed(Box<Module>),
}

impl Read {
    /// Reads a text.
    pub(super) fn new(ptx: &str) -> Result<Read, String> {
        let module = partita_ptx::parse(ptx).map_err(|errors| errors.to_string())?;
        let target = Target::of(&module);
        let image = decode::place_variables(&module)?;
        let code = match image.bytes + image.managed_bytes {
            0 => Code::Decoded(decode::decode(module, &image)),
            _ => Code::Parsed(Box::new(module)),
        };
        Ok(Read { target, image, code })
    }
}

/// The modules that were read and are not loaded yet, the oldest first.
#[derive(Default)]
pub(super) struct Reader {
    read: Mutex<VecDeque<(Weak<str>, Read)>>,
}

impl Reader {
    fn lock(&self) -> MutexGuard<'_, VecDeque<(Weak<str>, Read)>> {
        self.read.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The module of this very text, if it is kept.
    pub(super) fn take(&self, ptx: &Arc<str>) -> Option<Read> {
        let mut kept = self.lock();
        let at = kept.iter().position(|(text, _)| is_same(text, ptx))?;
        kept.remove(at).map(|(_, read)| read)
    }
}

impl Reading for Reader {
    fn read(&self, ptx: &Arc<str>) {
        if ptx.len() > MOST_BYTES || self.lock().iter().any(|(text, _)| is_same(text, ptx)) {
            return;
        }
        // What is wrong with the text is said when it is loaded.
        let Ok(read) = Read::new(ptx) else { return };
        let mut kept = self.lock();
        kept.push_back((Arc::downgrade(ptx), read));
        // Texts that are gone will not be loaded.
        kept.retain(|(text, _)| text.strong_count() > 0);
        let bytes = |kept: &VecDeque<(Weak<str>, Read)>| -> usize {
            kept.iter().filter_map(|(text, _)| text.upgrade()).map(|text| text.len()).sum()
        };
        while kept.len() > MOST_TEXTS || bytes(&kept) > MOST_BYTES {
            kept.pop_front();
        }
    }
}

fn is_same(text: &Weak<str>, ptx: &Arc<str>) -> bool {
    text.upgrade().is_some_and(|text| Arc::ptr_eq(&text, ptx))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: &str = ".version 8.0\n.target sm_75\n.address_size 64\n.entry k() { ret; }";

    #[test]
    fn a_module_is_taken_once_and_by_its_own_text() {
        let reader = Reader::default();
        let (ptx, other): (Arc<str>, Arc<str>) = (PLAIN.into(), PLAIN.into());
        reader.read(&ptx);
        assert!(reader.take(&other).is_none());
        let read = reader.take(&ptx).expect("it is kept");
        assert!(matches!(read.code, Code::Decoded(kernels) if kernels.programs.len() == 1));
        assert!(reader.take(&ptx).is_none());
    }

    #[test]
    fn few_are_kept_and_none_that_is_gone() {
        let reader = Reader::default();
        reader.read(&PLAIN.into());
        let texts: Vec<Arc<str>> = (0..=MOST_TEXTS).map(|_| PLAIN.into()).collect();
        texts.iter().for_each(|ptx| reader.read(ptx));
        assert_eq!(reader.lock().len(), MOST_TEXTS);
        assert!(reader.take(&texts[0]).is_none() && reader.take(&texts[MOST_TEXTS]).is_some());
    }

    #[test]
    fn kernels_that_may_name_addresses_are_decoded_when_they_have_them() {
        let text = PLAIN.replace(".entry", ".global .b32 word;\n.entry");
        let read = Read::new(&text).expect("the text is PTX");
        assert!(matches!(read.code, Code::Parsed(_)));
    }
}
