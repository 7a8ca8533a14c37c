//! The configuration in force, as `GET /v1/config` tells it.
//!
//! A report says what holds and where it comes from. `partitad` makes it; nothing follows it.

use crate::GpuNumber;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;

/// `GET /v1/config`: the configuration in force.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct ConfigReport {
    /// The files that were read, in the order in which they count.
    pub files: Vec<String>,
    /// When the configuration in force was read, in seconds since 1970 (UTC).
    pub read_at: u64,
    /// The last reload, where it was refused: it has changed nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused: Option<RefusedReload>,
    /// The keys. A list in a file, such as `[[policy.memory]]`, has one item for each entry.
    pub keys: Vec<ConfigKey>,
    /// Entries about other users, which only administrators see.
    #[serde(default)]
    pub left_out: usize,
}

/// A reload that was refused.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct RefusedReload {
    /// When, in seconds since 1970 (UTC).
    pub at: u64,
    /// Why, with file and line; only administrators see it, for it may name users.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
}

/// One key of the configuration.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ConfigKey {
    /// The key: `policy.…` as in the configuration file, else an option without its dashes.
    pub key: String,
    /// The GPU, where the GPUs differ.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu: Option<GpuNumber>,
    /// The value; null where there is none.
    pub value: Option<ConfigValue>,
    /// Where it comes from.
    pub from: Origin,
}

/// A value of the configuration.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(untagged)]
pub enum ConfigValue {
    /// True or false.
    Flag(bool),
    /// A number.
    Number(i64),
    /// A text.
    Text(String),
    /// Several values.
    #[cfg_attr(feature = "schema", schema(no_recursion))]
    List(Vec<ConfigValue>),
    /// Named values.
    #[cfg_attr(feature = "schema", schema(no_recursion))]
    Table(BTreeMap<String, ConfigValue>),
}

impl fmt::Display for ConfigValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ConfigValue::Flag(flag) => write!(f, "{flag}"),
            ConfigValue::Number(number) => write!(f, "{number}"),
            ConfigValue::Text(text) => f.write_str(text),
            ConfigValue::List(values) => {
                let values: Vec<String> = values.iter().map(ToString::to_string).collect();
                f.write_str(&values.join(", "))
            }
            ConfigValue::Table(values) => {
                let named = |(name, value): (&String, &ConfigValue)| match value {
                    ConfigValue::List(_) => format!("{name} [{value}]"),
                    _ => format!("{name} {value}"),
                };
                let values: Vec<String> = values.iter().map(named).collect();
                f.write_str(&values.join(", "))
            }
        }
    }
}

/// Where a value comes from.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Origin {
    /// The kind of place.
    pub kind: OriginKind,
    /// The file, the option or the variable; absent for a default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The line in the file, from 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub line: Option<usize>,
}

/// The kinds of places that values come from.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OriginKind {
    /// Nobody has said anything: the default holds.
    Default,
    /// The configuration file.
    File,
    /// A file in the folder of drop-ins.
    DropIn,
    /// The command line.
    CommandLine,
    /// The environment.
    Environment,
}

impl Origin {
    /// The default.
    #[must_use]
    pub fn default_value() -> Origin {
        Origin { kind: OriginKind::Default, name: None, line: None }
    }

    /// An option of the command line, with its dashes.
    #[must_use]
    pub fn option(name: &str) -> Origin {
        Origin { kind: OriginKind::CommandLine, name: Some(name.into()), line: None }
    }

    /// A variable of the environment.
    #[must_use]
    pub fn variable(name: &str) -> Origin {
        Origin { kind: OriginKind::Environment, name: Some(name.into()), line: None }
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.name, self.line) {
            (None, _) => f.write_str("default"),
            (Some(name), None) => f.write_str(name),
            (Some(name), Some(line)) => write!(f, "{name}:{line}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_read_as_people_write_them() {
        let text = |text: &str| ConfigValue::Text(text.into());
        let users = ConfigValue::List(vec![text("alice"), ConfigValue::Number(1001)]);
        let table = [("number".to_owned(), ConfigValue::Number(1)), ("tenants".to_owned(), users)];
        let table = ConfigValue::Table(table.into());
        assert_eq!(table.to_string(), "number 1, tenants [alice, 1001]");
        let json = serde_json::to_string(&table).unwrap();
        assert_eq!(json, r#"{"number":1,"tenants":["alice",1001]}"#);
        assert_eq!(serde_json::from_str::<ConfigValue>(&json).unwrap(), table);
    }

    #[test]
    fn origins_name_the_place() {
        let file = Origin { kind: OriginKind::File, name: Some("a.toml".into()), line: Some(3) };
        assert_eq!(file.to_string(), "a.toml:3");
        assert_eq!(Origin::option("--policy").to_string(), "--policy");
        assert_eq!(Origin::default_value().to_string(), "default");
    }
}
