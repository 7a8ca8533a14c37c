//! Whether programs that were made for the last version's API are served by this one.
//!
//! The last version's description is checked in as `last-version.json`, without texts. A program
//! that knows it may ask for everything in it and rely on everything that it promises:
//!
//! - every operation and every parameter is still there, with the same values;
//! - no parameter and no field of a request has become necessary;
//! - every field of an answer is still there, as surely as before, and has the same values.
//!
//! New operations, new parameters and new fields are no breach: readers skip what they do not know.
//! Nor is a new value of an enumeration, such as the reason of a new policy: a reader that does not
//! know it says so, with the remedy. A breach needs `/v2` beside `/v1`.

use super::openapi::document;
use serde_json::{Map, Value};
use std::collections::BTreeSet;

const LAST: &str = include_str!("last-version.json");
const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/src/api/last-version.json");

/// The description without texts for people, each operation and schema on a line of its own.
fn slim(described: &Value) -> String {
    let mut text = String::from("{\"paths\":{");
    let mut lines = Vec::new();
    for (path, item) in described["paths"].as_object().unwrap() {
        lines.push(format!("\n{}:{}", Value::from(path.as_str()), without_texts(item)));
    }
    text += &lines.join(",");
    text += "},\n\"schemas\":{";
    let schemas = described["components"]["schemas"].as_object().unwrap();
    let lines = schemas
        .iter()
        .map(|(name, schema)| format!("\n{}:{}", Value::from(&**name), without_texts(schema)));
    text += &lines.collect::<Vec<_>>().join(",");
    text += "}}\n";
    text
}

/// A field of a schema may be called `description`, so names of fields are left alone.
fn without_texts(value: &Value) -> Value {
    match value {
        Value::Object(map) => {
            let kept = map.iter().filter(|(key, value)| {
                let is_text = ["description", "summary"].contains(&&***key) && value.is_string();
                !is_text && !["examples", "example", "tags", "operationId"].contains(&&***key)
            });
            kept.map(|(key, value)| match (&**key, value) {
                ("properties", Value::Object(fields)) => {
                    let fields = fields.iter();
                    let fields = fields.map(|(name, field)| (name.clone(), without_texts(field)));
                    (key.clone(), Value::Object(fields.collect()))
                }
                _ => (key.clone(), without_texts(value)),
            })
            .collect::<Map<_, _>>()
            .into()
        }
        Value::Array(values) => values.iter().map(without_texts).collect(),
        other => other.clone(),
    }
}

/// What a program of the version `old` misses in `new`.
fn breaches(old: &Value, new: &Value) -> Vec<String> {
    let mut found = Vec::new();
    let (asked, answered) = (uses(old, "requestBody"), uses(old, "responses"));
    for (path, item) in old["paths"].as_object().unwrap() {
        for (method, operation) in item.as_object().unwrap() {
            let name = format!("{method} {path}");
            match new["paths"].get(path).and_then(|item| item.get(method)) {
                Some(now) => compare_operation(&name, operation, now, &mut found),
                None => found.push(format!("{name} is gone")),
            }
        }
    }
    for (name, schema) in old["schemas"].as_object().unwrap() {
        let Some(now) = new["schemas"].get(name) else {
            found.push(format!("schema {name} is gone"));
            continue;
        };
        compare_schema(name, schema, now, &mut found);
        let (before, after) = (required(schema), required(now));
        if answered.contains(name) {
            let fewer = before.difference(&after);
            found.extend(fewer.map(|field| format!("{name}.{field} may be missing in an answer")));
        }
        if asked.contains(name) {
            let more = after.difference(&before);
            found.extend(more.map(|field| format!("{name}.{field} is necessary in a request")));
        }
    }
    found
}

fn compare_operation(name: &str, old: &Value, new: &Value, found: &mut Vec<String>) {
    let parameters =
        |operation: &Value| operation["parameters"].as_array().cloned().unwrap_or_default();
    let (before, after) = (parameters(old), parameters(new));
    let same = |a: &Value, b: &Value| a["name"] == b["name"] && a["in"] == b["in"];
    for parameter in &before {
        match after.iter().find(|now| same(parameter, now)) {
            Some(now) if now["schema"] == parameter["schema"] => {}
            Some(_) => found.push(format!("{name}: parameter {} changed", parameter["name"])),
            None => found.push(format!("{name}: parameter {} is gone", parameter["name"])),
        }
    }
    for now in after.iter().filter(|now| now["required"] == true) {
        let was =
            before.iter().any(|parameter| same(parameter, now) && parameter["required"] == true);
        if !was {
            found.push(format!("{name}: parameter {} is necessary", now["name"]));
        }
    }
    if old.get("requestBody") != new.get("requestBody") {
        found.push(format!("{name}: the body of the request changed"));
    }
    for (status, answer) in old["responses"].as_object().unwrap() {
        if new["responses"].get(status) != Some(answer) {
            found.push(format!("{name}: the answer {status} changed"));
        }
    }
}

fn compare_schema(name: &str, old: &Value, new: &Value, found: &mut Vec<String>) {
    for (field, values) in old["properties"].as_object().into_iter().flatten() {
        match new["properties"].get(field) {
            Some(now) if now == values => {}
            Some(_) => found.push(format!("{name}.{field} has other values")),
            None => found.push(format!("{name}.{field} is gone")),
        }
    }
    let rest = |schema: &Value| {
        let mut rest = schema.as_object().cloned().unwrap_or_default();
        let apart = ["properties", "required", "enum", "oneOf"];
        rest.retain(|key, _| !apart.contains(&&**key));
        rest
    };
    let fewer = ["enum", "oneOf"].iter().any(|list| {
        let values = |schema: &Value| schema[list].as_array().cloned().unwrap_or_default();
        let now = values(new);
        values(old).iter().any(|value| !now.contains(value))
    });
    if fewer || rest(old) != rest(new) {
        found.push(format!("{name} has other values"));
    }
}

