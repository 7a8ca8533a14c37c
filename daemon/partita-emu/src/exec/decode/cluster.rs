//! Clusters: addresses in other CTAs' shared memory, the cluster's barrier, and stores that an
//! mbarrier counts.

use super::{Decoder, Result};
use crate::exec::async_store::AsyncStore;
use crate::exec::asynchronous::AsyncOp;
use crate::exec::cluster::{mapa, rank_of};
use crate::exec::inst::{Op, Source};
use partita_model::Dim3;
use partita_ptx::{Form, FuncId, Mod, Op as P, Operand, Space as PtxSpace, Type};

impl Decoder<'_> {
    /// Notes whether an instruction reaches other CTAs of the cluster.
    pub(super) fn note_cluster(&mut self, form: &Form) {
        let names_cluster = form.mods.contains(&Mod::Space(PtxSpace::SharedCluster));
        // A copy from global memory goes to the CTA's own shared memory, unless `mapa` says where.
        let reaches = match form.op {
            P::Mapa | P::Getctarank => true,
            P::Barrier => form.has(Mod::Cluster),
            P::Cp => form.has(Mod::Multicast),
            _ => names_cluster,
        };
        self.program.uses_cluster |= reaches;
    }

    /// What a kernel's directives say of clusters.
    pub(super) fn cluster_rules(&mut self, id: FuncId) {
        for directive in &self.module.func(id).directives {
            let get = |index: usize| directive.values.get(index).copied().unwrap_or(1).max(1);
            let rules = &mut self.program.cluster;
            match self.module.text(directive.name) {
                "reqnctapercluster" => rules.required = Some(Dim3::new(get(0), get(1), get(2))),
                "explicitcluster" => rules.explicit = true,
                "maxclusterrank" => rules.most = Some(get(0)),
                _ => {}
            }
        }
    }

    /// `mapa` and `getctarank`.
    pub(super) fn cluster_address(&mut self, form: &Form, operands: &[Operand]) -> Result<()> {
        let ty = form.last_type().unwrap_or(Type::U64);
        match (form.op, operands) {
            (P::Mapa, &[d, a, rank]) => {
                let (a, rank) = (self.place(a, ty)?, self.source(rank, Type::U32)?);
                let target = self.target(d, ty)?;
                self.emit_lane(mapa, 0, [a, rank, Source::None], target);
            }
            (P::Getctarank, &[d, a]) => {
                let a = self.place(a, ty)?;
                let target = self.target(d, Type::U32)?;
                self.emit_lane(rank_of, 0, [a, Source::None, Source::None], target);
            }
            _ => return self.unsupported(form),
        }
        Ok(())
    }

    /// An address that is a register, or a variable with an offset.
    fn place(&mut self, operand: Operand, ty: Type) -> Result<Source> {
        match operand {
            Operand::Symbol(symbol, offset) => self.symbol(symbol, offset, ty.bits()),
            Operand::RegPlus(reg, offset) => {
                let base = partita_ptx::Base::Reg(reg);
                self.whole_address(Operand::Mem(base, offset))
            }
            operand => self.source(operand, ty),
        }
    }

    /// `barrier.cluster.arrive` and `barrier.cluster.wait`. An arrival releases and a wait acquires
    /// unless it is `.relaxed`.
    pub(super) fn cluster_barrier(&mut self, form: &Form) -> Result<()> {
        let relaxed = form.has(Mod::Relaxed);
        if form.has(Mod::Arrive) {
            if !relaxed {
                self.emit(Op::Fence, 0, 0, 0, 0, 0);
            }
            self.emit(Op::ClusterArrive, 0, 0, 0, 0, 0);
        } else if form.has(Mod::Wait) {
            self.emit(Op::ClusterWait, 0, 0, 0, 0, 0);
            if !relaxed {
                self.emit(Op::Fence, 0, 0, 0, 0, 0);
            }
        } else {
            return self.unsupported(form);
        }
        Ok(())
    }

    /// `st.async` and `red.async` to shared memory.
    pub(super) fn async_store(&mut self, form: &Form, operands: &[Operand]) -> Result<()> {
        let &[at, value, mbarrier] = operands else { return self.unsupported(form) };
        let Some(ty) = form.last_type() else { return self.unsupported(form) };
        if form.space() != Some(PtxSpace::SharedCluster) {
            return self.unsupported(form);
        }
        let reduce = match form.op {
            P::Red => match (Self::atomic_kind(form), Self::atomic_type(form)) {
                (Some(kind), Some(ty)) => Some((kind, ty)),
                _ => return self.unsupported(form),
            },
            _ => None,
        };
        let parts = self.elements(value);
        let mut elements = [Source::None; 4];
        if parts.len() > elements.len() || (reduce.is_some() && parts.len() > 1) {
            return self.unsupported(form);
        }
        for (element, part) in elements.iter_mut().zip(&parts) {
            *element = self.source(*part, ty)?;
        }
        let (address, mbarrier) = (self.whole_address(at)?, self.whole_address(mbarrier)?);
        let bytes = ty.bytes();
        let store = AsyncStore { reduce, address, elements, bytes, mbarrier };
        self.emit_async(AsyncOp::Store(store));
        Ok(())
    }
}
