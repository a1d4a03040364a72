use std::fs;
use std::path::Path;

use clap::Parser;

use super::*;

#[derive(Debug, Parser)]
struct Line {
    #[command(flatten)]
    args: Args,
}

fn args(line: &str) -> Args {
    let words = std::iter::once("estimate").chain(line.split_whitespace());
    Line::try_parse_from(words).expect("a good line").args
}

fn report(args: &Args) -> report::Report {
    report::Report::new(
        args.shape().expect("a shape"),
        args.training().expect("a training"),
        args.gpus().expect("GPUs"),
    )
}

fn refused(line: &str) -> String {
    let args = args(line);
    let shape = args.shape().and_then(|_| args.training()).map(|_| ());
    let error = shape.and_then(|()| args.gpus().map(|_| ()));
    let error = error.expect_err("refused");
    let failure = error.downcast_ref::<Failure>().expect("a failure");
    let mut text = anstream::adapter::strip_str(&failure.shown()).to_string();
    if let Some(source) = std::error::Error::source(failure) {
        text = format!("{text}\n({source})");
    }
    text
}

const LLAMA: &str = "--layers 32 --hidden 4096 --heads 32 --kv-heads 8 --intermediate 14336 --gated-mlp --vocab 128256";

#[test]
fn people_get_parts_gpus_and_what_would_help() {
    let args = args(&format!(
        "{LLAMA} --method lora --precision bf16 --seq 4096 --flash --gpu a10,a100"
    ));
    let text = report(&args).text();
    insta::assert_snapshot!(anstream::adapter::strip_str(&text), @"
    8.03B parameters: 32 layers of 4096, 32 heads (8 of keys and values), 14336 between, 128256 words
    lora in bf16 with adamw, 1 x 4096 tokens at once on each of 1 GPU

    PART            MEMORY    WHAT
    weights         15 GiB    8.03B frozen in bf16, adapters of rank 8
    gradients       13 MiB    of what is trained
    optimizer       26 MiB    adamw
    activations     24 GiB    what all layers keep of each token
    logits          4.9 GiB   of 128256 words, with their gradient
    buffers         32 MiB    of libraries and communication
    fragmentation   3.5 GiB   held by the allocator and used by no one
    context         1.3 GiB   held by the driver and its libraries
    TOTAL 48 GiB of each GPU

    GPU        MEMORY   FITS   WITH                               OR WITH MORE GPUS
    a10-24g    22 GiB   no     --grad-checkpoint --method qlora   --gpus 2 --zero 3 --grad-checkpoint
    a100-40g   40 GiB   no     --grad-checkpoint                  --gpus 2 --zero 3 --grad-checkpoint
    a100-80g   80 GiB   yes
    WITH: the least that must change, as flags to add here. tight: it may or may not fit.
    ");
}

#[test]
fn programs_get_figures() {
    let args = args(&format!(
        "{LLAMA} --seq 4096 --flash --fsdp --gpus 8 --gpu h100-80g -o json"
    ));
    insta::assert_snapshot!(report(&args).json(), @r#"
    {"bytes":{"activations":33470545920,"allocated":58926900224,"buffers":2134900736,"context":897581056,"fragmentation":4714152018,"gradients":4015130624,"logits":5253365760,"optimizer":12045391872,"reserved":63641052242,"total":64538633298,"weights":2007565312},"gpus":[{"changes":null,"fits":"yes","gpu":"h100-80g","memory_bytes":85520809984,"more_gpus":null,"needs_bytes":64538633298}],"parameters":8030261248}
    "#);
}

#[test]
fn flags_can_be_added_to_the_same_line() {
    let args = args("--params 7B --batch 8 --flash --batch 2 --precision fp32 --precision bf16");
    let training = args.training().expect("a training");
    assert_eq!((training.batch, training.precision), (2, Precision::Bf16));
    assert!(training.flash);
}

fn safetensors(path: &Path, tensors: &serde_json::Value) {
    let header = tensors.to_string();
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.as_bytes());
    bytes.extend([0; 64]);
    fs::write(path, bytes).expect("written");
}

#[test]
fn a_model_is_read_from_its_files() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name);
    let tensor = |shape: [u64; 2]| serde_json::json!({"dtype": "F32", "shape": shape, "data_offsets": [0, 0]});
    safetensors(
        &at("m-1.safetensors"),
        &serde_json::json!({"wte.weight": tensor([50257, 768]), "h.0.mlp.c_fc.weight": tensor([768, 3072])}),
    );
    safetensors(
        &at("m-2.safetensors"),
        &serde_json::json!({"h.0.attn.c_attn.weight": tensor([768, 2304])}),
    );
    let index = r#"{"weight_map": {"a": "m-1.safetensors", "b": "m-2.safetensors"}}"#;
    fs::write(at("index.json"), index).expect("written");
    let config = r#"{"n_embd": 768, "n_layer": 12, "n_head": 12, "vocab_size": 50257, "activation_function": "gelu_new"}"#;
    fs::write(at("config.json"), config).expect("written");

    let shape = |line: String| args(&line).shape().expect("a shape");
    let config = at("config.json").display().to_string();
    let index = at("index.json").display().to_string();
    let by_config = shape(format!("--config {config}"));
    assert_eq!((by_config.layers, by_config.params / 1_000_000), (12, 123));
    let by_weights = shape(format!("--safetensors {index}"));
    let params = 50257 * 768 + 768 * 3072 + 768 * 2304;
    assert_eq!((by_weights.layers, by_weights.params), (1, params));
    let by_both = shape(format!(
        "--config {config} --safetensors {index} --vocab 50304"
    ));
    assert_eq!(
        (by_both.layers, by_both.params, by_both.vocab),
        (12, params, 50304)
    );
    let fewer_heads = shape(format!("--config {config} --heads 6"));
    assert_eq!((fewer_heads.heads, fewer_heads.head_dim), (6, 128));

    fs::remove_file(at("m-2.safetensors")).expect("removed");
    let gone = refused(&format!("--safetensors {index}"));
    let gone = gone.replace(&folder.path().display().to_string(), "FOLDER");
    insta::assert_snapshot!(gone, @"
    cannot read FOLDER/m-2.safetensors
    hint: --safetensors takes model.safetensors, or model.safetensors.index.json with all its files beside it
    (No such file or directory (os error 2))
    ");
    fs::write(at("x.json"), r#"{"hidden_size": 8}"#).expect("written");
    let partial = refused(&format!("--config {}", at("x.json").display()));
    let partial = partial.replace(&folder.path().display().to_string(), "FOLDER");
    insta::assert_snapshot!(partial, @"
    FOLDER/x.json does not describe a transformer
    hint: say it by flags: stoke estimate --help
    (it has no number of layers; looked for num_hidden_layers, n_layer, num_layers, n_layers, encoder_layers)
    ");
    fs::write(at("short.safetensors"), b"abc").expect("written");
    refused(&format!(
        "--safetensors {}",
        at("short.safetensors").display()
    ));
}

#[test]
fn what_is_wrong_is_told_with_what_to_type() {
    insta::assert_snapshot!(refused("--gpus 2"), @"
    neither the number of parameters nor layers and hidden size are given
    hint: stoke estimate --params 8B, or --layers 32 --hidden 4096 --heads 32; more: stoke estimate --help
    ");
    insta::assert_snapshot!(refused("--layers 2 --hidden 100 --heads 3"), @"
    hidden size 100 is no multiple of 3 heads
    hint: stoke estimate --params 8B, or --layers 32 --hidden 4096 --heads 32; more: stoke estimate --help
    ");
    insta::assert_snapshot!(refused("--params 7B --gpus 6 --tensor-parallel 4"), @"
    6 GPUs cannot share layers in groups of 4
    hint: --gpus 8
    ");
    insta::assert_snapshot!(refused("--params 7B --gpu a1000"), @r#"
    no GPU type "a1000" is known
    hint: one of these: t4-16g, v100-16g, l4-24g, a10-24g, rtx-3090-24g, rtx-4090-24g, v100-32g, rtx-5090-32g, a100-40g, l40s-48g, a6000-48g, a100-80g, h100-80g, h100-94g, h200-141g, b200-180g, mi300x-192g
    "#);
}

#[test]
fn measurements_are_compared() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("measured.csv");
    let head = "source,model,params_b,layers,hidden,heads,kv_heads,intermediate,gated_mlp,vocab,method,precision,optimizer,batch,seq,\
                grad_checkpoint,flash,lora_rank,gpus,unit,measured,how";
    let row = "\"a, b\",tiny,0.1,2,512,8,8,2048,false,1000,full,fp32,adamw,1,128,false,true,0,1,GB,1.7,max allocated";
    fs::write(&path, format!("{head}\n{row}\n")).expect("written");
    let rows = source::measured(&path).expect("rows");
    insta::assert_snapshot!(anstream::adapter::strip_str(&report::accuracy_text(&rows)), @"
    MODEL   TRAINING          MEASURED   ESTIMATED   ERROR
    tiny    full fp32 adamw   1.58 GiB   1.53 GiB    -3.1 %

    1 measurement: median error 3.1 %, worst underestimate 3.1 %, worst overestimate 0.0 %
    ");
    fs::write(
        &path,
        format!("{head}\n{}\n", row.replace("adamw", "magic")),
    )
    .expect("written");
    let error = source::measured(&path).expect_err("refused").shown();
    assert!(
        error.contains("line 2: optimizer is \"magic\", not one of adamw"),
        "{error}"
    );
}
