//! What of the daemon's log goes into a bug report: lines about its maker, and lines about nobody.
//!
//! A line that may be about another user is left out. Lines with the fields of
//! `partita-log` say whom they are about. Of all other lines only those stay that systemd writes,
//! and the last words of a process. What stands between backquotes is hidden there, because it may
//! be a name, and so are numbers of users.

use serde_json::Value;

/// The beginning of the names of fields.
const PREFIX: &str = "PARTITA_";
/// The field with the user.
const TENANT: &str = "PARTITA_TENANT";
/// Fields that only lines about somebody have.
const OF_SOMEBODY: [&str; 9] =
    ["SESSION", "APPLICATION", "PROGRAM", "KERNEL", "PID", "UID", "CALLER", "ANSWER", "OTHER"];
/// Beginnings of lines that a process writes when it ends.
const LAST_WORDS: [&str; 3] = ["partitad: ", "partita-gpu: ", "thread '"];
/// What stands before the number of a user.
const BEFORE_NUMBERS: [&str; 4] = ["uid ", "user ", "tenant ", "tenant = "];
/// Lines that are kept, the latest.
const MOST_LINES: usize = 500;

/// The lines of a journal, as `journalctl --output json` prints it, that the user `own` may hand
/// on.
pub fn own_lines(journal: &[u8], own: u32) -> Result<Vec<u8>, String> {
    let entries = journal.split(|&byte| byte == b'\n').filter(|line| !line.is_empty());
    let (mut kept, mut left_out) = (Vec::new(), 0_usize);
    for entry in entries {
        let entry: Value = serde_json::from_slice(entry)
            .map_err(|error| format!("journalctl printed something else than JSON: {error}"))?;
        match line(&entry, own) {
            Some(line) => kept.push(line),
            None => left_out += 1,
        }
    }
    let first = kept.len().saturating_sub(MOST_LINES);
    if kept.is_empty() && left_out == 0 {
        return Err("there are no lines that this user may read".into());
    }
    let mut text = kept[first..].concat();
    text += &format!("lines that may be about others and are left out: {left_out}\n");
    Ok(text.into_bytes())
}

/// One line, where it may be handed on.
fn line(entry: &Value, own: u32) -> Option<String> {
    let field = |name: &str| entry[name].as_str();
    let message = field("MESSAGE")?;
    let is_own = field(TENANT) == Some(own.to_string().as_str());
    let text = match field("_TRANSPORT") {
        _ if is_own => message.to_owned(),
        _ if field("SYSLOG_IDENTIFIER") == Some("systemd") => message.to_owned(),
        Some("journal") if is_about_nobody(entry) => masked(message),
        _ if LAST_WORDS.iter().any(|begin| message.starts_with(begin)) => masked(message),
        _ => return None,
    };
    let unit = field("_SYSTEMD_UNIT").or(field("UNIT")).unwrap_or("unit not known");
    let (time, priority) = (field("__REALTIME_TIMESTAMP"), field("PRIORITY"));
    let (time, priority) = (time.unwrap_or("time not known"), priority.unwrap_or("?"));
    Some(format!("{time} {unit} <{priority}> {text}\n"))
}

fn is_about_nobody(entry: &Value) -> bool {
    let has = |name: &str| !entry[format!("{PREFIX}{name}")].is_null();
    // A line without fields of ours is another version's: nothing says whom it is about.
    let is_ours = entry["TARGET"].as_str().is_some_and(|target| target.starts_with("partita"));
    is_ours && entry[TENANT].is_null() && !OF_SOMEBODY.iter().any(|name| has(name))
}

/// The text without what stands between backquotes, and without numbers of users.
fn masked(text: &str) -> String {
    let part = |(index, part)| if index % 2 == 1 { "…" } else { part };
    let mut text = text.split('`').enumerate().map(part).collect::<Vec<_>>().join("`");
    for before in BEFORE_NUMBERS {
        let mut parts = text.split(before);
        let first = parts.next().unwrap_or_default().to_owned();
        text = parts.fold(first, |text, part| match part.trim_start_matches(char::is_numeric) {
            rest if rest.len() < part.len() => text + before + "…" + rest,
            _ => text + before + part,
        });
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn of(entries: &[Value]) -> String {
        let lines: Vec<String> = entries.iter().map(ToString::to_string).collect();
        String::from_utf8(own_lines(lines.join("\n").as_bytes(), 1000).unwrap()).unwrap()
    }

    /// An entry of ours.
    fn entry(message: &str, fields: Value) -> Value {
        let mut entry = json!({"MESSAGE": message, "_TRANSPORT": "journal", "PRIORITY": "4",
            "TARGET": "partita_gpu::shell", "_SYSTEMD_UNIT": "partita-gpu@0.service",
            "__REALTIME_TIMESTAMP": "17"});
        entry.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        entry
    }

    #[test]
    fn lines_about_others_are_left_out_and_counted() {
        let text = of(&[
            entry("my kernel `mine` failed", json!({"PARTITA_TENANT": "1000"})),
            entry("secret one", json!({"PARTITA_TENANT": "1001", "PARTITA_KERNEL": "secret"})),
            entry("secret two", json!({"PARTITA_SESSION": "3"})),
            entry("secret three", json!({"PARTITA_APPLICATION": "3"})),
            entry("secret four", json!({"PARTITA_PID": "3"})),
            entry("SMs stay powered", json!({})),
            entry("secret five of another version", json!({"TARGET": null})),
            json!({"MESSAGE": "secret six", "_TRANSPORT": "stdout"}),
            json!({"_TRANSPORT": "stdout"}),
        ]);
        assert_eq!(
            text,
            "17 partita-gpu@0.service <4> my kernel `mine` failed\n\
             17 partita-gpu@0.service <4> SMs stay powered\n\
             lines that may be about others and are left out: 7\n"
        );
    }

    #[test]
    fn last_words_and_units_stay_without_names() {
        let text = of(&[
            json!({"MESSAGE": "partitad: a.toml:3: no user is named `secret`; sorry",
                "_TRANSPORT": "stdout", "UNIT": "partitad.service"}),
            json!({"MESSAGE": "Started partitad", "SYSLOG_IDENTIFIER": "systemd",
                "UNIT": "partitad.service"}),
            entry("a.toml:3: tag `secret`", json!({"TARGET": "partitad"})),
            entry("tenant = 4711, uid 4712: 24 SMs", json!({"TARGET": "partitad"})),
        ]);
        assert!(text.contains("tenant = …, uid …: 24 SMs"), "{text}");
        assert!(text.contains("partitad: a.toml:3: no user is named `…`; sorry"), "{text}");
        assert!(text.contains("Started partitad") && !text.contains("secret"), "{text}");
        assert!(text.contains("tag `…`"), "{text}");
    }

    #[test]
    fn the_latest_lines_stay() {
        let many: Vec<Value> = (0..600).map(|n| entry(&format!("line {n}."), json!({}))).collect();
        let text = of(&many);
        assert!(text.lines().next().unwrap().ends_with("line 100."), "{text}");
        assert!(text.contains("line 599."));
        assert!(own_lines(b"no entries\n", 1).unwrap_err().contains("something else"));
        assert!(own_lines(b"", 1).unwrap_err().contains("no lines"));
    }
}