fn required(schema: &Value) -> BTreeSet<String> {
    let names = schema["required"].as_array().into_iter().flatten();
    names.filter_map(|name| name.as_str().map(str::to_owned)).collect()
}

/// The schemas that operations use in this part, and those that these use.
fn uses(described: &Value, part: &str) -> BTreeSet<String> {
    let mut open: Vec<String> = Vec::new();
    for item in described["paths"].as_object().unwrap().values() {
        for operation in item.as_object().unwrap().values() {
            open.extend(references(&operation[part]));
        }
    }
    let mut found = BTreeSet::new();
    while let Some(name) = open.pop() {
        if found.insert(name.clone()) {
            open.extend(references(&described["schemas"][&name]));
        }
    }
    found
}

fn references(value: &Value) -> Vec<String> {
    match value {
        Value::Object(map) => {
            let own = map.get("$ref").and_then(Value::as_str);
            let own = own.and_then(|path| path.rsplit('/').next()).map(str::to_owned);
            own.into_iter().chain(map.values().flat_map(references)).collect()
        }
        Value::Array(values) => values.iter().flat_map(references).collect(),
        _ => Vec::new(),
    }
}

fn this_version() -> Value {
    serde_json::from_str(&slim(&serde_json::from_str(&document()).unwrap())).unwrap()
}

/// `PARTITA_WRITE_LAST_API=1` makes this version the last one: after a release, never else.
#[test]
fn programs_of_the_last_version_are_served() {
    if std::env::var_os("PARTITA_WRITE_LAST_API").is_some() {
        let described = serde_json::from_str(&document()).unwrap();
        std::fs::write(FILE, slim(&described)).unwrap();
        return;
    }
    let last = serde_json::from_str(LAST).unwrap();
    let breaches = breaches(&last, &this_version());
    assert!(breaches.is_empty(), "the last version's programs break: {breaches:#?}");
}

#[test]
fn every_kind_of_breach_is_found() {
    let check = |expected: &str, change: &dyn Fn(&mut Value)| {
        let (old, mut new) = (this_version(), this_version());
        change(&mut new);
        let found = breaches(&old, &new);
        assert!(found.iter().any(|breach| breach == expected), "{expected}: {found:?}");
    };
    let remove = |value: &mut Value, key: &str| drop(value.as_object_mut().unwrap().remove(key));
    check("get /v1/status is gone", &|new| remove(&mut new["paths"], "/v1/status"));
    check("put /v1/plan is gone", &|new| remove(&mut new["paths"]["/v1/plan"], "put"));
    check("schema StatusReport is gone", &|new| remove(&mut new["schemas"], "StatusReport"));
    let status = |new: &mut Value, key: &str| new["schemas"]["StatusReport"][key].take();
    check("StatusReport.version is gone", &|new| {
        remove(&mut new["schemas"]["StatusReport"]["properties"], "version");
    });
    check("StatusReport.version has other values", &|new| {
        new["schemas"]["StatusReport"]["properties"]["version"] = "a number".into();
    });
    check("StatusReport.version may be missing in an answer", &|new| {
        drop(status(new, "required"));
    });
    check("StatusReport has other values", &|new| drop(status(new, "type")));
    let has_values = |schema: &Value| schema["enum"].is_array();
    let first = this_version();
    let mut schemas = first["schemas"].as_object().unwrap().iter();
    let name = schemas.find(|(_, schema)| has_values(schema)).unwrap().0;
    check(&format!("{name} has other values"), &|new| {
        drop(new["schemas"][name]["enum"].as_array_mut().unwrap().pop());
    });
    check("get /v1/status: the answer 200 changed", &|new| {
        drop(new["paths"]["/v1/status"]["get"]["responses"]["200"].take());
    });
    check("get /v1/status: parameter \"token\" is necessary", &|new| {
        let parameter = serde_json::json!({"name": "token", "in": "query", "required": true});
        let parameters = &mut new["paths"]["/v1/status"]["get"]["parameters"];
        match parameters.as_array_mut() {
            Some(list) => list.push(parameter),
            None => *parameters = vec![parameter].into(),
        }
    });
    check("put /v1/plan: the body of the request changed", &|new| {
        drop(new["paths"]["/v1/plan"]["put"]["requestBody"].take());
    });
    let asked = uses(&this_version(), "requestBody");
    let body = asked.iter().next().unwrap().clone();
    check(&format!("{body}.more is necessary in a request"), &|new| {
        let mut list = required(&new["schemas"][&body]);
        list.insert("more".into());
        new["schemas"][&body]["required"] = list.into_iter().collect();
    });
    // What is new breaks nobody.
    let mut more = this_version();
    more["paths"]["/v1/more"] = more["paths"]["/v1/status"].clone();
    more["schemas"]["StatusReport"]["properties"]["more"] = "anything".into();
    more["schemas"][name]["enum"].as_array_mut().unwrap().push("more".into());
    assert_eq!(breaches(&this_version(), &more), Vec::<String>::new());
}
