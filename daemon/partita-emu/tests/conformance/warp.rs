//! What threads of a warp do together: `shfl`, `vote`, `match`, `redux`, `elect`, with one group of
//! members and with several groups at once (PTX ISA, "shfl.sync", "vote.sync", "match.sync",
//! "redux.sync", "elect.sync").

use crate::harness::{Random, Table, Want, triples};

/// Members of each lane: whole warps, halves, quarters, odd and even lanes, single lanes.
const PARTITIONS: [fn(u32) -> u32; 5] = [
    |_| u32::MAX,
    |lane| 0xffff << (lane / 16 * 16),
    |lane| 0xff << (lane / 8 * 8),
    |lane| 0x5555_5555 << (lane % 2),
    |lane| 1 << lane,
];

/// Warps of 32 lanes, two for each partition: a value, another, and the lane's members.
fn inputs(seed: u64, values: &[u64]) -> Vec<[u64; 3]> {
    let mut random = Random::new(seed);
    let mut all = Vec::new();
    for partition in PARTITIONS {
        for _ in 0..4 {
            for lane in 0..32 {
                all.push([random.pick(values), random.next(), u64::from(partition(lane))]);
            }
        }
    }
    all
}

/// The lanes that `lane` names.
fn members(warp: &[[u64; 3]], lane: usize) -> impl Iterator<Item = usize> + use<> {
    let mask = warp[lane][2];
    (0..32).filter(move |&other| mask >> other & 1 == 1)
}

#[test]
fn votes() {
    let mut table = Table::new("vote");
    for values in [&[0, 1][..], &[0], &[1], &[0, 1, 1, 1, 1, 1, 1, 1]] {
        let inputs = inputs(1, values);
        for not in ["", "!"] {
            let truth = |warp: &[[u64; 3]], lane: usize| (warp[lane][0] == 1) == not.is_empty();
            let text = format!("vote.sync.ballot.b32 {{d}}, {not}{{a}}, {{c}}");
            table.check_warps(&text, "r prr", &inputs, |warp, lane| {
                Want::Bits(
                    members(warp, lane).map(|other| u64::from(truth(warp, other)) << other).sum(),
                )
            });
            for mode in ["all", "any", "uni"] {
                let text = format!("vote.sync.{mode}.pred {{d}}, {not}{{a}}, {{c}}");
                table.check_warps(&text, "p prr", &inputs, |warp, lane| {
                    let all = members(warp, lane).all(|other| truth(warp, other));
                    let any = members(warp, lane).any(|other| truth(warp, other));
                    Want::Bits(u64::from(match mode {
                        "all" => all,
                        "any" => any,
                        _ => all || !any,
                    }))
                });
            }
        }
    }
    table.finish();
}

/// Lanes that their own masks lack: each gets what the lanes that are together say, of those in its
/// mask. The values follow ptxas' `WARPSYNC mask`, `VOTE.ANY ballot`, `LOP3 ballot & mask`, with
/// `active & mask` as those who count for `all` and `uni`.
#[test]
fn votes_of_outsiders() {
    let mut table = Table::of_outsiders("votes of lanes outside of their masks");
    let without: [fn(u32) -> u32; 5] = [
        |lane| !(1 << lane),
        |lane| 1 << (lane ^ 1),
        |lane| 0xff00_ff00_u32.rotate_left(lane / 8 * 8),
        |lane| !lane & !(1 << lane),
        |_| 0,
    ];
    let mut random = Random::new(7);
    for values in [&[0, 1][..], &[0], &[1], &[0, 1, 1, 1, 1, 1, 1, 1]] {
        let mut inputs = Vec::new();
        for mask in without {
            inputs.extend(
                (0..32).map(|lane| [random.pick(values), random.next(), u64::from(mask(lane))]),
            );
        }
        let bits = |warp: &[[u64; 3]], lane: usize| -> u64 {
            members(warp, lane).map(|other| (warp[other][0] & 1) << other).sum()
        };
        let text = "vote.sync.ballot.b32 {d}, {a}, {c}";
        table.check_warps(text, "r prr", &inputs, |warp, lane| Want::Bits(bits(warp, lane)));
        for mode in ["all", "any", "uni"] {
            let text = format!("vote.sync.{mode}.pred {{d}}, {{a}}, {{c}}");
            table.check_warps(&text, "p prr", &inputs, |warp, lane| {
                let (bits, mask) = (bits(warp, lane), warp[lane][2]);
                Want::Bits(u64::from(match mode {
                    "all" => bits == mask,
                    "any" => bits != 0,
                    _ => bits == mask || bits == 0,
                }))
            });
        }
    }
    table.finish();
}

#[test]
fn matches() {
    let mut table = Table::new("match");
    for values in [&[0, 1, 2, u64::MAX, 1 << 32][..], &[7], &[7, 7, 7, 7, 7, 7, 7, 7, 8]] {
        let inputs = inputs(2, values);
        for (bits, kind) in [(32, 'r'), (64, 'd')] {
            let equal = |warp: &[[u64; 3]], lane: usize| -> u64 {
                members(warp, lane)
                    .map(|other| u64::from(warp[other][0] == warp[lane][0]) << other)
                    .sum()
            };
            table.check_warps(
                &format!("match.any.sync.b{bits} {{d}}, {{a}}, {{c}}"),
                &format!("r {kind}rr"),
                &inputs,
                |warp, lane| Want::Bits(equal(warp, lane)),
            );
            let text = format!("match.all.sync.b{bits} {{d}}|%q1, {{a}}, {{c}}");
            table.check_warps(&text, &format!("r {kind}rr"), &inputs, |warp, lane| {
                let all = equal(warp, lane) == warp[lane][2];
                Want::Bits(if all { warp[lane][2] } else { 0 })
            });
            let text = format!("match.all.sync.b{bits} %t1|{{d}}, {{a}}, {{c}}");
            table.check_warps(&text, &format!("p {kind}rr"), &inputs, |warp, lane| {
                Want::Bits(u64::from(equal(warp, lane) == warp[lane][2]))
            });
        }
    }
    table.finish();
}

