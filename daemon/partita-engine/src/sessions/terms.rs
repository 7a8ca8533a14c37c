//! Terms: what each application may have of the SMs, from all who say something of it.
//!
//! From the lowest to the highest: rules of the configuration, what an administrator sets for one
//! application, what the program asks for itself, what its user sets, and reservations. A program
//! or user without the right to ask for more gets less than rules and administrator grant, never
//! more.
//!
//! Minima that somebody asks for explicitly are refused where their sum with the minima of other
//! applications exceeds the SMs. Minima by rules are not refused: the policy gives what is left.

use super::Sessions;
use crate::SessionIdentity;
use partita_model::{
    ApplicationId, Entitlement, JobUsage, Priority, SmAmount, TenantId, Terms, TermsRule, Usage,
};
use std::collections::{BTreeMap, BTreeSet};

/// Whom the engine refuses terms.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum TermsError {
    /// No such application.
    #[error("there is no {0}")]
    Unknown(ApplicationId),
    /// Another tenant's application.
    #[error("{application} is another user's: only an administrator changes its terms")]
    Forbidden {
        /// Whose terms were to change.
        application: ApplicationId,
    },
    /// The tenant asks for more than it was granted.
    #[error(
        "{tenant} may not ask for {what}: an administrator may allow it by `may_ask = true` in a \
         `[[policy.share]]`"
    )]
    NotGranted {
        /// Who asks.
        tenant: TenantId,
        /// For what.
        what: String,
    },
    /// No GPU of this size can give that.
    #[error("{0}")]
    Impossible(String),
    /// The minima do not fit into the GPU.
    #[error("a minimum of {asked} SMs does not fit: {left} of {sm_count} are left{holders}")]
    TooMany {
        /// SMs that were asked for.
        asked: u16,
        /// SMs that no other application has as its minimum.
        left: u16,
        /// SMs of the GPU.
        sm_count: u16,
        /// Who has the others, as text.
        holders: String,
    },
}

/// What is said of an application by itself, its user and an administrator.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Layers {
    /// What its programs ask for.
    asked: Terms,
    /// What its user has set.
    wished: Terms,
    /// What an administrator has set.
    set: Terms,
}

impl Layers {
    /// The layers where a program asks for this, too.
    pub(super) fn and_asked(self, asked: Terms) -> Layers {
        Layers { asked: asked.over(self.asked), ..self }
    }
}

/// What is said of applications beside themselves.
#[derive(Default)]
pub(crate) struct TermsBook {
    rules: Vec<TermsRule>,
    reserved: Vec<TermsRule>,
    /// What applications that have left had for jobs with a reservation.
    left: BTreeMap<(TenantId, String), JobUsage>,
    /// Tenants that may ask for more than rules grant; `None`: all.
    askers: BTreeSet<Option<TenantId>>,
    /// Applications of priority `latency`.
    urgent: BTreeSet<ApplicationId>,
    sm_count: u16,
}

impl TermsBook {
    fn may_ask(&self, tenant: TenantId) -> bool {
        [Some(tenant), None].iter().any(|who| self.askers.contains(who))
    }

    /// What schedulers have reserved for jobs.
    pub(super) fn reserved(&self) -> &[TermsRule] {
        &self.reserved
    }

    /// What applications that have left had for each job with a reservation.
    fn left(&self) -> impl Iterator<Item = (TenantId, &str, JobUsage)> {
        self.left.iter().map(|((tenant, tag), used)| (*tenant, tag.as_str(), *used))
    }

    /// An application has left, and had this.
    pub(super) fn application_left(&mut self, tenant: TenantId, tag: Option<String>, had: &Usage) {
        let known = tag.and_then(|tag| self.left.get_mut(&(tenant, tag)));
        if let Some(used) = known {
            *used = used.plus(JobUsage::of(had));
        }
    }

    /// What rules grant an application.
    fn granted(&self, tenant: TenantId, tag: Option<&str>) -> Terms {
        TermsRule::terms_of(&self.rules, tenant, tag)
    }

