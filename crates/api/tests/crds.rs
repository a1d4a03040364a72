//! The CRDs as a person would read them. `stoke crds` prints the same.

#[test]
fn crds_are_as_reviewed() {
    for crd in stoke_api::crds() {
        let kind = crd.spec.names.kind.clone();
        insta::assert_yaml_snapshot!(kind, crd);
    }
}

/// An API server turns away a default or an enum that is null, and a CRD of a megabyte is nobody's friend.
#[test]
fn crds_are_structural_and_small() {
    for crd in stoke_api::crds() {
        let text = serde_json::to_string(&crd).expect("JSON");
        assert!(
            text.len() < 48 * 1024,
            "{} is {} bytes",
            crd.spec.names.kind,
            text.len()
        );
        assert!(
            !text.contains("null"),
            "{} holds a null",
            crd.spec.names.kind
        );
        assert!(
            !text.contains("$ref"),
            "{} holds a reference",
            crd.spec.names.kind
        );
    }
}

/// The job in the design, as a person writes it.
#[test]
fn the_whole_job_is_read() {
    let yaml = r#"
apiVersion: stokehold.dev/v1alpha1
kind: TrainJob
metadata: {name: resnet50}
spec:
  framework: torch
  workers: 2
  gpus: 8
  gpuTypes: [a100-80g, h100]
  image: acme/vision:1.4
  command: [python, train.py, --epochs, "90"]
  queue: vision
  priority: standard
  memory: {max: 200Gi}
  datasets: [{name: imagenet, path: /data}]
  checkpoint: {path: /ckpt, size: 200Gi, every: 15m}
  spot: allowed
  retries: 3
  maxDuration: 48h
  ttl: 24h
"#;
    let job: stoke_api::TrainJob = serde_saphyr::from_str(yaml).expect("a job");
    assert_eq!(job.spec.world_size(), 16);
    assert_eq!(job.spec.ttl, Some(stoke_api::Span::hours(24)));
    let value = serde_json::to_value(&job).expect("JSON");
    assert_eq!(stoke_api::violations("TrainJob", &value, None), []);
}
