//! Whole kernels against references computed on the host, in both timing modes and both forms.

#![expect(clippy::unwrap_used, reason = "a test that cannot be set up fails")]
#![expect(clippy::float_cmp, reason = "results are exact")]

use partita_emu::direct::{Argument, DirectError, Form, Run, run};
use partita_emu::{Options, Spec, Timing};
use partita_model::Dim3;

fn base(ptx: &str, kernel: &str) -> Run {
    Run {
        ptx: ptx.into(),
        kernel: kernel.to_owned(),
        grid: Dim3::linear(1),
        block: Dim3::linear(1),
        dynamic_shared: 0,
        arguments: Vec::new(),
        form: Form::Original,
        spec: Spec::named("cd-search-24").unwrap(),
        options: Options::default(),
    }
}

/// All ways in which a run must give the same memory.
fn every_way(run: &Run) -> Vec<Run> {
    let mut ways = Vec::new();
    for timing in [Timing::On, Timing::Off] {
        for form in [
            Form::Original,
            Form::Worker { task: 1 },
            Form::Worker { task: 7 },
            Form::Ticket,
            Form::Contained,
        ] {
            ways.push(Run {
                form,
                options: Options { timing, seed: 3, ..Options::default() },
                ..run.clone()
            });
        }
    }
    ways
}

fn floats(values: impl Iterator<Item = f32>) -> Vec<u8> {
    values.flat_map(f32::to_le_bytes).collect()
}

fn as_floats(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks::<4>().0.iter().map(|word| f32::from_le_bytes(*word)).collect()
}

fn as_words(bytes: &[u8]) -> Vec<u32> {
    bytes.as_chunks::<4>().0.iter().map(|word| u32::from_le_bytes(*word)).collect()
}

fn words(values: &[u32]) -> Vec<u8> {
    values.iter().flat_map(|word| word.to_le_bytes()).collect()
}

const SAXPY: &str = include_str!("ptx/saxpy.ptx");

#[test]
fn saxpy() {
    for n in [1_u32, 31, 32, 1000, 5000] {
        let x = floats((0..n).map(|i| i as f32 * 0.5));
        let y = floats((0..n).map(|i| 100.0 - i as f32));
        let job = Run {
            grid: Dim3::linear(n.div_ceil(256)),
            block: Dim3::linear(256),
            arguments: vec![
                Argument::Value(2.0_f32.to_le_bytes().to_vec()),
                Argument::Buffer(x),
                Argument::Buffer(y),
                Argument::Value(n.to_le_bytes().to_vec()),
            ],
            ..base(SAXPY, "saxpy")
        };
        for way in every_way(&job) {
            let ran = run(&way)
                .unwrap_or_else(|error| panic!("{:?} {:?}: {error}", way.form, way.options));
            let result = as_floats(&ran.buffers[1]);
            for (i, &value) in result.iter().enumerate() {
                assert_eq!(
                    value,
                    i as f32 + 100.0 - i as f32,
                    "n {n}, element {i}, {:?}",
                    way.form
                );
            }
            assert!(ran.counters.warp_instructions > 0 && ran.counters.ctas >= 1);
        }
    }
}

const REDUCE: &str = include_str!("ptx/reduce.ptx");

#[test]
fn reduction_with_barriers_and_atomics() {
    let n = 10_000_u32;
    let input: Vec<u32> = (0..n).map(|i| i.wrapping_mul(2_654_435_761) >> 20).collect();
    let sum = input.iter().copied().fold(0, u32::wrapping_add);
    let job = Run {
        grid: Dim3::linear(37),
        block: Dim3::linear(256),
        arguments: vec![
            Argument::Buffer(words(&input)),
            Argument::Buffer(words(&[0, 0])),
            Argument::Value(n.to_le_bytes().to_vec()),
        ],
        ..base(REDUCE, "reduce")
    };
    for way in every_way(&job) {
        let ran =
            run(&way).unwrap_or_else(|error| panic!("{:?} {:?}: {error}", way.form, way.options));
        assert_eq!(as_words(&ran.buffers[1]), [sum, 37], "{:?} {:?}", way.form, way.options);
    }
}

