//! The configuration file and its drop-ins: which files there are, and the one text that they make.
//!
//! Beside `partitad.toml`, the files `partitad.toml.d/*.toml` count, in the order of their names. A
//! later file replaces single values of an earlier one and adds to its lists (`[[policy.share]]`
//! and the like).
//!
//! Invariant: a file that does not parse, or names a key that does not exist, is refused with its
//! own name and line, before files are put together.

use crate::configuration::{ConfigError, check_form};
use std::io;
use std::path::{Path, PathBuf};
use toml::{Table, Value};

/// The files of a configuration, as they were read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ConfigFiles {
    /// The main file first, where it exists, then the drop-ins.
    files: Vec<(PathBuf, String)>,
}

/// The text of a configuration, and its name for messages.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ConfigText {
    /// The name of the file, or of the files.
    pub name: String,
    /// The text.
    pub text: String,
}

/// The folder of the drop-ins of a file.
fn drop_ins(file: &Path) -> PathBuf {
    let mut folder = file.as_os_str().to_owned();
    folder.push(".d");
    folder.into()
}

impl ConfigFiles {
    /// Reads `file` and its drop-ins. A folder of drop-ins that does not exist is empty.
    ///
    /// # Errors
    /// The file that cannot be read, and the system's word.
    pub fn read(file: &Path) -> Result<ConfigFiles, (PathBuf, io::Error)> {
        let mut paths = vec![file.to_owned()];
        let folder = drop_ins(file);
        match std::fs::read_dir(&folder) {
            Ok(entries) => {
                let entries: io::Result<Vec<_>> = entries.collect();
                let entries = entries.map_err(|error| (folder, error))?;
                let mut found: Vec<PathBuf> = entries.iter().map(|entry| entry.path()).collect();
                found.retain(|path| path.extension().is_some_and(|end| end == "toml"));
                found.sort();
                paths.extend(found);
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err((folder, error)),
        }
        let read = |path: PathBuf| match std::fs::read_to_string(&path) {
            Ok(text) => Ok((path, text)),
            Err(error) => Err((path, error)),
        };
        Ok(ConfigFiles { files: paths.into_iter().map(read).collect::<Result<_, _>>()? })
    }

    /// The files, in the order in which they count.
    pub fn paths(&self) -> impl Iterator<Item = &Path> {
        self.files.iter().map(|(path, _)| path.as_path())
    }

    /// The files with their texts, in the order in which they count.
    pub fn texts(&self) -> impl Iterator<Item = (&Path, &str)> {
        self.files.iter().map(|(path, text)| (path.as_path(), text.as_str()))
    }

    /// The one text of all files. A single file stays as it is.
    ///
    /// # Errors
    /// The first file that cannot be used.
    pub fn text(&self) -> Result<ConfigText, ConfigError> {
        for (path, text) in &self.files {
            check_form(&path.display().to_string(), text)?;
        }
        if let [(path, text)] = &self.files[..] {
            return Ok(ConfigText { name: path.display().to_string(), text: text.clone() });
        }
        let mut all = Table::new();
        for (_, text) in &self.files {
            merge(&mut all, text.parse().expect("its form was checked"));
        }
        let main = self.files.first().map_or_else(PathBuf::new, |(path, _)| path.clone());
        let name = format!("{} with its {} drop-ins", main.display(), self.files.len() - 1);
        Ok(ConfigText { name, text: all.to_string() })
    }
}

fn merge(into: &mut Table, more: Table) {
    for (key, value) in more {
        match (into.get_mut(&key), value) {
            (Some(Value::Table(before)), Value::Table(after)) => merge(before, after),
            (Some(Value::Array(before)), Value::Array(after)) => before.extend(after),
            (_, value) => {
                into.insert(key, value);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(files: &[(&str, &str)]) -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("partitad.toml");
        std::fs::create_dir(drop_ins(&file)).unwrap();
        for (name, text) in files {
            std::fs::write(folder.path().join(name), text).unwrap();
        }
        (folder, file)
    }

    #[test]
    fn drop_ins_replace_values_and_add_to_lists() {
        let (_folder, file) = written(&[
            ("partitad.toml", "[policy]\nalone_ms = 5\n[[policy.memory]]\nmib = 9\n"),
            ("partitad.toml.d/20-b.toml", "[policy]\nalone_ms = 7\n"),
            (
                "partitad.toml.d/10-a.toml",
                "[policy]\nalone_ms = 6\nhold_up_ms = 4\n[[policy.memory]]\ntenant = 1\nmib = 3\n",
            ),
            ("partitad.toml.d/ignored.toml.bak", "nonsense ["),
        ]);
        let files = ConfigFiles::read(&file).unwrap();
        assert_eq!(files.paths().count(), 3);
        let text = files.text().unwrap();
        let table: Table = text.text.parse().unwrap();
        let policy = table["policy"].as_table().unwrap();
        assert_eq!(policy["alone_ms"].as_integer(), Some(7));
        assert_eq!(policy["hold_up_ms"].as_integer(), Some(4));
        assert_eq!(policy["memory"].as_array().unwrap().len(), 2);
        assert!(text.name.ends_with("partitad.toml with its 2 drop-ins"), "{}", text.name);
    }

    #[test]
    fn a_single_file_stays_as_it_is() {
        let (_folder, file) = written(&[("partitad.toml", "# nothing\n")]);
        assert_eq!(ConfigFiles::read(&file).unwrap().text().unwrap().text, "# nothing\n");
    }

    #[test]
    fn a_bad_drop_in_is_named_with_its_line() {
        let (_folder, file) = written(&[
            ("partitad.toml", "[policy]\n"),
            ("partitad.toml.d/a.toml", "[policy]\n\nwhatever = 3\n"),
        ]);
        let error = ConfigFiles::read(&file).unwrap().text().unwrap_err();
        assert!(error.file.ends_with("a.toml") && error.line == 3, "{error}");
        let missing = file.with_file_name("other.toml");
        assert_eq!(ConfigFiles::read(&missing).unwrap_err().0, missing);
    }
}
