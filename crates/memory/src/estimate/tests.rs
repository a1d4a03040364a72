use std::path::PathBuf;

use proptest::prelude::*;
use stoke_api::{GpuMilli, GpuRequest, Parameters};

use super::*;

fn llama() -> Model {
    Model {
        layers: Some(32),
        hidden: Some(4096),
        heads: Some(32),
        kv_heads: Some(8),
        intermediate: Some(14_336),
        vocab: 128_256,
        ..Model::default()
    }
}

fn of(model: &Model, gpus: u32) -> Estimate {
    estimate(&Shape::of(model).unwrap(), &Training::of(model, gpus))
}

fn gib(bytes: Bytes) -> f64 {
    bytes.0 as f64 / f64::from(1 << 30)
}

fn data(name: &str) -> Option<String> {
    let root = match std::env::var_os("STOKE_DATA") {
        Some(root) => PathBuf::from(root),
        None => PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../../shared/data")),
    };
    let path = root.join(name);
    let text = std::fs::read_to_string(&path);
    if text.is_err() {
        eprintln!(
            "skipped: {} is not there; STOKE_DATA says where",
            path.display()
        );
    }
    text.ok()
}

#[test]
fn measurements_are_met() {
    let Some(text) = data("gpu-memory/measured.csv") else {
        return;
    };
    let rows = check(&text).unwrap();
    for row in &rows {
        println!(
            "{:+6.1} %  {} {}: {:.2} GiB estimated, {:.2} measured",
            row.error() * 100.0,
            row.model,
            row.training,
            gib(row.estimated),
            gib(row.measured)
        );
    }
    let accuracy = accuracy(&rows);
    println!("{accuracy:?}");
    assert!(rows.len() >= 20);
    assert!(accuracy.median <= 0.1, "{accuracy:?}");
    assert!(accuracy.worst_under <= 0.2, "{accuracy:?}");
}

/// Sizes that are published, to the last digit but for biases.
#[test]
fn parameters_are_counted_as_published() {
    let configs = [
        (
            r#"{"model_type":"llama","architectures":["LlamaForCausalLM"],"hidden_size":4096,"intermediate_size":14336,"num_attention_heads":32,
            "num_hidden_layers":32,"num_key_value_heads":8,"rms_norm_eps":1e-5,"hidden_act":"silu","tie_word_embeddings":false,"vocab_size":128256}"#,
            8.030,
        ),
        (
            r#"{"model_type":"mistral","hidden_size":4096,"intermediate_size":14336,"num_attention_heads":32,
            "num_hidden_layers":32,"num_key_value_heads":8,"rms_norm_eps":1e-5,"hidden_act":"silu","tie_word_embeddings":false,"vocab_size":32000}"#,
            7.242,
        ),
        (
            r#"{"model_type":"mixtral","hidden_size":4096,"intermediate_size":14336,"num_attention_heads":32,"num_local_experts":8,"num_experts_per_tok":2,
            "num_hidden_layers":32,"num_key_value_heads":8,"rms_norm_eps":1e-5,"hidden_act":"silu","tie_word_embeddings":false,"vocab_size":32000}"#,
            46.70,
        ),
        (
            r#"{"model_type":"gemma","hidden_size":3072,"intermediate_size":24576,"num_attention_heads":16,"head_dim":256,
            "num_hidden_layers":28,"num_key_value_heads":16,"rms_norm_eps":1e-6,"hidden_act":"gelu_pytorch_tanh","vocab_size":256000}"#,
            8.538,
        ),
        (
            r#"{"model_type":"qwen2","hidden_size":896,"intermediate_size":4864,"num_attention_heads":14,"num_hidden_layers":24,
            "num_key_value_heads":2,"rms_norm_eps":1e-6,"hidden_act":"silu","tie_word_embeddings":true,"vocab_size":151936}"#,
            0.494,
        ),
        (
            r#"{"model_type":"gpt2","architectures":["GPT2LMHeadModel"],"n_embd":768,"n_head":12,"n_layer":12,"n_inner":null,"resid_pdrop":0.1,
            "activation_function":"gelu_new","vocab_size":50257}"#,
            0.1237,
        ),
        (
            r#"{"model_type":"gpt_neox","hidden_size":6144,"intermediate_size":24576,"num_attention_heads":64,"num_hidden_layers":44,
            "hidden_act":"gelu_fast","tie_word_embeddings":false,"vocab_size":50432}"#,
            20.55,
        ),
        (
            r#"{"model_type":"bert","architectures":["BertForSequenceClassification"],"hidden_size":1024,"intermediate_size":4096,"num_attention_heads":16,
            "num_hidden_layers":24,"hidden_act":"gelu","hidden_dropout_prob":0.1,"vocab_size":30522}"#,
            0.333,
        ),
        (
            r#"{"model_type":"opt","hidden_size":2048,"ffn_dim":8192,"num_attention_heads":32,"num_hidden_layers":24,"dropout":0.1,
            "activation_function":"relu","vocab_size":50272}"#,
            1.311,
        ),
        (
            r#"{"model_type":"falcon","hidden_size":4544,"num_attention_heads":71,"num_hidden_layers":32,"multi_query":true,"num_kv_heads":71,
            "new_decoder_architecture":false,"vocab_size":65024}"#,
            6.921,
        ),
        (
            r#"{"model_type":"phi","hidden_size":2048,"intermediate_size":8192,"num_attention_heads":32,"num_hidden_layers":24,
            "hidden_act":"gelu_new","tie_word_embeddings":false,"vocab_size":51200}"#,
            1.418,
        ),
        (
            r#"{"model_type":"t5","d_model":768,"d_ff":3072,"d_kv":64,"num_heads":12,"num_layers":12,"feed_forward_proj":"relu",
            "is_encoder_decoder":true,"dropout_rate":0.1,"vocab_size":32128}"#,
            0.223,
        ),
        (
            r#"{"model_type":"llava","text_config":{"hidden_size":4096,"intermediate_size":11008,"num_attention_heads":32,"num_hidden_layers":32,
            "rms_norm_eps":1e-5,"tie_word_embeddings":false,"vocab_size":32000}}"#,
            6.738,
        ),
    ];
    for (config, billions) in configs {
        let shape = Shape::from_config(config).unwrap();
        let counted = shape.params as f64 / 1e9;
        assert!(
            (counted / billions - 1.0).abs() < 0.005,
            "{counted} counted, {billions} published: {config}"
        );
    }
}

