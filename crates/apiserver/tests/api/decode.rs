//! No bytes break the decoder, or the server behind it.

use axum::body::Body;
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, Request, header};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use stoke_apiserver::request::{Parts, decode};

use crate::world::World;

fn method() -> impl Strategy<Value = Method> {
    prop::sample::select(vec![
        Method::GET,
        Method::POST,
        Method::PUT,
        Method::PATCH,
        Method::DELETE,
        Method::OPTIONS,
    ])
}

fn path() -> impl Strategy<Value = String> {
    let part = prop_oneof![
        prop::sample::select(vec![
            "api",
            "apis",
            "v1",
            "pods",
            "namespaces",
            "default",
            "status",
            "log",
            "binding",
            "..",
            "%2e",
            "%00",
            "",
            "stokehold.dev",
            "v1alpha1",
            "trainjobs",
            "openapi",
            "v3",
            "nodes",
            "a%zz",
        ])
        .prop_map(str::to_owned),
        "[a-z%./0-9]{0,8}",
    ];
    prop::collection::vec(part, 0..8).prop_map(|parts| format!("/{}", parts.join("/")))
}

fn query() -> impl Strategy<Value = String> {
    let pair = (
        prop::sample::select(vec![
            "labelSelector",
            "fieldSelector",
            "limit",
            "continue",
            "watch",
            "resourceVersion",
            "dryRun",
            "resourceVersionMatch",
            "fieldValidation",
            "gracePeriodSeconds",
            "propagationPolicy",
            "tailLines",
            "sinceTime",
            "timeoutSeconds",
            "includeObject",
        ]),
        prop_oneof![
            Just("1".to_owned()),
            Just("All".to_owned()),
            Just("a in (b,c),!d".to_owned()),
            "[ -~]{0,12}",
        ],
    );
    prop::collection::vec(pair, 0..4).prop_map(|pairs| {
        let pairs: Vec<_> = pairs
            .iter()
            .map(|(name, value)| format!("{name}={value}"))
            .collect();
        pairs.join("&")
    })
}

fn media() -> impl Strategy<Value = &'static str> {
    prop::sample::select(vec![
        "application/json",
        "application/yaml",
        "application/json-patch+json",
        "application/merge-patch+json",
        "application/strategic-merge-patch+json",
        "application/apply-patch+yaml",
        "application/vnd.kubernetes.protobuf",
        "text/plain",
    ])
}

fn body() -> impl Strategy<Value = Vec<u8>> {
    let leaf = prop_oneof![
        Just("null".to_owned()),
        any::<i64>().prop_map(|number| number.to_string()),
        "[a-zA-Z-]{0,8}".prop_map(|text| format!("{text:?}")),
    ];
    let json = leaf.prop_recursive(5, 40, 5, |inner| {
        let name = prop::sample::select(vec![
            "metadata",
            "spec",
            "status",
            "name",
            "namespace",
            "labels",
            "containers",
            "kind",
            "apiVersion",
            "finalizers",
            "ownerReferences",
            "op",
            "path",
            "value",
            "$patch",
            "resources",
            "limits",
        ]);
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4)
                .prop_map(|items| format!("[{}]", items.join(","))),
            prop::collection::vec((name, inner), 0..5).prop_map(|fields| {
                let fields: Vec<_> = fields
                    .iter()
                    .map(|(name, value)| format!("{name:?}:{value}"))
                    .collect();
                format!("{{{}}}", fields.join(","))
            }),
        ]
    });
    prop_oneof![
        3 => json.prop_map(String::into_bytes),
        1 => prop::collection::vec(any::<u8>(), 0..200),
        1 => prop::collection::vec(any::<u8>(), 0..80).prop_map(|bytes| [b"k8s\0", bytes.as_slice()].concat()),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]
    #[test]
    fn decoding_never_panics(
        method in method(),
        path in path(),
        query in prop::option::of(query()),
        media in media(),
        accept in "[ -~]{0,40}",
        body in body(),
    ) {
        let mut headers = HeaderMap::new();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(media));
        if let Ok(accept) = HeaderValue::from_str(&accept) {
            headers.insert(header::ACCEPT, accept);
        }
        let decoded = decode(&Parts {
            method: &method,
            path: &path,
            query: query.as_deref(),
            headers: &headers,
            body: &Bytes::from(body),
        });
        if let Err(status) = decoded {
            prop_assert!((400..500).contains(&status.code().as_u16()), "{status:?}");
        }
    }
}

/// Arbitrary requests at a whole server: it answers each, and lives on.
#[tokio::test(flavor = "multi_thread")]
async fn the_server_survives_anything() {
    let world = World::new().await;
    world.create_pod("a").await;
    let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig {
        cases: 1,
        ..ProptestConfig::default()
    });
    let targets = prop::sample::select(vec![
        "/api/v1/namespaces/default/pods",
        "/api/v1/namespaces/default/pods/a",
        "/api/v1/namespaces/default/pods/a/status",
        "/api/v1/namespaces/default/pods/a/resize",
        "/api/v1/namespaces/default/pods/a/binding",
        "/api/v1/namespaces/default/secrets",
        "/api/v1/namespaces",
        "/apis/stokehold.dev/v1alpha1/namespaces/default/trainjobs",
        "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
    ]);
    let strategy = (method(), targets, media(), body());
    for _ in 0..1500 {
        let (method, path, media, body) = strategy.new_tree(&mut runner).unwrap().current();
        let shown = format!("{method} {path} {media} {}", String::from_utf8_lossy(&body));
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header(header::CONTENT_TYPE, media)
            .body(Body::from(body))
            .unwrap();
        let answer = world.send(request).await;
        assert!(answer.code.as_u16() < 500, "{shown}\n{}", answer.shown());
    }
    world.get("/api/v1/namespaces/default").await.ok();
}
