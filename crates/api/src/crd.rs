//! The CustomResourceDefinitions, generated from the types and the rules. `stoke crds` prints them.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceDefinition, JSONSchemaProps, JSONSchemaPropsOrArray, JSONSchemaPropsOrBool,
    ValidationRule,
};
use kube::CustomResourceExt;

use crate::rules::{self, Rule};
use crate::{Dataset, JobProfile, Queue, TrainJob};

/// All our kinds.
pub fn crds() -> Vec<CustomResourceDefinition> {
    vec![
        with_rules(TrainJob::crd(), rules::TRAIN_JOB),
        with_rules(Queue::crd(), rules::QUEUE),
        with_rules(Dataset::crd(), rules::DATASET),
        with_rules(JobProfile::crd(), &[] as &[Rule<JobProfile>]),
    ]
}

fn with_rules<T>(mut crd: CustomResourceDefinition, rules: &[Rule<T>]) -> CustomResourceDefinition {
    let schemas = crd
        .spec
        .versions
        .iter_mut()
        .filter_map(|version| version.schema.as_mut()?.open_api_v3_schema.as_mut());
    for schema in schemas {
        plain(schema);
        if !rules.is_empty() {
            schema.x_kubernetes_validations =
                Some(rules.iter().map(|rule| validation(rule, schema)).collect());
        }
    }
    crd
}

/// Takes out what the generator says of Rust and an API server does not understand: a field that may be left out is not
/// thereby nullable (a null is dropped before any rule sees it), and `uint32` is no format it knows.
fn plain(schema: &mut JSONSchemaProps) {
    schema.nullable = None;
    schema
        .enum_
        .iter_mut()
        .for_each(|values| values.retain(|value| !value.0.is_null()));
    if schema
        .format
        .as_deref()
        .is_some_and(|format| format.starts_with("uint"))
    {
        schema.format = None;
    }
    schema
        .properties
        .iter_mut()
        .flat_map(|properties| properties.values_mut())
        .for_each(plain);
    if let Some(JSONSchemaPropsOrArray::Schema(items)) = &mut schema.items {
        plain(items);
    }
    if let Some(JSONSchemaPropsOrBool::Schema(values)) = &mut schema.additional_properties {
        plain(values);
    }
}

fn validation<T>(rule: &Rule<T>, schema: &JSONSchemaProps) -> ValidationRule {
    ValidationRule {
        rule: rule.cel.to_owned(),
        message: Some(rule.message.to_owned()),
        field_path: is_described(schema, rule.path).then(|| format!(".{}", rule.path)),
        ..ValidationRule::default()
    }
}

/// A server refuses a rule whose path its schema does not describe, as `metadata.name` is not.
fn is_described(schema: &JSONSchemaProps, path: &str) -> bool {
    let found = path.split('.').try_fold(schema, |schema, field| {
        schema.properties.as_ref()?.get(field)
    });
    found.is_some()
}