#[test]
fn configs_tell_families_apart() {
    let bert = Shape::from_config(
        r#"{"architectures":["BertForSequenceClassification"],"hidden_size":768,"num_hidden_layers":12,"num_attention_heads":12,
            "intermediate_size":3072,"hidden_act":"gelu","hidden_dropout_prob":0.1,"vocab_size":30522}"#,
    )
    .unwrap();
    assert_eq!(
        (bert.head, bert.norm, bert.has_dropout, bert.gated_mlp),
        (Head::Classes, Norm::Layer, true, false)
    );
    let gpt2 = Shape::from_config(
        r#"{"architectures":["GPT2LMHeadModel"],"n_embd":768,"n_layer":12,"n_head":12,"activation_function":"gelu_new","resid_pdrop":0.1,"vocab_size":50257}"#,
    )
    .unwrap();
    assert_eq!(
        (
            gpt2.head,
            gpt2.has_eager_gelu,
            gpt2.is_tied,
            gpt2.intermediate
        ),
        (Head::Language, true, true, 3072)
    );
    let terse = Shape::from_config(
        r#"{"model_type":"llama","hidden_size":4096,"intermediate_size":14336,"num_attention_heads":32,"num_hidden_layers":32,
            "num_key_value_heads":8,"vocab_size":128256,"tie_word_embeddings":false}"#,
    )
    .unwrap();
    assert!(terse.gated_mlp && terse.params > 8_000_000_000, "{terse:?}");
    for bad in [
        "",
        "[]",
        "{}",
        "null",
        "\"x\"",
        r#"{"hidden_size":-1}"#,
        r#"{"hidden_size":64,"num_hidden_layers":2}"#,
        r#"{"hidden_size":18446744073709551615,"num_hidden_layers":18446744073709551615,"is_encoder_decoder":true,"vocab_size":18446744073709551615}"#,
        r#"{"hidden_size":64,"num_hidden_layers":2,"vocab_size":10,"num_attention_heads":4,"num_key_value_heads":3}"#,
    ] {
        assert!(Shape::from_config(bad).is_err(), "{bad}");
    }
}

fn header(tensors: &[(&str, &[u64])]) -> Vec<u8> {
    let entries = tensors.iter().map(|(name, sizes)| {
        let tensor = serde_json::json!({"dtype": "BF16", "shape": sizes, "data_offsets": [0, 0]});
        ((*name).to_owned(), tensor)
    });
    let mut map: serde_json::Map<String, serde_json::Value> = entries.collect();
    map.insert(
        "__metadata__".to_owned(),
        serde_json::json!({"format": "pt"}),
    );
    serde_json::to_vec(&map).unwrap()
}