    /// The part of `terms` that a tenant may ask for.
    fn allowed(&self, terms: Terms, tenant: TenantId, granted: &Terms) -> Terms {
        if self.may_ask(tenant) {
            return terms;
        }
        terms.within(&Entitlement::of(granted, self.sm_count), self.sm_count)
    }

    /// What an application of a tenant with a tag may have, with these reservations.
    fn entitled(
        &self,
        (tenant, tag): (TenantId, Option<&str>),
        layers: &Layers,
        reserved: &[TermsRule],
    ) -> Entitlement {
        let &Layers { asked, wished, set } = layers;
        // What an administrator sets for the application goes before rules for many.
        let granted = self.granted(tenant, tag);
        let limit = set.over(granted);
        let allowed = |terms| self.allowed(terms, tenant, &limit);
        let own = allowed(wished).over(allowed(asked));
        let reserved = TermsRule::terms_of(reserved, tenant, tag);
        // A tenant that may ask for more than rules grant still does not undo the administrator's
        // word. What any other tenant asks for has been cut to it, and may be less.
        let own = match self.may_ask(tenant) {
            true => set.over(own).over(granted),
            false => own.over(limit),
        };
        let mut terms = reserved.over(own);
        // A reservation goes before a maximum.
        if let (Some(min), Some(max)) = (reserved.min, terms.max) {
            let most = max.on(self.sm_count).max(min.on(self.sm_count));
            terms.max = Some(SmAmount::Sms(most));
        }
        Entitlement { reserved: reserved.min.is_some(), ..Entitlement::of(&terms, self.sm_count) }
    }
}

impl Sessions {
    /// No session yet, on a device of so many SMs.
    pub(crate) fn new(sm_count: u16) -> Self {
        let terms = TermsBook { sm_count, ..TermsBook::default() };
        Sessions { terms, ..Sessions::default() }
    }

    /// Sets the rules of the configuration, and who may ask for more.
    pub(crate) fn set_terms_rules(
        &mut self,
        rules: &[TermsRule],
        askers: impl IntoIterator<Item = Option<TenantId>>,
    ) {
        self.terms.rules = rules.to_vec();
        self.terms.askers = askers.into_iter().collect();
        self.settle_terms();
    }

    /// Sets what schedulers have reserved for the jobs of tenants.
    pub(crate) fn set_reserved(&mut self, rules: &[TermsRule]) {
        let job = |rule: &TermsRule| Some((rule.tenant?, rule.tag.clone()?));
        let jobs: BTreeSet<_> = rules.iter().filter_map(job).collect();
        let left = &mut self.terms.left;
        left.retain(|job, _| jobs.contains(job));
        for job in jobs {
            left.entry(job).or_default();
        }
        self.terms.reserved = rules.to_vec();
        self.settle_terms();
    }

    /// What applications that have left had for each job with a reservation.
    pub(crate) fn left_of_jobs(&self) -> impl Iterator<Item = (TenantId, &str, JobUsage)> {
        self.terms.left()
    }

    /// Sets an application's terms; where a tenant asks, `by` names it.
    pub(crate) fn set_terms(
        &mut self,
        id: ApplicationId,
        terms: Terms,
        by: Option<TenantId>,
    ) -> Result<(), TermsError> {
        let application = self.applications.get(&id).filter(|application| !application.leaving);
        let application = application.ok_or(TermsError::Unknown(id))?;
        if by.is_some_and(|tenant| tenant != application.tenant) {
            return Err(TermsError::Forbidden { application: id });
        }
        self.check_possible(&terms)?;
        if let Some(tenant) = by {
            let granted = self.terms.granted(tenant, application.tag.as_deref());
            self.check_right(tenant, &terms, &application.layers.set.over(granted))?;
        }
        let layers = match by {
            Some(_) => Layers { wished: terms, ..application.layers },
            None => Layers { set: terms, ..application.layers },
        };
        let who = (application.tenant, application.tag.as_deref());
        self.check_minimum(Some(id), who, &layers)?;
        if let Some(application) = self.applications.get_mut(&id) {
            application.layers = layers;
        }
        self.settle_terms();
        Ok(())
    }

