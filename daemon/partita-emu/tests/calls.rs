//! Recursion, calls through pointers, `alloca` and `malloc`, against the same functions on the
//! host.

#![expect(clippy::unwrap_used, reason = "a test that cannot be set up fails")]

use partita_emu::direct::{Argument, Form, Run, run};
use partita_emu::{Options, Spec, Timing};
use partita_model::Dim3;

const CALLS: &str = include_str!("ptx/calls.ptx");

fn job(kernel: &str, threads: u32, words: usize) -> Run {
    Run {
        ptx: CALLS.into(),
        kernel: kernel.to_owned(),
        grid: Dim3::linear(1),
        block: Dim3::linear(threads),
        dynamic_shared: 0,
        arguments: vec![Argument::Buffer(vec![0; 4 * words])],
        form: Form::Original,
        spec: Spec::named("cd-search-24").unwrap(),
        options: Options::default(),
    }
}

/// The buffer after the kernel, which must be equal with and without timing.
fn words(job: &Run) -> Vec<u32> {
    let [timed, untimed] = [Timing::On, Timing::Off].map(|timing| {
        let ran =
            run(&Run { options: Options { timing, seed: 1, ..Options::default() }, ..job.clone() });
        let bytes = ran
            .unwrap_or_else(|error| panic!("{} {timing:?}: {error}", job.kernel))
            .buffers
            .remove(0);
        bytes.as_chunks::<4>().0.iter().map(|word| u32::from_le_bytes(*word)).collect::<Vec<_>>()
    });
    assert_eq!(timed, untimed, "{}", job.kernel);
    timed
}

fn fibonacci(n: u32, plus: u32) -> u32 {
    if n < 2 {
        return n;
    }
    fibonacci(n - 1, plus) + fibonacci(n - 2, plus) + if n % 2 == 1 { plus } else { 0 }
}

#[test]
fn threads_recurse_to_depths_of_their_own() {
    let threads = 300;
    let found = words(&job("recursion", threads, 3 * threads as usize));
    for tid in 0..threads {
        let expect = [fibonacci(tid % 16, 2), u32::from(tid % 2 == 0), tid * (tid + 1) / 2];
        assert_eq!(found[3 * tid as usize..][..3], expect, "thread {tid}");
    }
}

#[test]
fn lanes_call_different_functions() {
    let threads = 96;
    let call = |function: u32, x: u32, y: u32| match function {
        0 => x + 3 * y,
        1 => x * y,
        _ => fibonacci(x, y),
    };
    let first: Vec<u32> = (0..threads).map(|tid| call(tid % 3, tid & 7, 5)).collect();
    let found = words(&job("pointers", threads, threads as usize));
    for tid in 0..threads {
        let neighbour = first[(tid ^ 1) as usize];
        assert_eq!(found[tid as usize], call(1 - (tid >> 1 & 1), neighbour, tid), "thread {tid}");
    }
}

#[test]
fn alloca_gives_room_and_takes_it_back() {
    let found = words(&job("room", 64, 64));
    for (tid, &sum) in (0_u32..).zip(&found) {
        assert_eq!(sum, tid * (tid + 1) / 2, "thread {tid}");
    }
}

#[test]
fn kernels_allocate_and_free() {
    let found = words(&job("blocks", 64, 64));
    for (tid, &sum) in (0_u32..).zip(&found) {
        assert_eq!(sum, 1000 * (tid * (tid + 1) / 2), "thread {tid}");
    }
}

#[test]
fn faults_say_what_was_called() {
    for (kernel, expect) in [
        ("too_deep", "stack overflow"),
        ("too_deep", "the call of `endless` needs"),
        ("too_large", "alloca of 1000000 bytes exceeds the thread's stack of 131072 bytes"),
        ("nobody", "call of 0x12345, which is the address of no function of the module"),
        ("free_twice", "free of an address that `malloc` has not given, or that is free already"),
        (
            "misfit",
            "call of `add3` through a pointer with 0 arguments and 0 results; it has 2 and 1",
        ),
    ] {
        let error = run(&job(kernel, 32, 1)).unwrap_err().to_string();
        assert!(error.contains(expect), "{kernel}: {error}");
    }
}
