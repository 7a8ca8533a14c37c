//! A program as Rust's users of CUDA write it: cudarc's safe API, PTX from a string, two streams,
//! an event.
#![expect(unsafe_code, reason = "cudarc's launches are: nobody checks a kernel's arguments")]

use cudarc::driver::{CudaContext, DriverError, LaunchConfig, PushKernelArg};
use cudarc::nvrtc::Ptx;

const COUNT: usize = 100_003;
const SAXPY: &str = "\
.version 7.0
.target sm_75
.address_size 64
.visible .entry saxpy(.param .f32 a, .param .u64 x, .param .u64 y, .param .u32 n)
{
    .reg .pred %p;
    .reg .b32 %r<5>;
    .reg .f32 %f<4>;
    .reg .b64 %d<4>;
    mov.u32 %r1, %ctaid.x;
    mov.u32 %r2, %ntid.x;
    mov.u32 %r3, %tid.x;
    mad.lo.s32 %r1, %r1, %r2, %r3;
    ld.param.u32 %r4, [n];
    setp.ge.u32 %p, %r1, %r4;
    @%p ret;
    ld.param.f32 %f1, [a];
    ld.param.u64 %d1, [x];
    ld.param.u64 %d2, [y];
    mul.wide.u32 %d3, %r1, 4;
    add.s64 %d1, %d1, %d3;
    add.s64 %d2, %d2, %d3;
    ld.global.f32 %f2, [%d1];
    ld.global.f32 %f3, [%d2];
    fma.rn.f32 %f3, %f1, %f2, %f3;
    st.global.f32 [%d2], %f3;
    ret;
}
";

fn main() -> Result<(), DriverError> {
    let context = CudaContext::new(0)?;
    let stream = context.new_stream()?;
    let saxpy = context.load_module(Ptx::from_src(SAXPY))?.load_function("saxpy")?;
    let host: Vec<f32> = (0_u16..1000).cycle().take(COUNT).map(f32::from).collect();
    let x = stream.clone_htod(&host)?;
    let mut y = stream.clone_htod(&vec![1.0_f32; COUNT])?;
    let (a, n) = (2.0_f32, u32::try_from(COUNT).unwrap_or(u32::MAX));
    let mut launch = stream.launch_builder(&saxpy);
    launch.arg(&a).arg(&x).arg(&mut y).arg(&n);
    // SAFETY: these are the kernel's parameters in their order, and it keeps to `n` elements of
    // either array.
    unsafe { launch.launch(LaunchConfig::for_num_elems(n)) }?;
    let done = stream.record_event(None)?;
    let other = context.new_stream()?;
    other.wait(&done)?;
    let found = other.clone_dtoh(&y)?;
    other.synchronize()?;
    if found.iter().zip(&host).all(|(found, x)| found.to_bits() == (2.0 * x + 1.0).to_bits()) {
        println!("PASSED");
    } else {
        println!("FAILED");
    }
    Ok(())
}