    fn check_possible(&self, terms: &Terms) -> Result<(), TermsError> {
        let reason = terms.impossible_on(self.terms.sm_count);
        reason.map_or(Ok(()), |reason| Err(TermsError::Impossible(reason)))
    }

    /// Whether a program that comes may have what it asks for.
    pub(crate) fn check_asked(&self, identity: &SessionIdentity) -> Result<(), TermsError> {
        self.check_possible(&identity.asked)?;
        if !self.terms.may_ask(identity.tenant) {
            // It gets what it may have, as under MPS.
            return Ok(());
        }
        let joined = self.joined(identity);
        let layers = joined.and_then(|id| Some(self.applications.get(&id)?.layers));
        let layers = layers.unwrap_or_default().and_asked(identity.asked);
        let who = (identity.tenant, identity.tag.as_deref());
        self.check_minimum(joined, who, &layers)
    }

    fn check_right(
        &self,
        tenant: TenantId,
        terms: &Terms,
        granted: &Terms,
    ) -> Result<(), TermsError> {
        let sm_count = self.terms.sm_count;
        if self.terms.may_ask(tenant) {
            return Ok(());
        }
        let allowed = terms.within(&Entitlement::of(granted, sm_count), sm_count);
        let on = |amount: Option<SmAmount>| amount.map(|amount| amount.on(sm_count));
        let what = if on(allowed.min) != on(terms.min) {
            "so great a minimum"
        } else if on(allowed.max) != on(terms.max) {
            "so great a maximum"
        } else if allowed.weight != terms.weight {
            "so great a weight"
        } else if allowed.priority != terms.priority {
            "so high a priority"
        } else if allowed.memory != terms.memory {
            "so much memory"
        } else if allowed.target != terms.target {
            "so short a latency target"
        } else {
            return Ok(());
        };
        Err(TermsError::NotGranted { tenant, what: what.to_owned() })
    }

    /// Whether the minimum of these layers fits beside those of all other applications, where it is
    /// more than `id` has, and than rules and reservations give it: those are not refused here.
    fn check_minimum(
        &self,
        id: Option<ApplicationId>,
        who: (TenantId, Option<&str>),
        layers: &Layers,
    ) -> Result<(), TermsError> {
        let sm_count = self.terms.sm_count;
        let min = |layers, reserved| self.terms.entitled(who, layers, reserved).min;
        // A minimum that a reservation hides counts when the reservation ends.
        let asked = min(layers, &self.terms.reserved).max(min(layers, &[]));
        let nothing = Layers::default();
        let given = min(&nothing, &self.terms.reserved).max(min(&nothing, &[]));
        let own = id.and_then(|id| self.application(id)).map_or(0, |own| own.entitlement.min);
        if asked <= own.max(given) {
            return Ok(());
        }
        let others: Vec<(ApplicationId, u16)> = self
            .staying()
            .filter(|(other, application)| Some(*other) != id && application.entitlement.min > 0)
            .map(|(id, application)| (id, application.entitlement.min))
            .collect();
        let theirs = others.iter().fold(0_u16, |sum, (_, min)| sum.saturating_add(*min));
        let left = sm_count.saturating_sub(theirs);
        if asked <= left {
            return Ok(());
        }
        let names: Vec<String> = others.iter().map(|(id, min)| format!("{id} has {min}")).collect();
        let holders = format!("; {}", names.join(", "));
        Err(TermsError::TooMany { asked, left, sm_count, holders })
    }

    /// Applications of priority `latency` with a session that stays.
    pub(crate) fn urgent(&self) -> impl Iterator<Item = ApplicationId> {
        self.terms.urgent.iter().copied()
    }

    /// Works out what each application may have.
    pub(super) fn settle_terms(&mut self) {
        let book = &self.terms;
        for application in self.applications.values_mut() {
            let who = (application.tenant, application.tag.as_deref());
            application.entitlement = book.entitled(who, &application.layers, &book.reserved);
        }
        let urgent = self.staying().filter(|(_, a)| a.entitlement.priority == Priority::Latency);
        self.terms.urgent = urgent.map(|(id, _)| id).collect();
    }
}
