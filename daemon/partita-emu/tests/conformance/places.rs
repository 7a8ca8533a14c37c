//! Vector registers, addresses that are variables' names, and functions that take registers. What
//! is wanted is what ptxas' machine code gives: components are registers of their own, a named
//! address is of the variable's space (`LDS` for a shared variable), and arguments are values.

use crate::harness::{Random, Table, Want, triples};

fn inputs(seed: u64) -> Vec<[u64; 3]> {
    let edges = [0, 1, 2, 0xffff, 0x1_0000, 0x7fff_ffff, 0xffff_ffff, 1 << 32, u64::MAX];
    triples(320, seed, &edges, Random::next)
}

fn low(x: u64) -> u64 {
    x & 0xffff_ffff
}

type Case = (&'static str, &'static str, fn([u64; 3]) -> u64);

fn check(family: &'static str, seed: u64, cases: &[Case]) {
    let mut table = Table::new(family);
    for (text, shape, want) in cases {
        table.check(text, shape, &inputs(seed), |x| Want::Bits(want(x)));
    }
    table.finish();
}

#[test]
fn vector_registers() {
    let cases: [Case; 12] = [
        ("{.reg .v2 .b32 v; mov.v2.b32 v, {{a}, {b}}; mov.b64 {d}, v;}", "d rr", |[a, b, _]| {
            a | b << 32
        }),
        ("{.reg .v2 .u32 v; mov.b64 v, {a}; sub.u32 {d}, v.y, v.x;}", "r d", |[a, ..]| {
            (a >> 32).wrapping_sub(a)
        }),
        (
            "{.reg .v2 .u32 v, w; mov.v2.u32 v, {{a}, {b}}; mov.v2.u32 v, {v.y, v.x}; \
             mov.v2.u32 w, v; mov.b64 {d}, {w.x, w.y};}",
            "d rr",
            |[a, b, _]| b | a << 32,
        ),
        (
            "{.reg .v4 .u16 v; mov.b64 v, {a}; mov.v4.u16 {%s0, %s1, %s2, %s3}, v; \
             mov.b64 {d}, {%s3, %s2, %s1, %s0};}",
            "d d",
            |[a, ..]| (0..4).map(|i| (a >> (16 * i) & 0xffff) << (48 - 16 * i)).sum(),
        ),
        (
            "mov.v4.u16 {%s0, %s1, %s2, %s3}, {a}; mov.v4.u16 {d}, {%s1, %s0, %s3, %s2}",
            "d d",
            |[a, ..]| (a >> 16 & 0xffff_0000_ffff) | (a & 0xffff_0000_ffff) << 16,
        ),
        (
            "{.reg .v4 .u32 v; mov.u32 v.x, {a}; mov.u32 v.g, {b}; mov.u32 v.z, {c}; \
             add.u32 v.w, v.x, v.y; mad.lo.u32 {d}, v.a, v.b, v.r;}",
            "r rrr",
            |[a, b, c]| a.wrapping_add(b).wrapping_mul(c).wrapping_add(a),
        ),
        (
            "{.reg .v2 .u32 v; ld.global.v2.u32 v, [%x]; xor.b32 {d}, v.x, v.y;}",
            "r d",
            |[a, ..]| a ^ a >> 32,
        ),
        (
            "{.shared .align 16 .b8 room[1024]; .reg .v2 .u64 v; .reg .v4 .b32 w; \
             mov.v2.u64 v, {{a}, {b}}; mov.u32 %t1, %tid.x; shl.b32 %t1, %t1, 4; \
             mov.u32 %t2, room; add.u32 %t1, %t1, %t2; st.shared.v2.u64 [%t1], v; \
             ld.shared.v4.b32 w, [%t1]; mov.b64 {d}, {w.z, w.x};}",
            "d dd",
            |[a, b, _]| low(b) | a << 32,
        ),
        (
            "{.reg .v4 .b32 v, w; ld.global.v2.b32 {v.x, v.w}, [%x]; mov.v4.b32 w, v; \
             mov.v4.b32 {%t1, _, _, %t2}, w; sub.u32 {d}, %t2, %t1;}",
            "r d",
            |[a, ..]| (a >> 32).wrapping_sub(a),
        ),
        (
            "{.reg .v2 .u32 v; mov.v2.u32 v, {{a}, 7}; @%q0 mov.u32 v.y, 9; \
             setp.gt.u32 %q1, {a}, {b}; @%q1 mov.v2.u32 v, {v.y, v.x}; mov.b64 {d}, v;}",
            "d rr",
            |[a, b, _]| if a > b { 7 | a << 32 } else { a | 7 << 32 },
        ),
        (
            "{.reg .v4 .u32 v, w, e; mov.v4.u32 v, %ntid; mov.v4.u32 w, %tid; \
             mov.v4.u32 e, %ctaid; mad.lo.u32 {d}, e.x, v.x, w.x; add.u32 {d}, {d}, w.w; \
             sub.u32 {d}, {d}, %i; add.u32 {d}, {d}, {a};}",
            "r r",
            |[a, ..]| a,
        ),
        (
            "{.reg .v2 .f64 v; mov.v2.f64 v, {0d4000000000000000, 0d4008000000000000}; \
             fma.rn.f64 v.x, v.x, v.y, v.x; cvt.rzi.u32.f64 {d}, v.x; add.u32 {d}, {d}, {a};}",
            "r r",
            |[a, ..]| a + 8,
        ),
    ];
    check("vector registers", 31, &cases);
}

