//! Modules that were prepared before, by content, up to a bound.
//!
//! An entry holds the whole image and is used only where every byte of it is equal: no tenant can
//! make another run its code by a collision of hashes.

use super::How;
use crate::prepare::Prepared;
use crate::prepare::later::kept_bytes;
use crate::uploads::Image;
use lru::LruCache;
use std::hash::RandomState;
use std::sync::Arc;

/// What decides how a module is prepared to run on the pool's device.
#[derive(PartialEq, Eq, Hash)]
pub(super) struct Key {
    pub image: Image,
    pub how: How,
}

/// Prepared modules by their keys. Above `limit` bytes in total the least recently used module
/// goes first. The hasher is keyed, because clients choose the images.
pub(super) struct Cache {
    entries: LruCache<Key, Arc<Prepared>, RandomState>,
    bytes: usize,
    limit: usize,
}

/// Bytes of an entry.
fn bytes(key: &Key, prepared: &Prepared) -> usize {
    let module = &prepared.module;
    let code = module.code.as_ref().map_or(0, |code| code.len());
    let later = module.later.as_ref().map_or(0, |later| kept_bytes(&later.source));
    key.image.bytes.len() + module.ptx.len() + code + later
}

impl Cache {
    pub fn new(limit: usize) -> Self {
        Cache { entries: LruCache::unbounded_with_hasher(RandomState::new()), bytes: 0, limit }
    }

    pub fn get(&mut self, key: &Key) -> Option<Arc<Prepared>> {
        self.entries.get(key).map(Arc::clone)
    }

    pub fn insert(&mut self, key: Key, prepared: Arc<Prepared>) {
        let size = bytes(&key, &prepared);
        if size > self.limit {
            return;
        }
        self.bytes += size;
        if let Some((key, old)) = self.entries.push(key, prepared) {
            self.bytes -= bytes(&key, &old);
        }
        while self.bytes > self.limit {
            let Some((key, old)) = self.entries.pop_lru() else { return };
            self.bytes -= bytes(&key, &old);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use partita_device::Guards;
    use partita_engine::PreparedModule;
    use partita_model::{ImageKind, Originals};

    fn image(text: &str) -> Image {
        Image {
            kind: ImageKind::Ptx,
            unpacked_bytes: text.len() as u64,
            bytes: text.as_bytes().into(),
        }
    }

    fn key(text: &str) -> Key {
        Key {
            image: image(text),
            how: How { originals: Originals::Alone, guards: Guards::default() },
        }
    }

    fn prepared(text: &str) -> Arc<Prepared> {
        let module = PreparedModule {
            ptx: text.into(),
            code: None,
            kernels: Vec::new(),
            lines: None,
            later: None,
        };
        Arc::new(Prepared { module, shapes: Vec::new() })
    }

    #[test]
    fn the_least_recently_used_goes_first() {
        let mut cache = Cache::new(9);
        for text in ["a", "b", "c"] {
            cache.insert(key(text), prepared("xx"));
        }
        assert!(cache.get(&key("a")).is_some());
        cache.insert(key("d"), prepared("xx"));
        assert!(cache.get(&key("b")).is_none());
        for text in ["a", "c", "d"] {
            assert!(cache.get(&key(text)).is_some(), "{text}");
        }
        cache.insert(key("d"), prepared("xx"));
        assert_eq!(cache.bytes, 9);
        cache.insert(key("too large for it"), prepared("xx"));
        assert_eq!(cache.entries.len(), 3);
    }

    #[test]
    fn a_key_is_an_images_bytes_its_kind_and_its_originals() {
        let mut cache = Cache::new(100);
        cache.insert(key("a"), prepared("x"));
        let of = |image| Key { image, ..key("a") };
        assert!(cache.get(&of(image("a"))).is_some());
        assert!(cache.get(&of(Image { kind: ImageKind::PtxZstd, ..image("a") })).is_none());
        assert!(cache.get(&of(Image { unpacked_bytes: 2, ..image("a") })).is_none());
        let never = How { originals: Originals::Never, guards: Guards::default() };
        assert!(cache.get(&Key { how: never, ..key("a") }).is_none());
    }
}
