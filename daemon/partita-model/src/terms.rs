//! Terms: what an application may have of a GPU's SMs and memory, as a user, an administrator or a
//! scheduler says it, and the entitlement that follows from all terms.
//!
//! Invariants: a weight lies in 0–1,000. An [`Entitlement`] is in SMs of one
//! GPU, and its minimum is no greater than its maximum. Who may say what is not decided here.

use crate::{LatencyTarget, MemoryAmount, SmAmount, TenantId};
use serde::{Deserialize, Serialize};
use std::str::FromStr;

/// The part of an application in what minimum and priority leave: 0–1,000, relative to the weights
/// of the applications beside it. With weight 0 it gets only what nobody else can use.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(into = "u16", try_from = "i64")]
pub struct Weight(u16);

impl Weight {
    const MOST: u16 = 1_000;

    /// The number.
    #[must_use]
    pub fn get(self) -> u16 {
        self.0
    }
}

impl Default for Weight {
    fn default() -> Self {
        Weight(1)
    }
}

impl From<Weight> for u16 {
    fn from(weight: Weight) -> Self {
        weight.0
    }
}

impl TryFrom<i64> for Weight {
    type Error = String;

    fn try_from(weight: i64) -> Result<Self, String> {
        let found = u16::try_from(weight).ok().filter(|weight| *weight <= Weight::MOST);
        found.map(Weight).ok_or_else(|| format!("a weight of {weight}: give 0 to {}", Weight::MOST))
    }
}

impl FromStr for Weight {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let weight: i64 = text.parse().map_err(|_| format!("`{text}` is no whole number"))?;
        weight.try_into()
    }
}

/// Who yields to whom while both have work.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(
    Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize,
)]
#[serde(rename_all = "kebab-case")]
pub enum Priority {
    /// It leaves its SMs, down to its minimum, to `latency` applications.
    Batch,
    /// It yields to nobody, and nobody yields to it.
    #[default]
    Normal,
    /// `batch` applications leave their SMs to it at their next task border.
    Latency,
}

impl Priority {
    /// As configuration and command lines write it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Priority::Batch => "batch",
            Priority::Normal => "normal",
            Priority::Latency => "latency",
        }
    }
}

impl FromStr for Priority {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let all = [Priority::Batch, Priority::Normal, Priority::Latency];
        let found = all.into_iter().find(|priority| priority.name() == text);
        found.ok_or_else(|| format!("no priority `{text}`: it is `latency`, `normal` or `batch`"))
    }
}

/// What one source says of an application; `None` where it says nothing.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Terms {
    /// SMs that the application has whenever it has work: a number, or a text as `30%`.
    #[cfg_attr(feature = "schema", schema(value_type = Option<String>))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min: Option<SmAmount>,
    /// SMs that it has at most, even where others are idle: a number, or a text as `30%`.
    #[cfg_attr(feature = "schema", schema(value_type = Option<String>))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max: Option<SmAmount>,
    /// Its part in what is left, 0 to 1,000.
    #[cfg_attr(feature = "schema", schema(value_type = Option<u16>))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub weight: Option<Weight>,
    /// Who yields to whom.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub priority: Option<Priority>,
    /// Device memory that it has at most, as in `8GiB`.
    #[cfg_attr(feature = "schema", schema(value_type = Option<String>))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<MemoryAmount>,
    /// The time that a request of it may take, as in `5ms`. It counts with the priority `latency`,
    /// and lets the application have the fewest SMs that meet it.
    #[cfg_attr(feature = "schema", schema(value_type = Option<String>))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target: Option<LatencyTarget>,
}

