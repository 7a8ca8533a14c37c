//! Who holds an SM: one application, or two that share it.

use partita_model::{ApplicationId, SmId, SmPart, SmSet};
use std::collections::BTreeMap;

/// The holder of an SM.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Holder {
    /// One application has all of it.
    One(ApplicationId),
    /// Two have a part each, in order of id.
    Two([(ApplicationId, SmPart); 2]),
}

impl Holder {
    /// The applications.
    pub(crate) fn ids(self) -> impl Iterator<Item = ApplicationId> {
        let (first, second) = match self {
            Holder::One(id) => (id, None),
            Holder::Two([(first, _), (second, _)]) => (first, Some(second)),
        };
        std::iter::once(first).chain(second)
    }

    /// Whether an application is among them.
    pub(crate) fn has(self, id: ApplicationId) -> bool {
        self.ids().any(|own| own == id)
    }

    /// Whether nobody else is.
    pub(crate) fn is_only(self, id: ApplicationId) -> bool {
        self == Holder::One(id)
    }

    /// The part of an application; `None` where it has all of the SM, or nothing.
    pub(crate) fn part(self, id: ApplicationId) -> Option<SmPart> {
        match self {
            Holder::One(_) => None,
            Holder::Two(both) => both.iter().find(|(own, _)| *own == id).map(|(_, part)| *part),
        }
    }
}

/// The SMs, and the parts of SMs, that applications are to have.
#[derive(Clone, Debug, Default)]
pub(crate) struct Targets {
    /// The SMs of each.
    pub(crate) sms: BTreeMap<ApplicationId, SmSet>,
    /// The part of each application that shares its SMs.
    pub(crate) parts: BTreeMap<ApplicationId, SmPart>,
}

impl Targets {
    /// The owner of each SM. Where more have an SM than can share it, those with the highest ids
    /// have it.
    pub(super) fn owners(&self, sm_count: usize) -> Vec<Option<Holder>> {
        let mut owners: Vec<Option<Holder>> = vec![None; sm_count];
        for (&id, sms) in &self.sms {
            for SmId(sm) in sms.iter() {
                let Some(owner) = owners.get_mut(usize::from(sm)) else { continue };
                let beside = match *owner {
                    Some(Holder::One(other)) => {
                        let parts = (self.parts.get(&other), self.parts.get(&id));
                        let (Some(&first), Some(&second)) = parts else {
                            *owner = Some(Holder::One(id));
                            continue;
                        };
                        Holder::Two([(other, first), (id, second)])
                    }
                    Some(Holder::Two(_)) | None => Holder::One(id),
                };
                *owner = Some(beside);
            }
        }
        owners
    }
}
