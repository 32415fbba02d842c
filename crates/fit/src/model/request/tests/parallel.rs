//! Several ranks: strategies, what they exclude, and cards that differ.

use super::*;

fn strategies(document: &Value) -> Vec<(Option<&'static str>, u64)> {
    let request = parsed(document).unwrap();
    let variants = request.variants.iter();
    variants
        .map(|variant| (variant.parallel.name(), variant.parallel.world_size()))
        .collect()
}

#[test]
fn ranks_train_under_ddp_unless_the_request_says_otherwise() {
    let model = json!({ "preset": "resnet18" });
    let with = |training: Value| json!({ "model": model, "training": training, "world_size": 8 });

    assert_eq!(
        strategies(&json!({ "model": model, "world_size": 8 })),
        [(Some("ddp"), 8)]
    );
    assert_eq!(
        strategies(&json!({ "model": model, "world_size": 1 })),
        [(None, 1)]
    );
    assert_eq!(
        strategies(&with(json!({ "mode": "inference" }))),
        [(None, 1)]
    );
    assert_eq!(
        strategies(&with(
            json!({ "parallel": { "strategy": ["none", "zero1", "ddp", "ddp"], "world_size": 8 } })
        )),
        [(None, 1), (Some("zero1"), 8), (Some("ddp"), 8)]
    );
    let request = parsed(&with(json!({ "clip_grad_norm": 0.5, "parallel": {
        "strategy": "ddp", "bucket_cap_mb": 100, "comm_hook": "bf16", "gradient_as_bucket_view": true,
    } })))
    .unwrap();
    assert_eq!(request.variants[0].clip_grad_norm.map(f64::from), Some(0.5));
    assert_eq!(
        request.variants[0].parallel,
        Parallel::Ddp(Ddp {
            world_size: 8,
            bucket_cap_mb: Some(100),
            comm_hook: Some(CommHook::Bf16),
            gradient_as_bucket_view: true,
            ..Ddp::default()
        })
    );
}

#[test]
fn fully_shard_is_read_with_its_options_and_each_way_of_resharding() {
    let parallel = json!({
        "strategy": ["fsdp2", "none"], "world_size": 4, "units": ["layer*.*"], "reshard_after_forward": [false, true],
        "mixed_precision": { "param_dtype": "bf16", "reduce_dtype": "fp32" }, "cpu_offload": true,
    });
    let document = json!({ "model": { "preset": "gpt2" }, "training": { "parallel": parallel } });
    let request = parsed(&document).unwrap();

    let sharded = FullyShard {
        world_size: 4,
        units: Some(vec!["layer*.*".to_owned()]),
        reshard_after_forward: false,
        mixed_precision: MixedPrecision {
            param_dtype: Some(DType::BFloat16),
            reduce_dtype: Some(DType::Float32),
            output_dtype: None,
        },
        cpu_offload: true,
        sync_every_micro_step: false,
    };
    let resharding = FullyShard {
        reshard_after_forward: true,
        ..sharded.clone()
    };
    let variants = request.variants.iter();
    let parallels: Vec<&Parallel> = variants.map(|variant| &variant.parallel).collect();
    assert_eq!(
        parallels,
        [
            &Parallel::Fsdp2(sharded),
            &Parallel::Fsdp2(resharding),
            &Parallel::None
        ]
    );
    assert_eq!(request.world_size, 4);
}

#[test]
fn cards_of_one_job_may_differ_and_the_one_with_the_least_memory_decides() {
    let with = |device: Value, ranks: u64| {
        let model = json!({ "preset": "resnet18" });
        let document = json!({ "model": model, "device": device, "world_size": ranks });
        let document = RequestDocument::from_json(document.to_string().as_bytes()).unwrap();
        Request::parse(document)
    };
    let uneven = with(json!(["sim:h100-80g", "sim:a100-40g", "sim:h100-80g"]), 8).unwrap();
    assert_eq!(uneven.device, DeviceChoice::Sim("a100-40g".into()));
    assert_eq!(uneven.cards, ["h100-80g", "a100-40g"]);

    let alike = with(json!(["sim:t4", "sim:t4"]), 2).unwrap();
    assert_eq!(alike.device, DeviceChoice::Sim("t4".into()));
    assert_eq!(alike.cards, [""; 0]);
}

#[test]
fn machines_of_clouds_say_how_many_train_together() {
    let with = |device: Value, rest: Value| {
        let mut document = json!({ "model": { "preset": "resnet18" }, "device": device });
        let members = document.as_object_mut().unwrap();
        members.extend(rest.as_object().unwrap().clone());
        let document = RequestDocument::from_json(document.to_string().as_bytes()).unwrap();
        let request = Request::parse(document).unwrap();
        let machines: Vec<&str> = request.machines.iter().map(|it| it.name).collect();
        (request.device.to_string(), request.world_size, machines)
    };
    let h100 = || "sim:h100-80g".to_owned();
    let sharded = json!({ "training": { "parallel": { "strategy": "fsdp2" } } });

    let (device, ranks, machines) = with(json!("sim:p5.48xlarge"), json!({}));
    assert_eq!((device, ranks, machines), (h100(), 8, vec!["p5.48xlarge"]));
    assert_eq!(with(json!("sim:p5.48xlarge"), sharded).1, 8);
    let fewer = with(json!("sim:p5.48xlarge"), json!({ "world_size": 2 }));
    assert_eq!(fewer.1, 2);
    let both = json!(["sim:p5.48xlarge", "sim:p4d.24xlarge"]);
    let (device, ranks, _) = with(both, json!({}));
    assert_eq!((&*device, ranks), ("sim:a100-40g", 16));
    let beside = json!(["sim:p5.48xlarge", "sim:h100-80g", "sim:a100-40g"]);
    assert_eq!(with(beside.clone(), json!({})).1, 10);
    assert_eq!(with(beside, json!({ "world_size": 4 })).1, 4);
    assert_eq!(
        with(
            json!(["sim:h100-80g", "sim:h100-80g", "sim:h100-80g"]),
            json!({})
        )
        .1,
        3
    );
}
