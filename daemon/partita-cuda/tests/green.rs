//! Green contexts, on the stand-in for the driver.

mod fake;

use fake::Fake;
use partita_cuda_device::driver::{Context, Driver};

#[test]
fn a_green_context_has_the_sms_that_the_gpu_can_part() {
    let fake = Fake::new();
    let driver = Driver::load(Some(&fake.path())).expect("the stand-in loads");
    let context = Context::open(driver, 0).expect("it has a GPU");
    let green = context.green(20).expect("it knows green contexts");
    assert_eq!(green.sms, 24, "in steps of 8");
    green.streams[0].synchronize().expect("nothing is in it");
    green.destroy().expect("it was made");
    assert_eq!((fake.calls("cuGreenCtxCreate"), fake.calls("cuGreenCtxDestroy")), (1, 1));
    fake.tell("fail cuGreenCtxCreate 801");
    assert_eq!(context.green(8).map_err(|failure| failure.code).err(), Some(801));
}
