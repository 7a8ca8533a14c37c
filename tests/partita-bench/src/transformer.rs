//! A server whose request is one pass of a small transformer, with the kernels that Triton makes of
//! such layers: layer norms, matrix products, causal attention, activations, and a softmax at the
//! end. All launches depend on each other.
//!
//! A pass reads its input and its weights and writes other memory, so each pass computes the same.

use crate::application::{Application, Buffer, Param, Step};
use crate::workloads::{Random, plane};
use Param::{Address, Float, Word};
use partita_model::Dim3;
use std::sync::Arc;

/// Rows of all matrices of activations.
const TOKENS: u32 = 64;
/// Columns of what goes round the layers.
const WIDTH: u32 = 128;
const HEADS: u32 = 4;
const LAYERS: u32 = 4;
/// Columns inside the feed-forward part of a layer.
const INNER: u32 = 512;
/// Words among which the last softmax chooses.
const WORDS: u32 = 256;
/// Rows and columns of a matrix product's tile, and queries of an attention's.
const TILE: u32 = 32;
/// Numbers of a CTA of the activation.
const GELU: u32 = 1024;

/// The kernels, and what Triton says of each: name, threads, dynamic shared memory.
const LIST: &str = include_str!("../workloads/transformer.txt");

/// The PTX of the kernels, in the list's order.
const TEXTS: [&str; 6] = [
    include_str!("../workloads/transformer_norm.ptx"),
    include_str!("../workloads/transformer_linear.ptx"),
    include_str!("../workloads/transformer_linear_add.ptx"),
    include_str!("../workloads/transformer_attention.ptx"),
    include_str!("../workloads/transformer_gelu.ptx"),
    include_str!("../workloads/transformer_softmax.ptx"),
];

/// The server. One pass of it is one request of 35 launches. The seed decides input and weights.
#[must_use]
pub fn transformer(seed: u64) -> Application {
    let mut model = Model { random: Random::new(seed), made: Application::default() };
    model.made.name = "transformer".to_owned();
    model.made.modules = TEXTS.iter().map(|text| Arc::from(*text)).collect();
    let input = model.numbers(TOKENS * WIDTH, 1.0);
    let [normed, mixed, between, output] = [WIDTH; 4].map(|columns| model.activations(columns));
    let qkv = model.activations(3 * WIDTH);
    let [inner, active] = [INNER; 2].map(|columns| model.activations(columns));
    for layer in 0..LAYERS {
        let from = if layer == 0 { input } else { output };
        model.norm(from, normed);
        model.linear(normed, (WIDTH, 3 * WIDTH), None, qkv);
        model.attention(qkv, mixed);
        model.linear(mixed, (WIDTH, WIDTH), Some(from), between);
        model.norm(between, normed);
        model.linear(normed, (WIDTH, INNER), None, inner);
        model.gelu(inner, active);
        model.linear(active, (INNER, WIDTH), Some(between), output);
    }
    model.norm(output, normed);
    let chances = model.activations(WORDS);
    model.linear(normed, (WIDTH, WORDS), None, chances);
    model.softmax(chances);
    model.made
}

/// The application as far as it is made.
struct Model {
    random: Random,
    made: Application,
}

impl Model {
    fn add(&mut self, buffer: Buffer) -> usize {
        self.made.buffers.push(buffer);
        self.made.buffers.len() - 1
    }

    /// Halves between -`scale` and `scale`.
    fn numbers(&mut self, count: u32, scale: f32) -> usize {
        let random = &mut self.random;
        let number = |_| half(scale * (2.0 * random.part() - 1.0));
        let bytes = (0..count).map(number).flat_map(u16::to_le_bytes).collect();
        self.add(Buffer::of(bytes))
    }

    /// Room for halves of all tokens.
    fn activations(&mut self, columns: u32) -> usize {
        self.add(Buffer::zeros(2 * u64::from(TOKENS * columns)))
    }

    fn launch(&mut self, kernel: &str, grid: Dim3, given: &[Param]) {
        let mut list = LIST.lines().map(|line| line.split(' ').collect::<Vec<_>>()).enumerate();
        let found = list.find(|(_, line)| line.first() == Some(&kernel));
        let number = |at: usize| {
            let text = found.as_ref().and_then(|(_, line)| line.get(at));
            text.and_then(|text| text.parse().ok()).unwrap_or(0)
        };
        let mut step = Step::new(kernel, grid, Dim3::linear(number(1)), given);
        step.module = found.as_ref().map_or(0, |(module, _)| *module);
        step.dynamic_shared = number(2);
        // Triton's kernels take two pointers more, to scratch memory that these do not want.
        step.params.resize(step.params.len().next_multiple_of(8) + 16, 0);
        self.made.pass.push(step);
    }

    fn norm(&mut self, from: usize, to: usize) {
        let weights = self.numbers(WIDTH, 1.0);
        let bias = self.numbers(WIDTH, 0.25);
        let given = [Address(from), Address(weights), Address(bias), Address(to), Word(WIDTH)];
        self.launch("transformer_norm", Dim3::linear(TOKENS), &given);
    }