#[test]
fn arguments_are_checked() {
    let job = base(SAXPY, "saxpi");
    assert_eq!(run(&job).unwrap_err().to_string(), "no kernel is named `saxpi`; there are saxpy");
    let job = base(SAXPY, "saxpy");
    assert_eq!(
        run(&job).unwrap_err().to_string(),
        "kernel `saxpy` takes 4 arguments, 0 were given"
    );
    let mut job = base(SAXPY, "saxpy");
    job.arguments = vec![Argument::Value(vec![0; 8]); 4];
    assert_eq!(
        run(&job).unwrap_err().to_string(),
        "argument 1 of kernel `saxpy` has 4 bytes, 8 were given"
    );
    let job = base("garbage", "saxpy");
    assert!(matches!(run(&job), Err(DirectError::Module(_))));
}

const COLLATZ: &str = include_str!("ptx/collatz.ptx");

#[test]
fn divergent_loops() {
    let n = 1000_u32;
    let job = Run {
        grid: Dim3::linear(n.div_ceil(128)),
        block: Dim3::linear(128),
        arguments: vec![
            Argument::Buffer(vec![0; 4 * n as usize]),
            Argument::Value(n.to_le_bytes().to_vec()),
        ],
        ..base(COLLATZ, "collatz")
    };
    for way in every_way(&job) {
        let ran =
            run(&way).unwrap_or_else(|error| panic!("{:?} {:?}: {error}", way.form, way.options));
        for (i, &steps) in as_words(&ran.buffers[0]).iter().enumerate() {
            let (mut value, mut expect) = (i as u64 + 1, 0);
            while value != 1 {
                value = if value % 2 == 0 { value / 2 } else { 3 * value + 1 };
                expect += 1;
            }
            assert_eq!(steps, expect, "start {}", i + 1);
        }
    }
}

const SPIN: &str = include_str!("ptx/spin.ptx");

#[test]
fn spinning_threads_make_progress() {
    // Every thread takes a lock in turn, within a warp too; and CTA 1 waits for a flag that CTA 0
    // sets.
    let job = Run {
        grid: Dim3::linear(4),
        block: Dim3::linear(64),
        arguments: vec![Argument::Buffer(words(&[0, 0, 0]))],
        ..base(SPIN, "locked_count")
    };
    for timing in [Timing::On, Timing::Off] {
        let job = Run { options: Options { timing, seed: 1, ..Options::default() }, ..job.clone() };
        let ran = run(&job).unwrap();
        assert_eq!(as_words(&ran.buffers[0]), [0, 256, 0], "{timing:?}");
        // The same with a nap after each failure: who has the lock may wait at the loop's end for
        // those who nap.
        let napping = SPIN.replace("$try:", "bra.uni $first;\n$again: nanosleep.u32 20;\n$first:");
        let napping =
            Run { ptx: napping.replace("bra $try;", "bra $again;").into(), ..job.clone() };
        let ran = run(&napping).unwrap();
        assert_eq!(as_words(&ran.buffers[0]), [0, 256, 0], "{timing:?}, napping");
        let job = Run {
            kernel: "producer_consumer".to_owned(),
            grid: Dim3::linear(2),
            block: Dim3::linear(32),
            ..job
        };
        let ran = run(&job).unwrap();
        assert_eq!(as_words(&ran.buffers[0])[2], 42, "{timing:?}");
    }
}

#[test]
fn runs_repeat_to_the_bit() {
    let n = 3000_u32;
    let job = Run {
        grid: Dim3::linear(n.div_ceil(128)),
        block: Dim3::linear(128),
        arguments: vec![
            Argument::Buffer(vec![0; 4 * n as usize]),
            Argument::Value(n.to_le_bytes().to_vec()),
        ],
        ..base(COLLATZ, "collatz")
    };
    let (first, second) = (run(&job).unwrap(), run(&job).unwrap());
    assert_eq!(first, second);
    assert!(first.counters.cycles > 1000);
}
