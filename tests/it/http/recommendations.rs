//! `/v1/recommendations`.

use serde_json::Value;

use super::scripted::Scripted;
use super::{RESNET, Service, assert_answer};

#[tokio::test]
async fn a_finished_fit_leaves_a_recommendation() {
    let service = Service::start(Scripted::default()).await;
    let fit = service.post_and_wait("/v1/fits", RESNET).await;

    let list = service.get("/v1/recommendations").await;

    assert_answer!(list);
    let item = &list.json()["items"][0];
    assert_eq!(item["fit_id"], fit.id());
    let path = format!("/v1/recommendations/{}", item["id"].as_str().unwrap());
    assert_eq!(&service.get(&path).await.json(), item);
}

#[tokio::test]
async fn filters_narrow_the_list() {
    let service = Service::start(Scripted::default()).await;
    service.post_and_wait("/v1/fits", RESNET).await;
    let count = async |query: &str| {
        let list = service.get(&format!("/v1/recommendations?{query}")).await;
        list.json()["items"].as_array().map_or(0, Vec::len)
    };

    assert_eq!(
        count("model=resnet18&device=sim:h200&precision=fp32&limit=1").await,
        1
    );
    assert_eq!(
        count("optimizer=adamw&checkpointing=none&evidence=simulated").await,
        1
    );
    assert_eq!(
        count("limit_bytes=12GiB&world_size=1&gpu=NVIDIA%20H200&objective=largest_batch").await,
        1
    );
    assert_eq!(count("limit_bytes=12884901888").await, 1);
    for other in [
        "model=resnet50",
        "device=cuda:0",
        "precision=bf16",
        "optimizer=sgd",
        "checkpointing=per_block",
        "evidence=recorded",
        "evidence=probed",
        "evidence=trained",
        "gpu=none",
        "limit_bytes=8GiB",
        "world_size=2",
        "objective=throughput",
    ] {
        assert_eq!(count(other).await, 0, "{other}");
    }
}

#[tokio::test]
async fn an_unknown_recommendation_is_not_found() {
    let service = Service::start(Scripted::default()).await;

    assert_answer!(service.get("/v1/recommendations/nothing").await);
}

#[tokio::test]
async fn a_number_that_the_description_calls_too_large_is_an_error() {
    let service = Service::start(Scripted::default()).await;

    for (number, status) in [("9223372036854775807", 200), ("9223372036854775808", 422)] {
        let path = format!("/v1/recommendations?world_size={number}");
        assert_eq!(service.get(&path).await.status, status, "{number}");
    }
}

#[tokio::test]
async fn a_misspelt_filter_is_an_error() {
    let service = Service::start(Scripted::default()).await;

    let answers = [
        service.get("/v1/recommendations?modle=resnet18").await,
        service.get("/v1/recommendations?precision=fp8").await,
        service.get("/v1/recommendations?limit=0").await,
        service.get("/v1/recommendations?limit=1&limit=2").await,
    ];

    let bodies: Vec<Value> = answers.iter().map(super::Answer::json).collect();
    assert!(answers.iter().all(|answer| answer.status == 422));
    insta::assert_json_snapshot!(bodies);
}