#[test]
fn named_addresses() {
    let cases: [Case; 7] = [
        ("{.local .align 8 .b32 l[2]; st.u32 [l+4], {a}; ld.u32 {d}, [l+4];}", "r r", |[a, ..]| a),
        (
            "{.local .align 16 .b32 l[4]; st.v2.u32 [l+8], {{a}, {b}}; ld.u64 {d}, [l+8];}",
            "d rr",
            |[a, b, _]| a | b << 32,
        ),
        (
            "{.shared .b32 s; bar.sync 0; atom.exch.b32 %t1, [s], 5; bar.sync 0; \
             ld.u32 {d}, [s]; add.u32 {d}, {d}, {a};}",
            "r r",
            |[a, ..]| a + 5,
        ),
        (
            ".global .align 8 .b32 g[4] = {3, 5, 7, 11};\n@@\n\
             ld.v2.u32 {%t1, %t2}, [g+8]; mad.lo.u32 {d}, {a}, %t1, %t2",
            "r r",
            |[a, ..]| a.wrapping_mul(7) + 11,
        ),
        (
            ".shared .align 8 .b32 s[4];\n@@\n\
             mov.u32 %t1, %tid.x; setp.eq.u32 %q1, %t1, 0; @%q1 st.volatile.u32 [s+4], 40; \
             bar.sync 0; ld.volatile.u32 %t2, [s+4]; bar.sync 0; red.max.u32 [s+4], 41; \
             bar.sync 0; ld.shared.u32 %t3, [s+4]; add.u32 {d}, %t2, %t3; add.u32 {d}, {d}, {a}",
            "r r",
            |[a, ..]| a + 81,
        ),
        (
            ".global .b64 g = 9;\n@@\natom.max.u64 %u1, [g], 4; add.u64 {d}, %u1, {a}",
            "d d",
            |[a, ..]| a.wrapping_add(9),
        ),
        (
            ".shared .align 8 .b64 b;\n@@\n\
             mov.u32 %t1, %tid.x; setp.eq.u32 %q1, %t1, 0; @%q1 mbarrier.init.b64 [b], 4; \
             bar.sync 0; mbarrier.pending_count.b64 %t2, 0; ld.b64 %u1, [b]; ld.shared.b64 %u2, \
             [b]; sub.u64 %u1, %u1, %u2; add.u64 {d}, {a}, %u1",
            "d d",
            |[a, ..]| a,
        ),
    ];
    check("named addresses", 32, &cases);
}

