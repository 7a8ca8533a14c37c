//! What the configuration files say, key by key, with the place of each.
//!
//! This is for reports and messages only: [`crate::configuration`] decides what holds. A text that
//! does not parse has no keys here; it was refused before.

use crate::config_files::{ConfigFiles, ConfigText};
use crate::configuration::ConfigError;
use partita_model::{ConfigValue, Origin, OriginKind, TenantId};
use std::collections::BTreeMap;
use std::path::PathBuf;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// The only table of a file.
const SECTION: &str = "policy";
/// The list with the settings of single GPUs.
const GPU_LIST: &str = "gpu";

/// The keys of all files.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Written {
    /// The files, in the order in which they count.
    pub files: Vec<PathBuf>,
    /// Single values: the key, and the last place that sets it.
    values: BTreeMap<String, Origin>,
    /// Entries of lists, in the order of files and lines.
    pub entries: Vec<Entry>,
    /// Settings of single GPUs.
    of_gpus: BTreeMap<(i64, String), Origin>,
}

/// One entry of a list.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Entry {
    /// The key of the list.
    pub key: String,
    /// The entry as it is written.
    pub value: ConfigValue,
    /// Its place.
    pub from: Origin,
    /// The users that it names, as they are written and by number; `None` where it names none.
    pub users: Option<Vec<(ConfigValue, Option<TenantId>)>>,
}

impl Written {
    /// The keys of these files; `user` knows the users by name.
    pub fn of(files: &ConfigFiles, user: &dyn Fn(&str) -> Option<TenantId>) -> Written {
        let mut written = Written::default();
        for (index, (path, text)) in files.texts().enumerate() {
            written.files.push(path.to_owned());
            let kind = if index == 0 { OriginKind::File } else { OriginKind::DropIn };
            written.add_text(text, (kind, &path.display().to_string()), user);
        }
        written
    }

    /// An error in the one text of several files, with the file and the line in which it is.
    pub fn located(files: &ConfigFiles, text: &ConfigText, error: ConfigError) -> ConfigError {
        let nobody = |_: &str| None;
        let (apart, mut together) = (Written::of(files, &nobody), Written::default());
        together.add_text(&text.text, (OriginKind::File, &text.name), &nobody);
        let is_there = |origin: &Origin| origin.line == Some(error.line);
        let value = together.values.iter().find(|(_, origin)| is_there(origin));
        let of_gpu = together.of_gpus.iter().find(|(_, origin)| is_there(origin));
        let entry = together.entries.iter().position(|entry| is_there(&entry.from));
        // Entries of one list stand in the same order in the files and in their one text.
        let entry = entry.and_then(|index| {
            let key = &together.entries[index].key;
            let is_of = |entry: &&Entry| entry.key == *key;
            let earlier = together.entries[..index].iter().filter(is_of).count();
            apart.entries.iter().filter(is_of).nth(earlier)
        });
        let value = value.and_then(|(key, _)| apart.values.get(key));
        let of_gpu = of_gpu.and_then(|(key, _)| apart.of_gpus.get(key));
        let found = value.or(of_gpu).or(entry.map(|entry| &entry.from));
        match found {
            Some(Origin { name: Some(file), line: Some(line), .. }) => {
                ConfigError { file: file.clone(), line: *line, ..error }
            }
            _ => error,
        }
    }

    fn add_text(
        &mut self,
        text: &str,
        (kind, name): (OriginKind, &str),
        user: &dyn Fn(&str) -> Option<TenantId>,
    ) {
        let Ok(table) = DeTable::parse(text) else { return };
        let origin = |at: usize| {
            let before = text.as_bytes().get(..at).unwrap_or(text.as_bytes());
            let line = 1 + before.iter().filter(|&&byte| byte == b'\n').count();
            Origin { kind, name: Some(name.to_owned()), line: Some(line) }
        };
        let section = table.get_ref().get(SECTION).and_then(|value| value.get_ref().as_table());
        for (key, value) in section.into_iter().flatten() {
            self.add(key.get_ref(), key.span().start, value, &origin, user);
        }
    }

    fn add(
        &mut self,
        key: &str,
        at: usize,
        value: &Spanned<DeValue<'_>>,
        origin: &dyn Fn(usize) -> Origin,
        user: &dyn Fn(&str) -> Option<TenantId>,
    ) {
        let Some(list) = value.get_ref().as_array() else {
            self.values.insert(key.to_owned(), origin(at));
            return;
        };
        for entry in list.iter() {
            let from = origin(entry.span().start);
            let table = entry.get_ref().as_table();
            if let Some(number) =
                table.and_then(|table| number_of(table)).filter(|_| key == GPU_LIST)
            {
                for (name, _) in table.into_iter().flatten() {
                    let from = origin(name.span().start);
                    self.of_gpus.insert((number, name.get_ref().to_string()), from);
                }
            }
            let users = table.and_then(|table| users_of(table, user));
            let value = shown(entry.get_ref());
            self.entries.push(Entry { key: key.to_owned(), value, from, users });
        }
    }

    /// The place of a single value, where a file has it.
    pub fn value(&self, key: &str) -> Option<&Origin> {
        self.values.get(key)
    }

    /// The place of a setting of one GPU, where a file has it.
    pub fn of_gpu(&self, number: u16, key: &str) -> Option<&Origin> {
        self.of_gpus.get(&(i64::from(number), key.to_owned()))
    }
}

fn number_of(table: &DeTable<'_>) -> Option<i64> {
    integer(table.get("number")?.get_ref())
}

/// The users that an entry names.
fn users_of(
    table: &DeTable<'_>,
    user: &dyn Fn(&str) -> Option<TenantId>,
) -> Option<Vec<(ConfigValue, Option<TenantId>)>> {
    let id = |value: &DeValue<'_>| match value {
        DeValue::String(name) => user(name),
        value => integer(value).and_then(|number| u32::try_from(number).ok()).map(TenantId),
    };
    let known = |value: &Spanned<DeValue<'_>>| (shown(value.get_ref()), id(value.get_ref()));
    match (table.get("tenant"), table.get("tenants")) {
        (Some(tenant), _) => Some(vec![known(tenant)]),
        (None, Some(tenants)) => Some(tenants.get_ref().as_array()?.iter().map(known).collect()),
        (None, None) => None,
    }
}

fn integer(value: &DeValue<'_>) -> Option<i64> {
    let number = value.as_integer()?;
    i64::from_str_radix(number.as_str(), number.radix()).ok()
}

fn shown(value: &DeValue<'_>) -> ConfigValue {
    match value {
        DeValue::Boolean(flag) => ConfigValue::Flag(*flag),
        DeValue::String(text) => ConfigValue::Text(text.to_string()),
        DeValue::Array(list) => {
            ConfigValue::List(list.iter().map(|value| shown(value.get_ref())).collect())
        }
        DeValue::Table(table) => {
            let named = |(name, value): (&Spanned<_>, &Spanned<DeValue<'_>>)| {
                let name: &std::borrow::Cow<'_, str> = name.get_ref();
                (name.to_string(), shown(value.get_ref()))
            };
            ConfigValue::Table(table.iter().map(named).collect())
        }
        DeValue::Integer(number) => match integer(value) {
            Some(known) => ConfigValue::Number(known),
            None => ConfigValue::Text(number.to_string()),
        },
        DeValue::Float(number) => ConfigValue::Text(number.to_string()),
        DeValue::Datetime(time) => ConfigValue::Text(time.to_string()),
    }
}
