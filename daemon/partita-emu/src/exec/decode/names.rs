//! Names in PTX: special registers, and addresses of variables and functions.

use super::calls::function_address;
use super::{Decoder, Result, align};
use crate::exec::inst::{FRAME, Op, Source, Target};
use crate::exec::program::{Constant, OfCta, SharedVariable};
use partita_ptx::{Part, Space as PtxSpace, Special, Symbol, VarId};

impl Decoder<'_> {
    pub(super) fn local_room(&mut self, var: VarId) -> Result<u32> {
        let variable = self.module.var(var);
        let bytes = variable.bytes().filter(|&bytes| bytes <= 512 << 10);
        let Some(bytes) = bytes else {
            return self.refuse("a local variable is too large");
        };
        self.room(bytes, variable.alignment() as u32)
    }

    /// The row of a special register.
    pub(super) fn special(&mut self, special: Special, part: Part, bits: u32) -> Result<Source> {
        use crate::exec::inst::Hardware as H;
        let component = match part {
            Part::X | Part::Whole => 0,
            Part::Y => 1,
            Part::Z => 2,
            _ => 3,
        };
        let pick = |all: [Constant; 3]| all.get(component).copied().unwrap_or(Constant::Bits(0));
        let constant = match special {
            Special::Ntid => Some(pick([Constant::NtidX, Constant::NtidY, Constant::NtidZ])),
            Special::Nctaid => {
                Some(pick([Constant::NctaidX, Constant::NctaidY, Constant::NctaidZ]))
            }
            Special::Nclusterid => {
                Some(pick([Constant::NclusteridX, Constant::NclusteridY, Constant::NclusteridZ]))
            }
            Special::ClusterNctaid => Some(pick([
                Constant::ClusterNctaidX,
                Constant::ClusterNctaidY,
                Constant::ClusterNctaidZ,
            ])),
            Special::ClusterNctarank => Some(Constant::ClusterNctarank),
            Special::IsExplicitCluster => Some(Constant::IsExplicitCluster),
            Special::Nwarpid => Some(Constant::Nwarpid),
            Special::Nsmid => Some(Constant::Nsmid),
            Special::Gridid => Some(Constant::Gridid),
            Special::DynamicSmemSize => Some(Constant::DynamicShared),
            Special::TotalSmemSize | Special::AggrSmemSize => Some(Constant::TotalShared),
            Special::Envreg(_) | Special::Pm(_) | Special::Pm64(_) | Special::CurrentGraphExec => {
                Some(Constant::Bits(0))
            }
            Special::ReservedSmemOffsetBegin
            | Special::ReservedSmemOffsetEnd
            | Special::ReservedSmemOffsetCap
            | Special::ReservedSmemOffset(_) => Some(Constant::Bits(0)),
            Special::Tid if component == 3 => Some(Constant::Bits(0)),
            Special::Ctaid | Special::Clusterid | Special::ClusterCtaid if component == 3 => {
                Some(Constant::Bits(0))
            }
            _ => None,
        };
        if let Some(constant) = constant {
            return Ok(self.constant(constant, bits));
        }
        let narrow = match special {
            Special::Tid => {
                let row = match self.program.fixed.tid[component] {
                    Some(row) => row | FRAME,
                    None => {
                        let row = self.fresh32();
                        self.program.fixed.tid[component] = Some(row & !FRAME);
                        row
                    }
                };
                Some(row)
            }
            Special::Laneid => Some(self.laneid()),
            Special::Ctaid => {
                let all = [OfCta::CtaidX, OfCta::CtaidY, OfCta::CtaidZ];
                Some(self.own_value(all[component.min(2)]))
            }
            Special::Clusterid => {
                let all = [OfCta::ClusteridX, OfCta::ClusteridY, OfCta::ClusteridZ];
                Some(self.own_value(all[component.min(2)]))
            }
            Special::ClusterCtaid => {
                let all = [OfCta::ClusterCtaidX, OfCta::ClusterCtaidY, OfCta::ClusterCtaidZ];
                Some(self.own_value(all[component.min(2)]))
            }
            Special::ClusterCtarank => Some(self.own_value(OfCta::ClusterCtarank)),
            Special::LanemaskEq
            | Special::LanemaskLe
            | Special::LanemaskLt
            | Special::LanemaskGe
            | Special::LanemaskGt => {
                let row = self.fresh32();
                let lane = self.laneid();
                let how = match special {
                    Special::LanemaskEq => 0,
                    Special::LanemaskLe => 1,
                    Special::LanemaskLt => 2,
                    Special::LanemaskGe => 3,
                    _ => 4,
                };
                self.emit_lane(
                    lanemask,
                    how,
                    [Source::R32(lane), Source::None, Source::None],
                    Target::R32(row),
                );
                Some(row)
            }
            _ => None,
        };
        let row = match narrow {
            Some(row) => row,
            None => {
                let hardware = match special {
                    Special::Smid => H::Smid,
                    Special::Warpid => H::Warpid,
                    Special::Clock => H::Clock,
                    Special::ClockHi => H::ClockHi,
                    Special::Clock64 => H::Clock64,
                    Special::Globaltimer => H::Globaltimer,
                    Special::GlobaltimerLo => H::GlobaltimerLo,
                    Special::GlobaltimerHi => H::GlobaltimerHi,
                    other => {
                        let mut name = String::new();
                        other.write(&mut name);
                        return self.refuse(format!("special register {name}"));
                    }
                };
                if bits == 64 {
                    let row = self.fresh64();
                    self.emit_aux(Op::Special64, hardware as u16, row, 0, 0, 0);
                    return Ok(Source::R64(row));
                }
                let row = self.fresh32();
                self.emit_aux(Op::Special32, hardware as u16, row, 0, 0, 0);
                row
            }
        };
        if bits == 64 {
            let wide = self.fresh64();
            self.emit(Op::U64FromU32, wide, row, 0, 0, 0);
            return Ok(Source::R64(wide));
        }
        Ok(Source::R32(row))
    }

    /// The row of a value that is the CTA's own.
    pub(super) fn own_value(&mut self, which: OfCta) -> u32 {
        let row = self.constant32(Constant::OfCta(which));
        self.program.cta_rows[which as usize] = Some(row);
        row
    }

    pub(super) fn laneid(&mut self) -> u32 {
        if let Some(row) = self.program.fixed.laneid {
            return row | FRAME;
        }
        let row = self.fresh32();
        self.program.fixed.laneid = Some(row & !FRAME);
        row
    }

    /// The address of a symbol in its own space.
    pub(super) fn symbol(&mut self, symbol: Symbol, offset: i32, bits: u32) -> Result<Source> {
        if let Symbol::Func(id) = symbol {
            let address = function_address(self.module, id).wrapping_add(i64::from(offset) as u64);
            return Ok(self.constant(Constant::Bits(address), bits));
        }
        let Symbol::Var(var) = symbol else {
            return self.refuse(match symbol {
                Symbol::Label(_) => "the address of a label",
                _ => "a name that is not declared",
            });
        };
        if let Some((base, place)) = self.place_in_frame(var) {
            let plus = self.constant64(Constant::Bits(
                u64::from(place).wrapping_add(i64::from(offset) as u64),
            ));
            let wide = self.fresh64();
            self.emit(Op::Add64, wide, base, plus, 0, 0);
            if bits == 64 {
                return Ok(Source::R64(wide));
            }
            let narrow = self.fresh32();
            self.emit(Op::Low32, narrow, wide, 0, 0, 0);
            return Ok(Source::R32(narrow));
        }
        let (constant, plain) = self.address_of(var)?;
        let offset = i64::from(offset) as u64;
        match constant {
            Some(constant) if offset == 0 => Ok(self.constant(constant, bits)),
            Some(constant) => {
                let base = self.constant(constant, bits);
                let plus = self.constant(Constant::Bits(offset), bits);
                match (base, plus) {
                    (Source::R64(a), Source::R64(b)) => {
                        let d = self.fresh64();
                        self.emit(Op::Add64, d, a, b, 0, 0);
                        Ok(Source::R64(d))
                    }
                    (Source::R32(a), Source::R32(b)) => {
                        let d = self.fresh32();
                        self.emit(Op::Add32, d, a, b, 0, 0);
                        Ok(Source::R32(d))
                    }
                    _ => self.refuse("an address of this width"),
                }
            }
            None if self.module.var(var).space.is_shared() => {
                Ok(self.constant(Constant::SharedAt(plain.wrapping_add(offset)), bits))
            }
            None => Ok(self.constant(Constant::Bits(plain.wrapping_add(offset)), bits)),
        }
    }

    /// The place of a local variable or parameter in the frame of a function with its own code: the
    /// row of the frame pointer, and the offset in bytes.
    pub(super) fn place_in_frame(&self, var: VarId) -> Option<(u32, u32)> {
        let stack = self.thread_stack.as_ref().filter(|_| self.frame.is_some())?;
        let scope = self.scope();
        let place = scope.locals.get(&var).or_else(|| scope.params.get(&var))?;
        Some((stack.frame, *place))
    }

    /// A variable's address in its own state space: a constant of the launch, or a number. That of
    /// a shared variable counts from the beginning of the CTA's own shared memory.
    pub(super) fn address_of(&mut self, var: VarId) -> Result<(Option<Constant>, u64)> {
        let variable = self.module.var(var);
        match variable.space {
            PtxSpace::Global | PtxSpace::Const => match self.image.address(self.module, var) {
                Some(address) => Ok((None, address)),
                None => self.refuse(format!(
                    "`{}` is declared but not defined",
                    self.module.text(variable.name)
                )),
            },
            space if space.is_shared() => match variable.bytes() {
                None => {
                    let end =
                        align(self.program.static_shared, variable.alignment().max(16) as u32);
                    self.program.static_shared = end;
                    Ok((Some(Constant::StaticShared), 0))
                }
                Some(_) => Ok((None, u64::from(self.shared_place(var)?))),
            },
            PtxSpace::Local => match self.scope().locals.get(&var) {
                Some(&place) => Ok((None, u64::from(place))),
                None => self.refuse("a local variable of module scope"),
            },
            space if space.is_param() => {
                if let Some(&place) = self.scope().params.get(&var) {
                    return Ok((None, u64::from(place)));
                }
                match self.kernel_params.get(&var) {
                    Some(parameter) => Ok((None, u64::from(parameter.offset))),
                    None => self.refuse("a parameter that is not in scope"),
                }
            }
            other => self.refuse(format!("a variable in the space .{}", other.text())),
        }
    }

    pub(super) fn shared_place(&mut self, var: VarId) -> Result<u32> {
        if let Some(&place) = self.shared.get(&var) {
            return Ok(place);
        }
        let variable = self.module.var(var);
        let bytes = variable
            .bytes()
            .and_then(|bytes| u32::try_from(bytes).ok())
            .filter(|&bytes| bytes <= 1 << 20);
        let Some(bytes) = bytes else {
            return self.refuse("a shared variable is too large");
        };
        let start = align(self.program.static_shared, variable.alignment() as u32);
        self.program.static_shared = start + bytes;
        self.shared.insert(var, start);
        let name = self.module.text(variable.name).to_owned();
        self.program.shared_variables.push(SharedVariable { name, start, bytes });
        Ok(start)
    }
}

/// `%lanemask_*` from `%laneid`.
fn lanemask(x: [u64; 3], how: u32) -> u64 {
    let bit = 1_u64 << (x[0] & 31);
    let all = 0xffff_ffff;
    match how {
        0 => bit,
        1 => bit | (bit - 1),
        2 => bit - 1,
        3 => all & !(bit - 1),
        _ => all & !(bit | (bit - 1)),
    }
}