#[test]
fn reductions() {
    let mut table = Table::new("redux and elect");
    let inputs =
        inputs(3, &[0, 1, 5, 0x7fff_ffff, 0x8000_0000, 0xffff_ffff, 0xdead_beef, 0x0f0f_0f0f]);
    let signed = |x: u64| i64::from(x as u32 as i32);
    type Fold = (&'static str, fn(i64, i64) -> i64, bool);
    let folds: [Fold; 8] = [
        ("add.u32", |a, b| a.wrapping_add(b), false),
        ("min.u32", i64::min, false),
        ("max.u32", i64::max, false),
        ("min.s32", i64::min, true),
        ("max.s32", i64::max, true),
        ("and.b32", |a, b| a & b, false),
        ("or.b32", |a, b| a | b, false),
        ("xor.b32", |a, b| a ^ b, false),
    ];
    for (name, fold, is_signed) in folds {
        table.check_warps(
            &format!("redux.sync.{name} {{d}}, {{a}}, {{c}}"),
            "r rrr",
            &inputs,
            |warp, lane| {
                let value = |other: usize| {
                    if is_signed { signed(warp[other][0]) } else { warp[other][0] as i64 }
                };
                Want::Bits(members(warp, lane).map(value).reduce(fold).unwrap() as u64)
            },
        );
    }
    table.check_warps("elect.sync {d}|%q1, {c}", "r rrr", &inputs, |warp, lane| {
        Want::Bits(members(warp, lane).min().unwrap() as u64)
    });
    table.check_warps("elect.sync _|{d}, {c}", "p rrr", &inputs, |warp, lane| {
        Want::Bits(u64::from(members(warp, lane).min().unwrap() == lane))
    });
    table.finish();
}

#[test]
fn shuffles() {
    let mut table = Table::new("shfl");
    let inputs = triples(64, 4, &[1, 2, 3], Random::next);
    // CUDA's `__shfl_*_sync(…, width)`: the segment mask is 32 − width, the clamp 0 for `up` and 31
    // for the others.
    for width in [32_usize, 16, 8, 4, 2, 1] {
        for offset in [0_usize, 1, 2, 3, 7, 15, 16, 31] {
            for mode in ["up", "down", "bfly", "idx"] {
                let c = (32 - width) << 8 | if mode == "up" { 0 } else { 31 };
                // The lane that CUDA's guide says, and whether it is inside.
                let from = |lane: usize| -> Option<usize> {
                    let (first, end) = (lane / width * width, lane / width * width + width);
                    match mode {
                        "up" => lane.checked_sub(offset).filter(|&from| from >= first),
                        "down" => Some(lane + offset).filter(|&from| from < end),
                        "bfly" => Some(lane ^ offset).filter(|&from| from < end),
                        _ => Some(first + offset % width),
                    }
                };
                let text = format!("shfl.sync.{mode}.b32 {{d}}|%q1, {{a}}, {offset}, {c}, -1");
                table.check_warps(&text, "r r", &inputs, |warp, lane| {
                    Want::Bits(warp[from(lane).unwrap_or(lane)][0])
                });
                let text =
                    format!("shfl.sync.{mode}.b32 %t1|{{d}}, {{a}}, {offset}, {c}, 0xffffffff");
                table.check_warps(&text, "p r", &inputs, |_, lane| {
                    Want::Bits(u64::from(from(lane).is_some()))
                });
            }
        }
    }
    // Each lane asks another one.
    table.check_warps("shfl.sync.idx.b32 {d}, {a}, {b}, 31, -1", "r rr", &inputs, |warp, lane| {
        Want::Bits(warp[(warp[lane][1] % 32) as usize][0])
    });
    table.finish();
}

#[test]
fn groups_apart() {
    let mut table = Table::new("groups that come one after the other");
    let inputs = [inputs(5, &[0, 1]), inputs(6, &[0, 1, 1])].concat();
    // Odd and even lanes vote in ways of a branch that do not meet before.
    let text = "mov.u32 %t1, %laneid;\nand.b32 %t2, %t1, 1;\nsetp.eq.u32 %q1, %t2, 0;\n@%q1 bra \
        even;\n\
                vote.sync.ballot.b32 {d}, {a}, 0xaaaaaaaa;\nbra \
                meet;\neven:\nvote.sync.ballot.b32 {d}, {a}, 0x55555555;\nmeet:\n\
                mov.b32 {d}, {d}";
    table.check_warps(text, "r p", &inputs, |warp, lane| {
        let mine = (0..32).filter(|other| other % 2 == lane % 2);
        Want::Bits(mine.map(|other| warp[other][0] << other).sum())
    });
    // A lane leaves; the rest, who do not name it, go on.
    let text = "mov.u32 %t1, %laneid;\nmov.u32 {d}, 9;\nsetp.eq.u32 %q1, %t1, 5;\n@%q1 bra done;\n\
                vote.sync.ballot.b32 {d}, {a}, 0xffffffdf;\ndone:\nmov.b32 {d}, {d}";
    table.check_warps(text, "r p", &inputs, |warp, lane| {
        let all = (0..32).filter(|&other| other != 5).map(|other| warp[other][0] << other).sum();
        Want::Bits(if lane == 5 { 9 } else { all })
    });
    table.finish();
}
