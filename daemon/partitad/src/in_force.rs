//! The configuration in force, and where each key comes from: what `GET /v1/config` tells.
//!
//! The values of `[policy]` are those that the data planes follow. Files are reported as they were
//! when they were put in force, whatever stands in them now. A refused reload changes nothing but
//! [`ConfigReport::refused`].
//!
//! Entries that name users are for administrators and these users; all other users get their
//! number. No key is a secret.

use crate::gpus::{Gpu, Gpus};
use crate::options::Options;
use crate::reservations::now;
use crate::written::{Entry, Written};
use partita_model::{
    ConfigKey, ConfigReport, ConfigValue, GpuConfig, Origin, PolicyName, RefusedReload, TenantId,
};
use serde::Serialize;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A value of one GPU's configuration.
type Value = fn(&GpuConfig) -> Option<ConfigValue>;

/// The keys of `[policy]` that have one value, and the value in force.
const VALUES: [(&str, Value); 13] = [
    ("selector", |config| named(config.policy.selector)),
    ("partitioner", |config| named(config.policy.partitioner)),
    ("supply", |config| named(config.policy.supply)),
    ("group", |config| number(config.policy.group.get())),
    ("originals", |config| named(config.originals)),
    ("sessions_per_user", |config| number(config.sessions_per_user.0)),
    ("no_progress_ms", |config| number(config.limits.no_progress_ms)),
    ("alone_ms", |config| number(config.limits.alone_ms)),
    ("hold_up_ms", |config| number(config.limits.hold_up_ms)),
    ("hung_after_ms", |config| number(config.hung_after.0)),
    ("prepare_ms", |config| number(config.limits.prepare_ms)),
    ("prepare_mib", |config| number(config.limits.prepare_mib)),
    ("host_memory_mib", |config| {
        config.host_memory.bytes.and_then(|bytes| i64::try_from(bytes >> 20).ok()).and_then(number)
    }),
];

/// What is in force.
#[derive(Debug, Default)]
pub struct InForce {
    /// The keys that are read once, at the start.
    options: Vec<ConfigKey>,
    /// The policy of the command line, which goes before the files.
    policy: PolicyName,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    written: Written,
    read_at: u64,
    refused: Option<RefusedReload>,
}

impl InForce {
    /// The configuration of a daemon with this command line, before any file is read.
    #[must_use]
    pub fn new(options: &Options) -> InForce {
        let policy = options.policy.unwrap_or_default();
        InForce { options: options.keys(), policy, state: Mutex::default() }
    }

    /// These files are in force from now on.
    pub fn read(&self, written: Written) {
        *self.lock() = State { written, read_at: now(), refused: None };
    }

    /// A reload was refused.
    pub fn refused(&self, why: String) {
        self.lock().refused = Some(RefusedReload { at: now(), why: Some(why) });
    }

    /// What is in force on these GPUs, for an administrator or for one user.
    #[must_use]
    pub fn report(&self, gpus: &Gpus, only: Option<TenantId>) -> ConfigReport {
        let state = self.lock();
        let mut keys = self.options.clone();
        for (name, value) in VALUES {
            keys.extend(self.values(&state.written, gpus, name, value));
        }
        let mut left_out = 0;
        for entry in &state.written.entries {
            match seen(entry, only) {
                Some(value) => keys.push(ConfigKey {
                    key: policy_key(&entry.key),
                    gpu: None,
                    value: Some(value),
                    from: entry.from.clone(),
                }),
                None => left_out += 1,
            }
        }
        let mut refused = state.refused.clone();
        if let (Some(refused), Some(_)) = (&mut refused, only) {
            refused.why = None;
        }
        let files = state.written.files.iter().map(|file| file.display().to_string());
        let (files, read_at) = (files.collect(), state.read_at);
        ConfigReport { files, read_at, refused, keys, left_out }
    }

    /// A key that has one value: once, or once for each GPU where they differ.
    fn values(&self, written: &Written, gpus: &Gpus, name: &str, value: Value) -> Vec<ConfigKey> {
        let of_gpu = |gpu: &Gpu| {
            let config = gpu.policy.borrow();
            let config = config.as_ref()?;
            let (key, from) = (policy_key(name), self.origin(written, gpu.number.0, name));
            Some(ConfigKey { key, gpu: Some(gpu.number), value: value(config), from })
        };
        let mut keys: Vec<ConfigKey> = gpus.all().iter().filter_map(of_gpu).collect();
        let is_as_first =
            |one: &ConfigKey| (&one.value, &one.from) == (&keys[0].value, &keys[0].from);
        if keys.iter().all(is_as_first) {
            keys.truncate(1);
            keys.iter_mut().for_each(|key| key.gpu = None);
        }
        keys
    }

