//! How the lists of built-in types are merged: by key, by value, or not at all.
//!
//! k8s-openapi's schemas do not carry this, so it is written down here, by type. The same table
//! goes into the OpenAPI documents: kubectl computes its patches from what it reads there, so
//! the two must agree. Lists that are not named are replaced whole; objects are always merged.

/// The lists of one type, and the types below it that have some.
#[derive(Debug)]
pub(crate) struct MergeStrategy {
    pub fields: &'static [Field],
}

#[derive(Debug)]
pub(crate) struct Field {
    pub name: &'static str,
    pub list: List,
    /// The type of the field, or of its elements.
    pub below: &'static MergeStrategy,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum List {
    /// Not a list, or one that is replaced.
    Replace,
    /// Objects that are the same if this field is.
    ByKey(&'static str),
    /// As `ByKey`; clients say with `$retainKeys` which fields of an element remain, because
    /// an element is a union.
    ByKeyRetaining(&'static str),
    /// Scalars, a set.
    Values,
}

impl List {
    /// What OpenAPI says: `x-kubernetes-patch-strategy` and `x-kubernetes-patch-merge-key`.
    pub(crate) fn extensions(self) -> Option<(&'static str, Option<&'static str>)> {
        match self {
            List::Replace => None,
            List::ByKey(key) => Some(("merge", Some(key))),
            List::ByKeyRetaining(key) => Some(("merge,retainKeys", Some(key))),
            List::Values => Some(("merge", None)),
        }
    }

    pub(super) fn key(self) -> Option<&'static str> {
        match self {
            List::ByKey(key) | List::ByKeyRetaining(key) => Some(key),
            List::Replace | List::Values => None,
        }
    }
}

impl MergeStrategy {
    pub(super) fn field(&self, name: &str) -> (List, &'static MergeStrategy) {
        let field = self.fields.iter().find(|field| field.name == name);
        field.map_or((List::Replace, &NOTHING), |field| (field.list, field.below))
    }
}

const fn list(name: &'static str, list: List) -> Field {
    Field {
        name,
        list,
        below: &NOTHING,
    }
}

const fn lists(name: &'static str, list: List, below: &'static MergeStrategy) -> Field {
    Field { name, list, below }
}

const fn object(name: &'static str, below: &'static MergeStrategy) -> Field {
    Field {
        name,
        list: List::Replace,
        below,
    }
}

pub(super) static NOTHING: MergeStrategy = MergeStrategy { fields: &[] };

static OBJECT_META: MergeStrategy = MergeStrategy {
    fields: &[
        list("ownerReferences", List::ByKey("uid")),
        list("finalizers", List::Values),
    ],
};

static CONTAINER: MergeStrategy = MergeStrategy {
    fields: &[
        list("ports", List::ByKey("containerPort")),
        list("env", List::ByKey("name")),
        list("volumeMounts", List::ByKey("mountPath")),
        list("volumeDevices", List::ByKey("devicePath")),
    ],
};

static POD_SPEC: MergeStrategy = MergeStrategy {
    fields: &[
        list("volumes", List::ByKeyRetaining("name")),
        lists("initContainers", List::ByKey("name"), &CONTAINER),
        lists("containers", List::ByKey("name"), &CONTAINER),
        lists("ephemeralContainers", List::ByKey("name"), &CONTAINER),
        list("imagePullSecrets", List::ByKey("name")),
        list("hostAliases", List::ByKey("ip")),
        list("topologySpreadConstraints", List::ByKey("topologyKey")),
        list("schedulingGates", List::ByKey("name")),
        list("resourceClaims", List::ByKeyRetaining("name")),
    ],
};

static CONTAINER_STATUS: MergeStrategy = MergeStrategy {
    fields: &[
        list("volumeMounts", List::ByKey("mountPath")),
        list("allocatedResourcesStatus", List::ByKey("name")),
    ],
};

static POD_STATUS: MergeStrategy = MergeStrategy {
    fields: &[
        list("conditions", List::ByKey("type")),
        list("hostIPs", List::ByKey("ip")),
        list("podIPs", List::ByKey("ip")),
        list("resourceClaimStatuses", List::ByKeyRetaining("name")),
        object("initContainerStatuses", &CONTAINER_STATUS),
        object("containerStatuses", &CONTAINER_STATUS),
        object("ephemeralContainerStatuses", &CONTAINER_STATUS),
    ],
};

static SERVICE_SPEC: MergeStrategy = MergeStrategy {
    fields: &[list("ports", List::ByKey("port"))],
};
static NODE_SPEC: MergeStrategy = MergeStrategy {
    fields: &[list("podCIDRs", List::Values)],
};
static NODE_STATUS: MergeStrategy = MergeStrategy {
    fields: &[
        list("conditions", List::ByKey("type")),
        list("addresses", List::ByKey("type")),
    ],
};
/// Service, namespace and claim status.
static CONDITIONS: MergeStrategy = MergeStrategy {
    fields: &[list("conditions", List::ByKey("type"))],
};

static POD: MergeStrategy = MergeStrategy {
    fields: &[
        object("metadata", &OBJECT_META),
        object("spec", &POD_SPEC),
        object("status", &POD_STATUS),
    ],
};
static SERVICE: MergeStrategy = MergeStrategy {
    fields: &[
        object("metadata", &OBJECT_META),
        object("spec", &SERVICE_SPEC),
        object("status", &CONDITIONS),
    ],
};
static NODE: MergeStrategy = MergeStrategy {
    fields: &[
        object("metadata", &OBJECT_META),
        object("spec", &NODE_SPEC),
        object("status", &NODE_STATUS),
    ],
};
static WITH_CONDITIONS: MergeStrategy = MergeStrategy {
    fields: &[
        object("metadata", &OBJECT_META),
        object("status", &CONDITIONS),
    ],
};
static SERVICE_ACCOUNT: MergeStrategy = MergeStrategy {
    fields: &[
        object("metadata", &OBJECT_META),
        list("secrets", List::ByKey("name")),
    ],
};
static PLAIN: MergeStrategy = MergeStrategy {
    fields: &[object("metadata", &OBJECT_META)],
};

/// The strategy of a served built-in kind.
pub(super) fn strategy_of_kind(kind: &str) -> &'static MergeStrategy {
    match kind {
        "Pod" => &POD,
        "Service" => &SERVICE,
        "Node" => &NODE,
        "Namespace" | "PersistentVolumeClaim" => &WITH_CONDITIONS,
        "ServiceAccount" => &SERVICE_ACCOUNT,
        _ => &PLAIN,
    }
}

/// The strategy of a type by its OpenAPI name (`io.k8s.api.core.v1.PodSpec`).
pub(crate) fn strategy_of_type(name: &str) -> Option<&'static MergeStrategy> {
    let name = name
        .strip_prefix("io.k8s.api.core.v1.")
        .or_else(|| name.strip_prefix("io.k8s.apimachinery.pkg.apis.meta.v1."))?;
    Some(match name {
        "ObjectMeta" => &OBJECT_META,
        "PodSpec" => &POD_SPEC,
        "PodStatus" => &POD_STATUS,
        "Container" | "EphemeralContainer" => &CONTAINER,
        "ContainerStatus" => &CONTAINER_STATUS,
        "ServiceSpec" => &SERVICE_SPEC,
        "NodeSpec" => &NODE_SPEC,
        "NodeStatus" => &NODE_STATUS,
        "ServiceStatus" | "NamespaceStatus" | "PersistentVolumeClaimStatus" => &CONDITIONS,
        "ServiceAccount" => &SERVICE_ACCOUNT,
        _ => return None,
    })
}
