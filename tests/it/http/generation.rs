//! Fits that generate text, between epochs and alone, over HTTP.

use serde_json::{Value, json};

use super::lengths::{done, service};

/// A small Llama, whose keys and values are shared by two heads.
fn llama() -> Value {
    json!({
        "model": {"hf": {
            "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 64, "intermediate_size": 128,
            "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 512
        }, "seq_len": 64},
        "device": "sim:h200",
        "memory_limit": "512MiB",
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn training_validation_and_generation_are_one_request() {
    let service = service().await;
    for cache in ["dynamic", "static"] {
        let mut request = llama();
        request["soak"] = json!({
            "steps": 20, "epoch": 10, "validation_batch": 8, "validation_steps": 2, "generation_batch": 8,
            "generation_prompt": 100, "generation_tokens": 8, "generation_cache": cache, "generation_sample": true,
        });

        let posted = service.post("/v1/fits", request.to_string()).await;
        assert_eq!(posted.status, 202, "{}", posted.shown());
        let result = done(&service, &posted.id()).await["result"].clone();

        let lasts = &result["recommendation"]["micro_batch"];
        assert_eq!(result["soak"]["report"]["steps"], 26);
        assert_eq!(result["soak"]["safe"]["batch"], *lasts);
        assert!(lasts.as_u64() > Some(0), "{result}");
        let stored = service.get("/v1/recommendations").await.json();
        assert_eq!(stored["items"][0]["micro_batch"], *lasts);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn generation_alone_is_answered_and_stored() {
    let service = service().await;
    let mut batches = Vec::new();
    for cache in ["dynamic", "static"] {
        let mut request = llama();
        request["training"] = json!({"mode": "inference"});
        request["generation"] = json!({"prompt": 100, "tokens": 8, "cache": cache});

        let posted = service.post("/v1/fits", request.to_string()).await;
        assert_eq!(posted.status, 202, "{}", posted.shown());
        let result = done(&service, &posted.id()).await["result"].clone();

        batches.push(result["recommendation"]["micro_batch"].as_u64().unwrap());
        let stored = service.get("/v1/recommendations").await.json();
        assert_eq!(
            stored["items"][0]["micro_batch"],
            batches[batches.len() - 1]
        );
    }
    assert!(batches.iter().all(|batch| *batch > 0), "{batches:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_wrong_with_a_generation_is_refused_at_its_place() {
    let service = service().await;
    let refused = async |change: &dyn Fn(&mut Value), at: &str| {
        let mut request = llama();
        request["training"] = json!({"mode": "inference"});
        request["generation"] = json!({});
        change(&mut request);
        let refused = service.post("/v1/fits", request.to_string()).await;
        assert_eq!(refused.status, 422, "{}", refused.shown());
        assert_eq!(refused.json()["pointer"], at, "{}", refused.shown());
    };

    refused(&|request| request["training"] = json!({}), "/generation").await;
    refused(
        &|request| request["device"] = json!("cuda:0"),
        "/generation",
    )
    .await;
    let lengths = |request: &mut Value| request["lengths"] = json!({"seq_len": [8, 16]});
    refused(&lengths, "/generation").await;
    let cache = |request: &mut Value| request["generation"]["cache"] = json!("paged");
    refused(&cache, "/generation/cache").await;
    let tokens = |request: &mut Value| request["generation"]["tokens"] = json!(257);
    refused(&tokens, "/generation/tokens").await;
    let drawn = |request: &mut Value| request["generation"]["top_k"] = json!(5);
    refused(&drawn, "/generation/top_k").await;
    let image = |request: &mut Value| request["model"] = json!({"preset": "resnet18"});
    refused(&image, "/generation").await;
    let gpt2 = json!({"preset": "gpt2", "seq_len": 64});
    let long = |request: &mut Value| {
        request["model"] = gpt2.clone();
        request["generation"] = json!({"prompt": 1000});
    };
    refused(&long, "/generation/prompt").await;
    let long = |request: &mut Value| {
        request["model"] = gpt2.clone();
        request["generation"] = Value::Null;
        request["soak"] = json!({"generation_batch": 1, "generation_prompt": 1000});
    };
    refused(&long, "/soak/generation_prompt").await;
    let many = |request: &mut Value| {
        request["model"]["hf"]["num_hidden_layers"] = json!(32);
        request["generation"] = json!({"tokens": 200});
    };
    refused(&many, "/generation/tokens").await;
    let soaked = |request: &mut Value| {
        request["generation"] = Value::Null;
        request["soak"] = json!({"generation_cache": "static"});
    };
    refused(&soaked, "/soak/generation_cache").await;
}
