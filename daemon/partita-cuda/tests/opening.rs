//! Opening a device names what prevents it.

mod fake;

use fake::Fake;
use partita_cuda_device::{CudaDevice, OpenError, Options};

fn refusal(commands: &[&str]) -> OpenError {
    let fake = Fake::new();
    for command in commands {
        fake.tell(command);
    }
    fake.open().err().expect("it cannot be opened")
}

#[test]
fn refusals_name_the_remedy() {
    let check = |commands: &[&str], words: &[&str], none: bool| {
        let error = refusal(commands);
        let text = error.to_string();
        assert!(words.iter().all(|word| text.contains(word)), "{commands:?}: {text}");
        assert_eq!(error.means_none(), none, "{text}");
    };
    check(&["set driver 12020"], &["12.2", "550"], false);
    check(&["set shim 1"], &["Partita's own library", "LD_LIBRARY_PATH", "PARTITA_LIBCUDA"], false);
    check(&["set gpus 0"], &["no GPU 0"], true);
    check(&["fail cuInit 100"], &["CUDA_ERROR_NO_DEVICE"], true);
    check(&["fail cuInit 803"], &["cuInit", "MISMATCH"], false);
    check(&["set major 7", "set minor 0"], &["7.0", "7.5"], false);
    check(&["set loading lazy"], &["CUDA_MODULE_LOADING=EAGER"], false);
    check(&["fail cuDevicePrimaryCtxRetain 46"], &["cuDevicePrimaryCtxRetain"], false);
}

#[test]
fn libraries_that_are_no_driver_are_named() {
    let open = |path: &str| {
        let options = Options { library: Some(path.into()), ..Options::default() };
        CudaDevice::open(&options).err().expect("no driver")
    };
    let error = open("/nonexistent/libcuda.so.1");
    assert!(error.means_none() && error.to_string().contains("not installed"), "{error}");
    let error = open("libm.so.6").to_string();
    assert!(
        error.contains("cuInit") && error.contains("cuLaunchKernel") && error.contains("libm"),
        "{error}"
    );
}