#[test]
fn tensors_tell_their_shape() {
    let mut tensors = Tensors::default();
    for layer in 0..2 {
        let name = |part: &str| format!("model.layers.{layer}.{part}.weight");
        let names = [
            name("self_attn.q_proj"),
            name("self_attn.k_proj"),
            name("self_attn.v_proj"),
            name("self_attn.o_proj"),
            name("mlp.gate_proj"),
            name("mlp.up_proj"),
            name("mlp.down_proj"),
            name("input_layernorm"),
        ];
        let sizes: [&[u64]; 8] = [
            &[4096, 4096],
            &[1024, 4096],
            &[1024, 4096],
            &[4096, 4096],
            &[14_336, 4096],
            &[14_336, 4096],
            &[4096, 14_336],
            &[4096],
        ];
        let all: Vec<(&str, &[u64])> = names.iter().map(String::as_str).zip(sizes).collect();
        tensors.add(&header(&all)).unwrap();
    }
    let ends: [(&str, &[u64]); 2] = [
        ("model.embed_tokens.weight", &[128_256, 4096]),
        ("lm_head.weight", &[128_256, 4096]),
    ];
    tensors.add(&header(&ends)).unwrap();
    let shape = tensors.shape().unwrap();
    assert_eq!(
        (shape.layers, shape.hidden, shape.heads, shape.kv_heads),
        (2, 4096, 32, 8)
    );
    assert_eq!((shape.intermediate, shape.vocab), (14_336, 128_256));
    assert!(shape.gated_mlp && !shape.is_tied && shape.norm == Norm::Rms);
    assert_eq!(shape.params, 2 * (218_103_808 + 4096) + 2 * 525_336_576);

    let mut gpt2 = Tensors::default();
    let all: [(&str, &[u64]); 6] = [
        ("wte.weight", &[50_257, 768]),
        ("h.0.attn.c_attn.weight", &[768, 2304]),
        ("h.0.attn.c_proj.weight", &[768, 768]),
        ("h.0.mlp.c_fc.weight", &[768, 3072]),
        ("h.0.mlp.c_proj.weight", &[3072, 768]),
        ("h.0.ln_1.bias", &[768]),
    ];
    gpt2.add(&header(&all)).unwrap();
    let shape = gpt2.shape().unwrap();
    assert_eq!(
        (
            shape.layers,
            shape.heads,
            shape.kv_heads,
            shape.intermediate
        ),
        (1, 12, 12, 3072)
    );
    assert!(shape.is_tied && shape.has_eager_gelu && shape.norm == Norm::Layer);
}