impl Terms {
    /// Whether they say nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Terms::default()
    }

    /// These terms, and `below` where these say nothing.
    #[must_use]
    pub fn over(self, below: Terms) -> Terms {
        Terms {
            min: self.min.or(below.min),
            max: self.max.or(below.max),
            weight: self.weight.or(below.weight),
            priority: self.priority.or(below.priority),
            memory: self.memory.or(below.memory),
            target: self.target.or(below.target),
        }
    }

    /// Why no GPU of `sm_count` SMs can give what one source says here; `None` where it can. Terms
    /// of several sources may contradict each other: a maximum cuts a greater minimum.
    ///
    /// ```
    /// # use partita_model::{SmAmount, Terms};
    /// let terms = Terms { min: Some(SmAmount::Sms(25)), ..Terms::default() };
    /// assert_eq!(terms.impossible_on(24).unwrap(), "a minimum of 25 SMs: the GPU has 24");
    /// assert_eq!(terms.impossible_on(132), None);
    /// ```
    #[must_use]
    pub fn impossible_on(&self, sm_count: u16) -> Option<String> {
        let on = |amount: SmAmount| amount.on(sm_count);
        if let Some(max) = self.max.filter(|max| on(*max) == 0) {
            return Some(format!("a maximum of {max} SMs: give at least 1"));
        }
        if let Some(min) = self.min.filter(|min| on(*min) > sm_count) {
            return Some(format!("a minimum of {min} SMs: the GPU has {sm_count}"));
        }
        let (min, max) = self.min.zip(self.max).filter(|(min, max)| on(*min) > on(*max))?;
        Some(format!("a minimum of {min} SMs with a maximum of {max}"))
    }

    /// What a user may ask for without any right: less than `granted`, never more. A minimum above
    /// the granted one, a greater weight, more memory, a higher priority and a shorter target are
    /// cut to it.
    #[must_use]
    pub fn within(self, granted: &Entitlement, sm_count: u16) -> Terms {
        let min = self.min.map(|min| SmAmount::Sms(min.on(sm_count).min(granted.min)));
        let max = self.max.map(|max| SmAmount::Sms(max.on(sm_count).min(granted.max)));
        Terms {
            min,
            max,
            weight: self.weight.map(|weight| weight.min(granted.weight)),
            priority: self.priority.map(|priority| priority.min(granted.priority)),
            memory: self.memory.map(|bytes| granted.memory.map_or(bytes, |most| bytes.min(most))),
            target: self.target.map(|time| granted.target.map_or(time, |least| time.max(least))),
        }
    }
}

/// Terms for all applications that match.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct TermsRule {
    /// Matches only this tenant's applications; `None` matches all tenants.
    pub tenant: Option<TenantId>,
    /// Matches only applications with this tag; `None` matches any.
    pub tag: Option<String>,
    /// The terms of each application that matches.
    pub terms: Terms,
}

impl TermsRule {
    /// Whether it holds for an application.
    #[must_use]
    pub fn matches(&self, tenant: TenantId, tag: Option<&str>) -> bool {
        self.tenant.is_none_or(|own| own == tenant)
            && self.tag.as_deref().is_none_or(|own| Some(own) == tag)
    }

    /// How much it says of the applications that match: a tag counts more than a tenant.
    fn precision(&self) -> u8 {
        u8::from(self.tenant.is_some()) + 2 * u8::from(self.tag.is_some())
    }

    /// What all rules say of an application. Of two rules the more precise one goes first, and of
    /// equally precise ones the earlier.
    #[must_use]
    pub fn terms_of(rules: &[TermsRule], tenant: TenantId, tag: Option<&str>) -> Terms {
        let mut matching: Vec<&TermsRule> =
            rules.iter().filter(|rule| rule.matches(tenant, tag)).collect();
        matching.sort_by_key(|rule| std::cmp::Reverse(rule.precision()));
        matching.iter().fold(Terms::default(), |all, rule| all.over(rule.terms))
    }
}

/// What an application may have of one GPU.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Entitlement {
    /// SMs that it has whenever it has work.
    pub min: u16,
    /// Whether a scheduler has reserved the minimum: it goes before the minima of others.
    #[serde(default)]
    pub reserved: bool,
    /// SMs that it has at most.
    pub max: u16,
    /// Its part in what is left, relative to the weights of the applications beside it.
    #[cfg_attr(feature = "schema", schema(value_type = u16))]
    pub weight: Weight,
    /// Who yields to whom.
    pub priority: Priority,
    /// Device memory that it has at most.
    #[cfg_attr(feature = "schema", schema(value_type = Option<String>))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<MemoryAmount>,
    /// The time that a request may take.
    #[cfg_attr(feature = "schema", schema(value_type = Option<String>))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<LatencyTarget>,
    /// SMs that it can use at present: the most CTAs that a launch of late had. Only told of
    /// `latency` applications; it bounds what they take from `batch` applications.
    #[serde(skip)]
    pub need: Option<u16>,
}

impl Default for Entitlement {
    fn default() -> Self {
        Entitlement {
            min: 0,
            reserved: false,
            max: u16::MAX,
            weight: Weight::default(),
            priority: Priority::Normal,
            memory: None,
            target: None,
            need: None,
        }
    }
}

impl Entitlement {
    /// What terms give on a GPU of `sm_count` SMs. A minimum above the maximum is cut to it.
    #[must_use]
    pub fn of(terms: &Terms, sm_count: u16) -> Self {
        let neutral = Entitlement::default();
        let max = terms.max.map_or(neutral.max, |max| max.on(sm_count).max(1));
        let min = terms.min.map_or(neutral.min, |min| min.on(sm_count)).min(max).min(sm_count);
        Entitlement {
            min,
            reserved: false,
            max,
            weight: terms.weight.unwrap_or_default(),
            priority: terms.priority.unwrap_or_default(),
            memory: terms.memory,
            target: terms.target,
            need: None,
        }
    }

