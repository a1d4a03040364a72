//! Any object as JSON or YAML.

use anyhow::Context;
use serde::Serialize;
use serde_json::Value;

pub fn json(value: &impl Serialize) -> anyhow::Result<String> {
    let mut text = serde_json::to_string_pretty(value).context("cannot write JSON")?;
    text.push('\n');
    Ok(text)
}

pub fn yaml(value: &impl Serialize) -> anyhow::Result<String> {
    let mut text = serde_saphyr::to_string(value).context("cannot write YAML")?;
    if !text.ends_with('\n') {
        text.push('\n');
    }
    Ok(text)
}

/// Several objects as one list, as kubectl gives them.
pub fn list(items: Vec<Value>) -> Value {
    serde_json::json!({"apiVersion": "v1", "kind": "List", "metadata": {"resourceVersion": ""}, "items": items})
}

/// Several objects as YAML documents of one file.
pub fn documents(values: &[impl Serialize]) -> anyhow::Result<String> {
    let documents: Vec<String> = values.iter().map(yaml).collect::<Result<_, _>>()?;
    Ok(documents.join("---\n"))
}