    /// A product with weights of so many rows and columns, and a bias; `added` is added.
    fn linear(
        &mut self,
        from: usize,
        (rows, columns): (u32, u32),
        added: Option<usize>,
        to: usize,
    ) {
        let weights = self.numbers(rows * columns, 0.125);
        let bias = self.numbers(columns, 0.25);
        let kernel = if added.is_some() { "transformer_linear_add" } else { "transformer_linear" };
        let sizes = [Word(TOKENS), Word(columns), Word(rows)];
        let given = [Some(from), Some(weights), Some(bias), added, Some(to)];
        let given: Vec<Param> = given.into_iter().flatten().map(Address).chain(sizes).collect();
        let grid = plane(TOKENS.div_ceil(TILE), columns.div_ceil(TILE));
        self.launch(kernel, grid, &given);
    }

    fn attention(&mut self, from: usize, to: usize) {
        // One by the root of a head's 32 columns.
        let scale = Float(0.176_776_7);
        let given = [Address(from), Address(to), Word(TOKENS), Word(HEADS), scale];
        self.launch("transformer_attention", plane(TOKENS.div_ceil(TILE), HEADS), &given);
    }

    fn gelu(&mut self, from: usize, to: usize) {
        let count = TOKENS * INNER;
        let given = [Address(from), Address(to), Word(count)];
        self.launch("transformer_gelu", Dim3::linear(count.div_ceil(GELU)), &given);
    }

    /// The last layer, whose result is the request's answer.
    fn softmax(&mut self, from: usize) {
        let to = self.add(Buffer::zeros(4 * u64::from(TOKENS * WORDS)));
        self.made.answer = Some(to);
        let given = [Address(from), Address(to), Word(WORDS)];
        self.launch("transformer_softmax", Dim3::linear(TOKENS), &given);
    }
}