    /// The maximum, where the application has one.
    #[must_use]
    pub fn limit(&self) -> Option<u16> {
        Some(self.max).filter(|max| *max < Entitlement::default().max)
    }

    /// Whether nothing was said of the application at all.
    #[must_use]
    pub fn is_silent(&self) -> bool {
        Entitlement { need: None, ..*self } == Entitlement::default()
    }

    /// Whether nothing was said of the application's SMs.
    #[must_use]
    pub fn is_neutral(&self) -> bool {
        let silent = Entitlement::default();
        let Entitlement { memory, target, need, .. } = silent;
        Entitlement { memory, target, need, ..*self } == silent
    }

    /// Whether the application runs whenever it has work, and takes no turns with others.
    #[must_use]
    pub fn always_runs(&self) -> bool {
        self.min > 0 || self.priority == Priority::Latency
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn terms(min: u16, weight: u16, priority: Priority) -> Terms {
        Terms {
            min: Some(SmAmount::Sms(min)),
            max: None,
            weight: Some(Weight(weight)),
            priority: Some(priority),
            ..Terms::default()
        }
    }

    #[test]
    fn the_more_precise_rule_goes_first() {
        let rule = |tenant: Option<u32>, tag: Option<&str>, terms| TermsRule {
            tenant: tenant.map(TenantId),
            tag: tag.map(str::to_owned),
            terms,
        };
        let rules = [
            rule(None, None, terms(1, 1, Priority::Batch)),
            rule(Some(7), None, Terms { weight: Some(Weight(2)), ..Terms::default() }),
            rule(None, Some("serve"), Terms { min: Some(SmAmount::Sms(9)), ..Terms::default() }),
        ];
        let of = |tenant, tag| TermsRule::terms_of(&rules, TenantId(tenant), tag);
        assert_eq!(of(1, None), terms(1, 1, Priority::Batch));
        assert_eq!(of(7, None), terms(1, 2, Priority::Batch));
        assert_eq!(of(7, Some("serve")), terms(9, 2, Priority::Batch));
        assert_eq!(of(7, Some("other")), terms(1, 2, Priority::Batch));
    }

    #[test]
    fn without_a_right_a_user_gets_less_and_never_more() {
        let granted = Entitlement::of(&terms(4, 3, Priority::Normal), 24);
        let asked = Terms { max: Some(SmAmount::PerCent(50)), ..terms(9, 9, Priority::Latency) };
        let got = Entitlement::of(&asked.within(&granted, 24).over(Terms::default()), 24);
        assert_eq!((got.min, got.max, got.weight), (4, 12, Weight(3)));
        assert_eq!(got.priority, Priority::Normal);
        let less = terms(0, 1, Priority::Batch).within(&granted, 24);
        assert_eq!(less, terms(0, 1, Priority::Batch));
        let limits = |memory: &str, target: &str| Terms {
            memory: memory.parse().ok(),
            target: target.parse().ok(),
            ..Terms::default()
        };
        let granted = Entitlement::of(&limits("2G", "1ms"), 24);
        assert_eq!(limits("3G", "10us").within(&granted, 24), limits("2G", "1ms"));
        assert_eq!(limits("1G", "9ms").within(&granted, 24), limits("1G", "9ms"));
        assert_eq!(Terms::default().within(&granted, 24), Terms::default());
        let silent = Entitlement::default();
        assert_eq!(limits("3G", "10us").within(&silent, 24), limits("3G", "10us"));
    }

    #[test]
    fn a_minimum_stays_within_maximum_and_gpu() {
        let of = |min: u16, max: Option<u16>| {
            let terms = Terms {
                min: Some(SmAmount::Sms(min)),
                max: max.map(SmAmount::Sms),
                ..Terms::default()
            };
            let found = Entitlement::of(&terms, 24);
            (found.min, found.max)
        };
        assert_eq!(
            [of(9, Some(4)), of(30, None), of(0, Some(0))],
            [(4, 4), (24, u16::MAX), (0, 1)]
        );
        assert!(Entitlement::of(&Terms::default(), 24).is_neutral());
        let memory = Terms { memory: "1G".parse().ok(), ..Terms::default() };
        let memory = Entitlement::of(&memory, 24);
        assert!(memory.is_neutral() && !memory.is_silent(), "it says nothing of SMs");
    }
}
