//! Whatever the bytes are, there is an answer.

use partita_cubin::{CubinError, read};
use proptest::prelude::*;

/// A small image with one kernel, made by `ptxas` of CUDA 13.5 for compute capability 7.5.
const IMAGE: &[u8] = include_bytes!("one.cubin");

#[test]
fn the_image_is_read() {
    let cubin = read(IMAGE).expect("it is one");
    assert_eq!(cubin.architecture, 75);
    let [kernel] = &cubin.kernels[..] else { panic!("{cubin:?}") };
    let params: Vec<(u32, u32)> =
        kernel.params.iter().map(|param| (param.offset, param.size)).collect();
    assert_eq!((kernel.name.as_str(), kernel.param_bytes), ("one", 41));
    assert_eq!(params, [(0, 8), (8, 4), (16, 24), (40, 1)]);
    assert_eq!((kernel.shared_bytes, kernel.max_block), (512, Some([256, 2, 1])));
    assert_eq!(kernel.max_threads(), Some(512));
    let variables: Vec<(&str, bool)> =
        cubin.variables.iter().map(|v| (v.name.as_str(), v.is_constant)).collect();
    assert_eq!((variables, cubin.has_state), (vec![("counter", false), ("table", true)], true));
}

#[test]
fn what_is_none_is_said() {
    assert!(matches!(read(b""), Err(CubinError::Outside { .. })));
    assert!(matches!(read(&[0; 64]), Err(CubinError::Foreign(_))));
    let mut other = IMAGE.to_vec();
    other[18] = 62;
    assert!(matches!(read(&other), Err(CubinError::Foreign(_))));
    for end in 0..IMAGE.len() {
        assert!(
            read(&IMAGE[..end]).is_err(),
            "the first {end} bytes: the segments' table is the last"
        );
    }
}

proptest! {
    #[test]
    fn changed_bytes_never_panic(changes in prop::collection::vec((0..IMAGE.len(), any::<u8>()),
        1..12)) {
        let mut image = IMAGE.to_vec();
        for (at, byte) in changes {
            image[at] = byte;
        }
        if let Ok(cubin) = read(&image) {
            for kernel in cubin.kernels {
                let end = kernel.params.last().map_or(0, |param| param.offset + param.size);
                prop_assert!(end <= kernel.param_bytes);
            }
        }
    }

    #[test]
    fn changed_words_never_panic(at in 0..IMAGE.len() / 8, word in any::<u64>()) {
        let mut image = IMAGE.to_vec();
        image[8 * at..8 * at + 8].copy_from_slice(&word.to_le_bytes());
        let _ = read(&image);
    }
}