/// The half below a number, towards 0; 0 for what a half has no exponent for.
fn half(number: f32) -> u16 {
    let bits = number.to_bits();
    let [sign, exponent, mantissa] = [bits >> 16 & 0x8000, bits >> 23 & 0xff, bits >> 13 & 0x3ff];
    let exponent = exponent.saturating_sub(127 - 15);
    let half = if (1..31).contains(&exponent) { sign | exponent << 10 | mantissa } else { 0 };
    u16::try_from(half).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outputs::Program;
    use partita_device::Device as _;
    use partita_emu::Spec;
    use partita_model::DeviceAddress;

    fn number(half: [u8; 2]) -> f64 {
        let bits = u32::from(u16::from_le_bytes(half));
        let [sign, exponent, mantissa] = [bits >> 15, bits >> 10 & 31, bits & 0x3ff];
        let size = match exponent {
            0 => f64::from(mantissa) / f64::from(1 << 24),
            _ => {
                (1.0 + f64::from(mantissa) / 1024.0)
                    * 2_f64.powi(i32::try_from(exponent).unwrap() - 15)
            }
        };
        if sign == 1 { -size } else { size }
    }

    fn numbers(bytes: &[u8]) -> Vec<f64> {
        bytes.chunks_exact(2).map(|half| number([half[0], half[1]])).collect()
    }

    #[test]
    fn halves_are_exact_where_they_can_be() {
        for value in [0.0, 1.0, -1.0, 0.5, 1.5, -0.125, 0.000_061_035_156, 1023.5] {
            let found = number(half(value).to_le_bytes());
            assert_eq!(found.to_bits(), f64::from(value).to_bits(), "{value}");
        }
        assert_eq!(half(1e-9), 0);
    }

    #[test]
    fn a_request_is_a_chain_of_35_launches_of_all_kernels() {
        let server = transformer(1);
        assert_eq!(server.pass.len(), 35);
        for (module, line) in LIST.lines().enumerate() {
            let name = line.split(' ').next().unwrap();
            assert!(TEXTS[module].contains(&format!(".entry {name}(")), "{name}");
            let used: Vec<_> = server.pass.iter().filter(|step| step.kernel == name).collect();
            assert!(!used.is_empty() && used.iter().all(|step| step.module == module), "{name}");
            let required = format!(".reqntid {}", used[0].block.x);
            assert!(TEXTS[module].contains(&required), "{name}: {required}");
        }
    }

    /// All buffers after one pass, without time.
    fn executed(server: &Application) -> Vec<Vec<u8>> {
        let spec = Spec::named("gpgpu-sim-24").unwrap();
        let mut program = Program::new(server, &spec).unwrap();
        program.launch_up_to(server.pass.len() as u64).unwrap();
        let contents = |(place, buffer): (&u64, &Buffer)| {
            let mut bytes = vec![0; usize::try_from(buffer.bytes).unwrap()];
            program.gpu.peek(DeviceAddress(*place), &mut bytes).unwrap();
            bytes
        };
        program.places.iter().zip(&server.buffers).map(contents).collect()
    }

    /// What a kernel should have made of matrices of `f64`, row by row.
    fn expected(step: &Step, given: &[Vec<f64>], words: &[u32]) -> Vec<f64> {
        let row_of = |x: &[f64], columns: usize, row: usize| x[row * columns..][..columns].to_vec();
        let tokens = TOKENS as usize;
        match step.kernel.as_str() {
            "transformer_norm" => {
                let columns = words[0] as usize;
                let of_row = |row| {
                    let x = row_of(&given[0], columns, row);
                    let mean = x.iter().sum::<f64>() / columns as f64;
                    let squares = x.iter().map(|x| (x - mean).powi(2)).sum::<f64>();
                    let scale = 1.0 / (squares / columns as f64 + 1e-5).sqrt();
                    let shifted =
                        |(at, x): (usize, f64)| (x - mean) * scale * given[1][at] + given[2][at];
                    x.into_iter().enumerate().map(shifted).collect::<Vec<_>>()
                };
                (0..tokens).flat_map(of_row).collect()
            }
            "transformer_linear" | "transformer_linear_add" => {
                let (n, k) = (words[1] as usize, words[2] as usize);
                let at = |place: usize| {
                    let (row, column) = (place / n, place % n);
                    let products = (0..k).map(|i| given[0][row * k + i] * given[1][i * n + column]);
                    let sum = products.sum::<f64>() + given[2][column];
                    sum + if given.len() > 4 { given[3][place] } else { 0.0 }
                };
                (0..tokens * n).map(at).collect()
            }
            "transformer_attention" => {
                let (width, size) = (WIDTH as usize, (WIDTH / HEADS) as usize);
                let part = |token: usize, which: usize, column: usize| {
                    given[0][token * 3 * width + which * width + column]
                };
                let at = |place: usize| {
                    let (token, column) = (place / width, place % width);
                    let first = column / size * size;
                    let score = |seen: usize| {
                        let parts = first..first + size;
                        let products = parts.map(|c| part(token, 0, c) * part(seen, 1, c));
                        (products.sum::<f64>() / (size as f64).sqrt()).exp()
                    };
                    let powers: Vec<f64> = (0..=token).map(score).collect();
                    let mixed = powers.iter().enumerate();
                    let mixed = mixed.map(|(seen, power)| power * part(seen, 2, column));
                    mixed.sum::<f64>() / powers.iter().sum::<f64>()
                };
                (0..tokens * width).map(at).collect()
            }
            "transformer_gelu" => {
                let root = (2.0 / std::f64::consts::PI).sqrt();
                let of = |x: &f64| 0.5 * x * (1.0 + (root * (x + 0.044715 * x.powi(3))).tanh());
                given[0].iter().map(of).collect()
            }
            "transformer_softmax" => {
                let columns = words[0] as usize;
                let of_row = |row| {
                    let powers: Vec<f64> =
                        row_of(&given[0], columns, row).into_iter().map(f64::exp).collect();
                    let sum = powers.iter().sum::<f64>();
                    powers.into_iter().map(move |power| power / sum)
                };
                (0..tokens).flat_map(of_row).collect()
            }
            other => panic!("{other}"),
        }
    }

    /// Each kernel of the last layer and after it, against the same in `f64` from what it read.
    /// Earlier layers wrote the same memory.
    #[test]
    fn every_kernel_computes_what_its_name_says() {
        let server = transformer(1);
        let memory = executed(&server);
        let floats = |bytes: &[u8]| -> Vec<f64> {
            let float = |word: &[u8]| f64::from(f32::from_le_bytes(word.try_into().unwrap()));
            bytes.chunks_exact(4).map(float).collect()
        };
        let mut seen = std::collections::BTreeSet::new();
        let mut written = std::collections::BTreeSet::new();
        // From the end: what was written later is not what a launch read or wrote.
        for step in server.pass.iter().rev() {
            let buffers: Vec<usize> = step.pointers.iter().map(|pointer| pointer.buffer).collect();
            let (&to, from) = buffers.split_last().unwrap();
            if buffers.iter().any(|buffer| written.contains(buffer)) {
                written.insert(to);
                continue;
            }
            written.insert(to);
            let given: Vec<Vec<f64>> = buffers.iter().map(|&at| numbers(&memory[at])).collect();
            assert!(from.iter().all(|&at| memory[at].iter().any(|byte| *byte != 0)));
            let words: Vec<u32> = step.params[8 * buffers.len()..]
                .chunks_exact(4)
                .map(|word| u32::from_le_bytes(word.try_into().unwrap()))
                .collect();
            let expected = expected(step, &given, &words);
            let is_float = step.kernel == "transformer_softmax";
            let found = if is_float { floats(&memory[to]) } else { numbers(&memory[to]) };
            assert_eq!(found.len(), expected.len(), "{}", step.kernel);
            for (place, (found, expected)) in found.iter().zip(&expected).enumerate() {
                let room = 4e-3 * expected.abs().max(0.25);
                assert!(
                    (found - expected).abs() <= room,
                    "{}[{place}]: {found}, {expected}",
                    step.kernel
                );
            }
            seen.insert(step.kernel.clone());
        }
        assert_eq!(seen.len(), TEXTS.len(), "{seen:?}");
    }
}