#[test]
fn functions_of_registers() {
    let cases: [Case; 9] = [
        (
            ".func (.reg .u32 r) f(.reg .u32 x, .reg .u32 y) { mad.lo.u32 r, x, x, y; ret; }\n@@\n\
             call ({d}), f, ({a}, 3)",
            "r r",
            |[a, ..]| a.wrapping_mul(a).wrapping_add(3),
        ),
        // The function's own copy changes, not the caller's register.
        (
            ".func (.reg .u32 r) f(.reg .u32 x) { add.u32 x, x, 1; mov.u32 r, x; ret; }\n@@\n\
             call (%t1), f, ({a}); call.uni (%t1), f, (%t1); sub.u32 {d}, %t1, {a}; \
             add.u32 {d}, {d}, {a}",
            "r r",
            |[a, ..]| a.wrapping_add(2),
        ),
        (
            ".func (.reg .u64 r) f(.reg .v2 .u32 x) { mov.b64 r, {x.y, x.x}; ret; }\n@@\n\
             {.reg .v2 .u32 v; mov.b64 v, {a}; call ({d}), f, (v);}",
            "d d",
            |[a, ..]| a.rotate_left(32),
        ),
        (
            ".func (.reg .v2 .u32 r) f(.reg .u32 x) { mov.u32 r.x, x; add.u32 r.y, x, 1; ret; }\n\
             @@\n{.reg .v2 .u32 v; call (v), f, ({a}); mov.b64 {d}, v;}",
            "d r",
            |[a, ..]| a | low(a + 1) << 32,
        ),
        // Registers to `.param`, a `.param` variable to a register, several results.
        (
            ".func (.param .b32 r) f(.param .b32 x, .reg .u32 y) { .reg .b32 t; \
             ld.param.b32 t, [x]; sub.u32 t, t, y; st.param.b32 [r], t; ret; }\n@@\n\
             {.param .b32 p; st.param.b32 [p], {b}; call ({d}), f, ({a}, p);}",
            "r rr",
            |[a, b, _]| a.wrapping_sub(b),
        ),
        (
            ".func (.reg .u32 r, .reg .u32 s) f(.reg .u32 x, .reg .u32 y) { mov.u32 r, y; \
             mov.u32 s, x; ret; }\n@@\n\
             mov.u32 %t1, {a}; mov.u32 %t2, {b}; call (%t1, %t2), f, (%t1, %t2); \
             mov.b64 {d}, {%t1, %t2}",
            "d rr",
            |[a, b, _]| b | a << 32,
        ),
        // Each depth has registers of its own.
        (
            ".func (.reg .u32 r) f(.reg .u32 x) { .reg .pred p; .reg .u32 y; setp.lt.u32 p, x, 2; \
             mov.u32 r, x; @p ret; sub.u32 y, x, 1; call (r), f, (y); sub.u32 y, x, 2; \
             call (y), f, (y); add.u32 r, r, y; ret; }\n@@\n\
             and.b32 %t1, {a}, 7; call ({d}), f, (%t1)",
            "r r",
            |[a, ..]| [0, 1, 1, 2, 3, 5, 8, 13][(a & 7) as usize],
        ),
        (
            ".func (.reg .u32 r) f(.reg .u32 x) { add.u32 r, x, 10; ret; }\n\
             .func (.reg .u32 r) g(.reg .u32 x) { mul.lo.u32 r, x, 10; ret; }\n@@\n\
             setp.gt.u32 %q1, {a}, {b}; mov.u64 %u1, f; mov.u64 %u2, g; \
             selp.b64 %u1, %u1, %u2, %q1; \
             P: .callprototype (.reg .u32 _) _ (.reg .u32 _); call ({d}), %u1, ({a}), P",
            "r rr",
            |[a, b, _]| if a > b { a + 10 } else { a.wrapping_mul(10) },
        ),
        // Lanes that skip the call keep what they have.
        (
            ".func (.reg .f32 r) f(.reg .f32 x) { add.f32 r, x, x; ret; }\n@@\n\
             mov.b32 {d}, {a}; setp.gt.u32 %q1, {a}, {b}; {.reg .f32 t; mov.f32 t, 0f40400000; \
             @%q1 call (t), f, (t); cvt.rzi.u32.f32 {d}, t;}",
            "r rr",
            |[a, b, _]| if a > b { 6 } else { 3 },
        ),
    ];
    check("functions of registers", 33, &cases);
}
