//! The built-in kinds that are served.

use std::borrow::Cow;
use std::sync::{Arc, OnceLock};

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{
    ConfigMap, Endpoints, Event, Namespace, Node, PersistentVolume, PersistentVolumeClaim, Pod,
    ResourceQuota, Secret, Service, ServiceAccount,
};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::api::events::v1::Event as EventsEvent;
use k8s_openapi::api::scheduling::v1::PriorityClass;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use schemars::{JsonSchema, SchemaGenerator};

use super::{Origin, Resource, Subresources, columns, fields};
use crate::schema::Schema;

/// What is known of a built-in kind at compile time.
#[derive(Debug)]
pub(super) struct Builtin {
    group: &'static str,
    version: &'static str,
    kind: &'static str,
    plural: &'static str,
    short_names: &'static [&'static str],
    categories: &'static [&'static str],
    namespaced: bool,
    subresources: &'static [&'static str],
    pub schema: fn() -> Schema,
    pub definition_name: fn() -> Cow<'static, str>,
    pub define: fn(&mut SchemaGenerator),
}

impl Builtin {
    /// A namespaced kind without subresources.
    const fn new<T: JsonSchema>(
        group: &'static str,
        kind: &'static str,
        plural: &'static str,
    ) -> Builtin {
        Builtin {
            group,
            version: "v1",
            kind,
            plural,
            short_names: &[],
            categories: &[],
            namespaced: true,
            subresources: &[],
            schema: Schema::of::<T>,
            definition_name: T::schema_name,
            define: define::<T>,
        }
    }

    const fn cluster(mut self) -> Builtin {
        self.namespaced = false;
        self
    }

    const fn short(mut self, names: &'static [&'static str]) -> Builtin {
        self.short_names = names;
        self
    }

    const fn in_categories(mut self, categories: &'static [&'static str]) -> Builtin {
        self.categories = categories;
        self
    }

    const fn with(mut self, subresources: &'static [&'static str]) -> Builtin {
        self.subresources = subresources;
        self
    }
}

fn define<T: JsonSchema>(generator: &mut SchemaGenerator) {
    generator.subschema_for::<T>();
}

static BUILTINS: &[Builtin] = &[
    Builtin::new::<ConfigMap>("", "ConfigMap", "configmaps").short(&["cm"]),
    Builtin::new::<Endpoints>("", "Endpoints", "endpoints").short(&["ep"]),
    Builtin::new::<Event>("", "Event", "events").short(&["ev"]),
    Builtin::new::<Namespace>("", "Namespace", "namespaces")
        .cluster()
        .short(&["ns"])
        .with(&["status", "finalize"]),
    Builtin::new::<Node>("", "Node", "nodes")
        .cluster()
        .short(&["no"])
        .with(&["status"]),
    Builtin::new::<PersistentVolumeClaim>("", "PersistentVolumeClaim", "persistentvolumeclaims")
        .short(&["pvc"])
        .with(&["status"]),
    Builtin::new::<PersistentVolume>("", "PersistentVolume", "persistentvolumes")
        .cluster()
        .short(&["pv"])
        .with(&["status"]),
    Builtin::new::<Pod>("", "Pod", "pods")
        .short(&["po"])
        .in_categories(&["all"])
        .with(&["status", "log", "binding", "eviction", "resize"]),
    Builtin::new::<ResourceQuota>("", "ResourceQuota", "resourcequotas")
        .short(&["quota"])
        .with(&["status"]),
    Builtin::new::<Secret>("", "Secret", "secrets"),
    Builtin::new::<ServiceAccount>("", "ServiceAccount", "serviceaccounts").short(&["sa"]),
    Builtin::new::<Service>("", "Service", "services")
        .short(&["svc"])
        .in_categories(&["all"])
        .with(&["status"]),
    Builtin::new::<EventsEvent>("events.k8s.io", "Event", "events").short(&["ev"]),
    Builtin::new::<CustomResourceDefinition>(
        "apiextensions.k8s.io",
        "CustomResourceDefinition",
        "customresourcedefinitions",
    )
    .cluster()
    .short(&["crd", "crds"])
    .in_categories(&["api-extensions"])
    .with(&["status"]),
    Builtin::new::<PriorityClass>("scheduling.k8s.io", "PriorityClass", "priorityclasses")
        .cluster()
        .short(&["pc"]),
    Builtin::new::<Lease>("coordination.k8s.io", "Lease", "leases"),
    Builtin::new::<EndpointSlice>("discovery.k8s.io", "EndpointSlice", "endpointslices"),
];

pub(super) fn resources() -> Vec<Resource> {
    BUILTINS.iter().map(resource).collect()
}

fn resource(builtin: &'static Builtin) -> Resource {
    let owned = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
    let has = |name: &str| builtin.subresources.contains(&name);
    let api_version = |group: &str| match group {
        "" => builtin.version.to_owned(),
        group => format!("{group}/{}", builtin.version),
    };
    // Events are one resource with two faces; the older one is stored.
    let storage_group = if builtin.kind == "Event" {
        ""
    } else {
        builtin.group
    };
    Resource {
        group: builtin.group.to_owned(),
        version: builtin.version.to_owned(),
        kind: builtin.kind.to_owned(),
        list_kind: format!("{}List", builtin.kind),
        plural: builtin.plural.to_owned(),
        singular: builtin.kind.to_lowercase(),
        short_names: owned(builtin.short_names),
        categories: owned(builtin.categories),
        namespaced: builtin.namespaced,
        subresources: Subresources {
            status: has("status"),
            log: has("log"),
            binding: has("binding"),
            eviction: has("eviction"),
            resize: has("resize"),
            finalize: has("finalize"),
        },
        columns: columns::of_builtin(builtin.group, builtin.kind),
        selectable: fields::of_builtin(builtin.group, builtin.kind),
        storage_api_version: api_version(storage_group),
        origin: Origin::Builtin(builtin, Arc::new(OnceLock::new())),
    }
}