    /// Where a GPU's value of a key comes from: what is asked first decides.
    fn origin(&self, written: &Written, gpu: u16, name: &str) -> Origin {
        let PolicyName { selector, partitioner } = self.policy;
        let is_named = match name {
            "selector" => selector.is_some(),
            // A selector by itself brings its usual partitioner.
            "partitioner" => selector.is_some() || partitioner.is_some(),
            _ => false,
        };
        if is_named {
            return Origin::option("--policy");
        }
        let found = written.of_gpu(gpu, name).or_else(|| written.value(name));
        found.cloned().unwrap_or_else(Origin::default_value)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The entry as a user may see it; all of it where `only` is nobody.
fn seen(entry: &Entry, only: Option<TenantId>) -> Option<ConfigValue> {
    let (Some(tenant), Some(users)) = (only, &entry.users) else {
        return Some(entry.value.clone());
    };
    let own: Vec<ConfigValue> = users
        .iter()
        .filter(|(_, id)| *id == Some(tenant))
        .map(|(written, _)| written.clone())
        .collect();
    if own.is_empty() {
        return None;
    }
    let mut value = entry.value.clone();
    if let ConfigValue::Table(table) = &mut value
        && let Some(ConfigValue::List(tenants)) = table.get_mut("tenants")
    {
        let others = i64::try_from(users.len() - own.len()).unwrap_or(i64::MAX);
        *tenants = own;
        table.insert("other_users".into(), ConfigValue::Number(others));
    }
    Some(value)
}

fn policy_key(name: &str) -> String {
    format!("policy.{name}")
}

fn number(number: impl Into<i64>) -> Option<ConfigValue> {
    Some(ConfigValue::Number(number.into()))
}

/// A kind by its name in the file.
fn named(kind: impl Serialize) -> Option<ConfigValue> {
    match serde_json::to_value(kind) {
        Ok(serde_json::Value::String(name)) => Some(ConfigValue::Text(name)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config_files::ConfigFiles;
    use crate::configuration::check_form;
    use crate::link::{GpuHandle, GpuState};
    use crate::policy::PolicySource;
    use partita_model::{OriginKind, PartitionerKind, PolicyConfig};
    use tokio::sync::watch;

    const FILE: &str = "[policy]\nhold_up_ms = 7\nalone_ms = 5\n\n[[policy.memory]]\nmib = 9\n\n\
        [[policy.gpu]]\nnumber = 1\npartitioner = \"even\"\ntenants = [\"alice\", 1002]\n";
    const DROP_IN: &str = "[policy]\nalone_ms = 0x6\nmemory = [{ tenant = \"bob\", mib = 3 }]\n";

    /// Two GPUs, of which the second has another partitioner.
    fn gpus() -> Gpus {
        let gpu = |partitioner| {
            let policy = PolicyConfig { partitioner, ..PolicyConfig::default() };
            let config = GpuConfig { policy, ..GpuConfig::default() };
            let state = watch::channel(GpuState::default()).1;
            (GpuHandle::new(state), watch::channel(Some(config)).0)
        };
        Gpus::new(vec![gpu(PartitionerKind::CdSearch), gpu(PartitionerKind::Even)])
    }

    fn in_force(policy: &str) -> (InForce, String) {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("partitad.toml");
        std::fs::write(&file, FILE).unwrap();
        std::fs::create_dir(folder.path().join("partitad.toml.d")).unwrap();
        std::fs::write(folder.path().join("partitad.toml.d/a.toml"), DROP_IN).unwrap();
        let user = |name: &str| match name {
            "alice" => Some(TenantId(1001)),
            "bob" => Some(TenantId(1002)),
            _ => None,
        };
        let in_force = InForce { policy: policy.parse().unwrap_or_default(), ..InForce::default() };
        in_force.read(Written::of(&ConfigFiles::read(&file).unwrap(), &user));
        (in_force, file.display().to_string())
    }

    fn found(report: &ConfigReport, key: &str) -> Vec<(Option<u16>, String, String)> {
        let keys = report.keys.iter().filter(|one| one.key == key);
        let shown = |one: &ConfigKey| {
            let value = one.value.as_ref().map(ToString::to_string).unwrap_or_default();
            (one.gpu.map(|gpu| gpu.0), value, one.from.to_string())
        };
        keys.map(shown).collect()
    }

    #[test]
    fn each_key_names_the_place_that_decides() {
        let (in_force, file) = in_force("");
        let report = in_force.report(&gpus(), None);
        assert_eq!(report.files, [file.clone(), format!("{file}.d/a.toml")]);
        let one = |key: &str| found(&report, &format!("policy.{key}"))[0].2.clone();
        assert_eq!(one("hold_up_ms"), format!("{file}:2"));
        assert_eq!(one("alone_ms"), format!("{file}.d/a.toml:2"), "the drop-in goes before");
        assert_eq!(one("prepare_ms"), "default");
        let drop_in = report.keys.iter().find(|key| key.key == "policy.alone_ms").unwrap();
        assert_eq!(drop_in.from.kind, OriginKind::DropIn);
        let partitioners = found(&report, "policy.partitioner");
        let expected = [
            (Some(0), "cd-search".to_owned(), "default".to_owned()),
            (Some(1), "even".to_owned(), format!("{file}:10")),
        ];
        assert_eq!(partitioners, expected);
        let memory = found(&report, "policy.memory");
        assert_eq!(memory[0], (None, "mib 9".into(), format!("{file}:5")));
        assert_eq!(memory[1], (None, "mib 3, tenant bob".into(), format!("{file}.d/a.toml:3")));
    }

    #[test]
    fn the_command_line_goes_before_the_files() {
        let (in_force, _) = in_force("slate");
        let report = in_force.report(&gpus(), None);
        assert_eq!(found(&report, "policy.selector")[0].2, "--policy");
        assert!(found(&report, "policy.partitioner").iter().all(|one| one.2 == "--policy"));
        assert_ne!(found(&report, "policy.alone_ms")[0].2, "--policy");
    }

    #[test]
    fn entries_about_other_users_are_counted() {
        let (in_force, _) = in_force("");
        let seen = |uid: u32| {
            let report = in_force.report(&gpus(), Some(TenantId(uid)));
            (serde_json::to_string(&report.keys).unwrap(), report.left_out)
        };
        let (alice, left_out) = seen(1001);
        assert!(alice.contains("alice") && !alice.contains("1002"), "{alice}");
        assert!(alice.contains(r#""other_users":1"#) && !alice.contains("bob"), "{alice}");
        assert_eq!(left_out, 1);
        let (bob, left_out) = seen(1002);
        assert!(bob.contains("bob") && bob.contains("1002") && !bob.contains("alice"), "{bob}");
        assert_eq!(left_out, 0);
        let (nobody, left_out) = seen(1003);
        assert!(!nobody.contains("alice") && !nobody.contains("bob"), "{nobody}");
        assert_eq!(left_out, 2);
    }

    #[test]
    fn an_error_in_several_files_names_its_own() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("partitad.toml");
        std::fs::create_dir(folder.path().join("partitad.toml.d")).unwrap();
        let check = |main: &str, drop_in: &str, expected: &str| {
            std::fs::write(&file, main).unwrap();
            std::fs::write(folder.path().join("partitad.toml.d/a.toml"), drop_in).unwrap();
            let source = PolicySource { file: Some(file.clone()), named: None };
            let error = source.check(2).unwrap_err().to_string();
            let expected = format!("{}/{expected}", folder.path().display());
            assert!(error.starts_with(&expected), "{error}");
        };
        let memory = |mib: i64| format!("[[policy.memory]]\nmib = {mib}\n");
        check(&memory(1), "[policy]\n\nalone_ms = 0\n", "partitad.toml.d/a.toml:3: a limit of 0");
        check("# one\n[policy]\nalone_ms = 0\n", &memory(1), "partitad.toml:3: a limit of 0");
        let twice = "[policy]\n\n[[policy.memory]]\nmib = 2\n";
        check(&memory(1), twice, "partitad.toml.d/a.toml:3: a second quota");
        let shares = "[policy]\n\n\n[[policy.gpu]]\nnumber = 1\npartitioner = \"static\"\n";
        check(&memory(1), shares, "partitad.toml.d/a.toml:6: partitioner `static` needs");
    }

    #[test]
    fn a_refused_reload_is_told_and_changes_nothing() {
        let (in_force, _) = in_force("");
        let before = in_force.report(&gpus(), None);
        in_force.refused("a.toml:3: no user is named `bob`".into());
        let after = in_force.report(&gpus(), None);
        assert_eq!((&after.keys, &after.files), (&before.keys, &before.files));
        assert!(after.refused.unwrap().why.unwrap().contains("bob"));
        let seen = in_force.report(&gpus(), Some(TenantId(1001))).refused.unwrap();
        assert_eq!(seen.why, None, "it may name other users");
        in_force.read(Written::default());
        assert_eq!(in_force.report(&gpus(), None).refused, None);
    }

    /// The parser itself says which keys there are.
    #[test]
    fn every_key_is_told() {
        let error = check_form("f", "[policy]\nunknown = 1\n").unwrap_err();
        let keys: Vec<&str> = error.reason.split('`').skip(3).step_by(2).collect();
        assert!(keys.len() > 12, "{}", error.reason);
        let lists = ["share", "memory", "host_memory", "unfenced", "gpu"];
        for key in keys {
            let is_value = VALUES.iter().any(|(name, _)| *name == key);
            assert!(is_value != lists.contains(&key), "`{key}` is told once");
        }
    }
}