#[test]
fn files_that_are_something_else_are_refused() {
    assert!(header_length(*b"PK\x03\x04abcd").is_err());
    assert!(header_length([0; 8]).is_err());
    assert_eq!(header_length(300_u64.to_le_bytes()).unwrap(), 300);
    assert!(Tensors::default().shape().is_err());
    assert!(Tensors::default().add(b"\xff{}").is_err());
    let packed = br#"{"a.qweight":{"dtype":"I32","shape":[100,100],"data_offsets":[0,1]}}"#;
    let mut tensors = Tensors::default();
    tensors.add(packed).unwrap();
    assert!(matches!(tensors.shape(), Err(HeaderError::Packed)));
    let index = Index::parse(
        r#"{"weight_map":{"a":"m-1.safetensors","b":"m-1.safetensors","c":"m-2.safetensors"}}"#,
    );
    assert_eq!(index.unwrap().files.len(), 2);
    assert!(Index::parse(r#"{"weight_map":{"a":"../secret"}}"#).is_err());
    assert!(Index::parse("{}").is_err());
}

/// The arithmetic of ZeRO, as it was published.
#[test]
fn states_are_shared_by_stage() {
    let model = |zero| Model {
        zero,
        params: Some(Parameters(10_000_000_000)),
        ..Model::default()
    };
    let billions = |bytes: Bytes| bytes.0.div_ceil(1_000_000_000);
    let per = |zero| {
        let estimate = of(&model(zero), 8);
        [estimate.weights, estimate.gradients, estimate.optimizer].map(billions)
    };
    assert_eq!(per(0), [20, 40, 120]);
    assert_eq!(per(1), [20, 40, 15]);
    assert_eq!(per(2), [20, 5, 15]);
    assert_eq!(per(3), [3, 5, 15]);
}

#[test]
fn bytes_of_a_parameter_are_the_known_ones() {
    let table = [
        (Precision::Bf16Mixed, Optimizer::Adamw, 18.0),
        (Precision::Bf16, Optimizer::Adamw, 8.0),
        (Precision::Fp32, Optimizer::Adamw, 16.0),
        (Precision::Fp32, Optimizer::Sgd, 8.0),
        (Precision::Fp32, Optimizer::Lion, 12.0),
    ];
    for (precision, optimizer, bytes) in table {
        let model = Model {
            precision,
            optimizer,
            ..llama()
        };
        let shape = Shape::of(&model).unwrap();
        let estimate = of(&model, 1);
        let states = estimate.weights.0 + estimate.gradients.0 + estimate.optimizer.0;
        let each = states as f64 / shape.params as f64;
        assert!(
            (each - bytes).abs() < 0.01,
            "{precision} {optimizer}: {each}"
        );
    }
}

#[test]
fn a_size_alone_is_enough() {
    for (params, layers, hidden) in [
        (7_000_000_000, 28..=36, 3840..=4608),
        (70_000_000_000, 64..=84, 8192..=9472),
        (1_000_000, 1..=4, 100..=300),
    ] {
        let model = Model {
            params: Some(Parameters(params)),
            ..Model::default()
        };
        let shape = Shape::of(&model).unwrap();
        assert!(layers.contains(&shape.layers), "{shape:?}");
        assert!(hidden.contains(&shape.hidden), "{shape:?}");
    }
    assert_eq!(Shape::of(&Model::default()), Err(ShapeError::Unknown));
}

#[test]
fn types_are_found_as_people_write_them() {
    let names = |asked: &str| -> Vec<String> {
        gpu(asked)
            .into_iter()
            .map(|gpu| gpu.name.into_owned())
            .collect()
    };
    assert_eq!(names("a100"), ["a100-40g", "a100-80g"]);
    assert_eq!(names("NVIDIA-A100-SXM4-80GB"), ["a100-80g"]);
    assert_eq!(names("rtx-4090"), ["rtx-4090-24g"]);
    assert_eq!(names("tpu"), [""; 0]);
    assert_eq!(names(""), [""; 0]);
    let t4 = Gpu::measured("Tesla-T4", Bytes::mib(15_360));
    let h100 = Gpu::measured("NVIDIA-H100-NVL", Bytes::mib(95_830));
    assert!(h100.context < t4.context);
}

#[test]
fn a_job_that_cannot_fit_is_told_what_would_help() {
    let whole = GpuRequest::Whole(1);
    let told = |model: &Model, workers, request: &GpuRequest, asked: &str| match fits(
        model,
        workers,
        request,
        &gpu(asked),
    ) {
        Ok(()) => "fits".to_owned(),
        Err(big) => format!("{big}; {}", big.help()),
    };
    insta::assert_snapshot!(told(&llama(), 1, &whole, "a100-80g"), @"the model needs about 165 GiB of each GPU, and a100-80g has 80 GiB; it would fit with gradient checkpointing and bf16");
    insta::assert_snapshot!(told(&llama(), 1, &whole, "t4"), @"the model needs about 166 GiB of each GPU, and t4-16g has 15 GiB; it would fit with gradient checkpointing and qlora");
    insta::assert_snapshot!(told(&llama(), 2, &GpuRequest::Whole(8), "a100-80g"), @"the model needs about 198 GiB of each GPU, and a100-80g has 80 GiB; it would fit with ZeRO stage 1");
    let sharded = Model { zero: 3, ..llama() };
    insta::assert_snapshot!(told(&sharded, 2, &GpuRequest::Whole(8), "a100-80g"), @"fits");
    let lora = Model {
        method: Method::Lora,
        precision: Precision::Bf16,
        ..llama()
    };
    insta::assert_snapshot!(told(&lora, 1, &whole, "a100"), @"fits");
    let half = GpuRequest::Fraction(GpuMilli(250));
    insta::assert_snapshot!(told(&lora, 1, &half, "a100-80g"), @"the model needs about 32 GiB of each GPU, and 0.25 of a100-80g has 20 GiB; it would fit with gradient checkpointing and qlora");
    insta::assert_snapshot!(told(&lora, 1, &GpuRequest::Mig("1g.10gb".into()), "a100-80g"), @"the model needs about 32 GiB of each GPU, and 1g.10gb of a100-80g has 10 GiB; it takes larger GPUs, a smaller model, or layers shared among GPUs (tensorParallel)");
    insta::assert_snapshot!(told(&llama(), 1, &whole, "unknown"), @"fits");
    insta::assert_snapshot!(told(&llama(), 1, &GpuRequest::None, "t4"), @"fits");
    let huge = Model {
        params: Some(Parameters(1_000_000_000_000)),
        ..Model::default()
    };
    insta::assert_snapshot!(told(&huge, 1, &whole, "t4"), @"the model needs about 18 TiB of each GPU, and t4-16g has 15 GiB; it takes larger GPUs, a smaller model, or layers shared among GPUs (tensorParallel)");
}

fn any_model() -> impl Strategy<Value = Model> {
    let sizes = (
        1_u32..=10_000,
        1_u32..=15_000,
        1_u32..=64,
        1_u32..=10_000_000,
        1_u32..=100_000_000,
    );
    let run = (
        1_u32..=1_000_000,
        1_u32..=100_000_000,
        0_u8..=3,
        1_u32..=1024,
        1_u32..=65_536,
    );
    let words = (
        prop::sample::select(Method::ALL),
        prop::sample::select(Precision::ALL),
        prop::sample::select(Optimizer::ALL),
    );
    (sizes, run, words, any::<[bool; 3]>()).prop_map(|(sizes, run, words, flags)| Model {
        params: None,
        layers: Some(sizes.0),
        hidden: Some(sizes.1 * sizes.2),
        heads: Some(sizes.2),
        kv_heads: None,
        head_dim: None,
        intermediate: Some(sizes.3),
        gated_mlp: flags[0],
        vocab: sizes.4,
        method: words.0,
        lora_rank: run.4,
        precision: words.1,
        optimizer: words.2,
        batch: run.0,
        sequence: run.1,
        grad_checkpoint: flags[1],
        flash: flags[2],
        zero: run.2,
        tensor_parallel: run.3,
    })
}

/// Of sizes that people train, so that some fit and some do not.
fn usual_model() -> impl Strategy<Value = Model> {
    let sizes = (1_u32..=64, 1_u32..=64, 1_u32..=20_000, 1_u32..=150_000);
    let run = (1_u32..=64, 1_u32..=8192, 1_u32..=8);
    (any_model(), sizes, run).prop_map(|(model, sizes, run)| Model {
        layers: Some(sizes.0),
        hidden: Some(128 * sizes.1),
        heads: Some(sizes.1),
        intermediate: Some(sizes.2),
        vocab: sizes.3,
        lora_rank: 16,
        batch: run.0,
        sequence: run.1,
        tensor_parallel: run.2,
        ..model
    })
}

proptest! {
    #[test]
    fn what_saves_memory_never_costs_any(model in any_model(), gpus in 1_u32..4096) {
        let Ok(shape) = Shape::of(&model) else { return Ok(()); };
        let training = Training::of(&model, gpus);
        let total = |training: &Training| estimate(&shape, training).total();
        let now = total(&training);
        prop_assert!(now.0 > 0);
        let flash = Training { flash: true, ..training };
        prop_assert!(total(&flash) <= now);
        let bigger = Training { batch: training.batch + 1, ..training };
        prop_assert!(total(&bigger) >= now);
        let longer = Training { sequence: training.sequence + 1, ..training };
        prop_assert!(total(&longer) >= now);
    }

    #[test]
    fn changes_that_are_offered_are_enough(model in prop_oneof![usual_model(), any_model()], gpus in 1_u32..64, at in 0..super::gpus().len()) {
        let Ok(shape) = Shape::of(&model) else { return Ok(()); };
        let training = Training::of(&model, gpus);
        let gpu = &super::gpus()[at];
        let offered = changes(&shape, &training, gpu);
        let fits = Verdict::on(gpu, estimate(&shape, &training), &training) == Verdict::Fits;
        prop_assert_eq!(fits, offered.as_deref() == Some(&[]));
        for offered in [offered, spread(&shape, &training, gpu)].into_iter().flatten() {
            let mut changed = training;
            for change in &offered {
                change.apply(&mut changed);
            }
            let after = Verdict::on(gpu, estimate(&shape, &changed), &changed);
            prop_assert_eq!(after, Verdict::Fits, "{:?}", offered);
        }
    }

    #[test]
    fn no_text_panics(text in ".{0,200}", line in "[a-z0-9,.-]{0,80}") {
        let _ = Shape::from_config(&text);
        let _ = Index::parse(&text);
        let _ = Tensors::default().add(text.as_bytes());
        let _ = check(&text);
        let _ = check(&format!("model,params_b,layers,hidden,heads,method,precision,optimizer,batch,seq,unit,measured,how\n{line}"));
        let _ = gpu(&text);
    }
}
