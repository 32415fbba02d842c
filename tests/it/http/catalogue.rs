//! What the service says about itself.

use std::path::Path;

use batchfit::device::sim::CARDS;
use batchfit::http::{Code, openapi, openapi_yaml};
use serde_json::json;

use super::scripted::Scripted;
use super::{Service, assert_answer};

#[tokio::test]
async fn devices_are_listed_with_what_is_missing() {
    let service = Service::start(Scripted::default()).await;

    let list = service.get("/v1/devices").await.json();
    let items = list["items"].as_array().unwrap();
    assert_eq!(items.len(), 1 + CARDS.len());
    assert_eq!(
        items[0],
        json!({
            "device": "cuda:0", "kind": "cuda", "card": null, "gpu": null, "memory_bytes": null, "usable_bytes": null,
            "compute_capability": null, "multiprocessors": null, "driver": null, "cudnn": null, "available": false,
            "missing": "no NVIDIA driver was found", "source": "the driver",
        })
    );
    assert_eq!(items[1]["device"], "sim:h200");
    assert_eq!(items[1]["memory_bytes"], 150_109_880_320_u64);
}

#[tokio::test]
async fn presets_are_listed() {
    let service = Service::start(Scripted::default()).await;

    let list = service.get("/v1/presets").await.json();

    let names: Vec<&str> = list["items"]
        .as_array()
        .unwrap()
        .iter()
        .map(|preset| preset["name"].as_str().unwrap())
        .collect();
    assert!(names.contains(&"resnet50"), "{names:?}");
}

#[tokio::test]
async fn cards_and_machines_are_listed_with_where_they_are_from() {
    let service = Service::start(Scripted::default()).await;

    let cards = service.get("/v1/cards").await.json();
    let machines = service.get("/v1/machines").await.json();

    let all = |list: &serde_json::Value| list["items"].as_array().unwrap().clone();
    let one = |list: &[serde_json::Value], name: &str| {
        let is_it = |item: &&serde_json::Value| item["card"] == name;
        list.iter().find(is_it).unwrap().clone()
    };
    let l4 = one(&all(&cards), "l4");
    assert_eq!(l4["multiprocessors"], 58);
    assert_eq!(l4["cublas_workspace_bytes"], 8_519_680);
    assert!(l4["page"].as_str().unwrap().starts_with("https://"));
    assert!(l4["unverified"].as_str().unwrap().contains("58"), "{l4}");
    let machine = one(&all(&machines), "l4");
    assert_eq!(
        (&machine["cloud"], &machine["gpus"]),
        (&"AWS".into(), &1.into())
    );
    assert!(
        l4["machines"]
            .as_array()
            .unwrap()
            .contains(&machine["machine"])
    );
}

#[tokio::test]
async fn the_service_is_well_until_it_ends() {
    let service = Service::start(Scripted::default()).await;

    assert_answer!(service.get("/healthz").await);
    assert_eq!(service.get("/readyz").await.status, 200);

    service.stop().await;
    assert_eq!(service.get("/healthz").await.status, 200);
    assert_eq!(service.get("/readyz").await.status, 503);
}

#[tokio::test]
async fn the_openapi_document_is_served() {
    let service = Service::start(Scripted::default()).await;

    let answer = service.get("/openapi.yaml").await;

    assert_eq!(answer.header("content-type"), "application/yaml");
    assert_eq!(answer.text, openapi_yaml());
}

#[test]
fn every_member_of_a_request_has_a_type() {
    let document = serde_json::to_value(openapi()).unwrap();
    for schema in ["Request", "NewProbe", "Training"] {
        let members = &document["components"]["schemas"][schema]["properties"];
        let members = members.as_object().unwrap();
        assert!(members.len() >= 10, "{schema}: {}", members.len());
        for (name, member) in members {
            let says = |what: &&str| member.get(*what).is_some();
            let is_typed = ["type", "oneOf", "allOf", "$ref"].iter().any(says);
            assert!(is_typed, "{schema}.{name}: {member}");
        }
    }
}

/// Write it again with `cargo run -- openapi > openapi.yaml`.
#[test]
fn the_committed_openapi_document_is_current() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("openapi.yaml");

    let committed = std::fs::read_to_string(file).unwrap();

    assert!(
        committed == openapi_yaml(),
        "openapi.yaml is out of date: cargo run -- openapi > openapi.yaml"
    );
}

#[test]
fn every_operation_has_an_id_of_verb_and_noun() {
    let document = openapi();
    let paths = document["paths"].as_object().unwrap();

    let operations = paths
        .values()
        .flat_map(|path| path.as_object().unwrap().values());
    let ids: Vec<&str> = operations
        .map(|operation| operation["operationId"].as_str().unwrap_or_default())
        .collect();

    for id in &ids {
        let (verb, noun) = id.split_once('_').unwrap_or_else(|| panic!("{id:?}"));
        assert!(
            ["create", "put", "change", "list", "get", "cancel", "delete"].contains(&verb)
                && !noun.is_empty(),
            "{id:?}"
        );
    }
    assert_eq!(ids.len(), 49);
}

#[test]
fn errors_in_the_openapi_document_are_problems() {
    let document = openapi();
    let paths = document["paths"].as_object().unwrap();

    for (path, operations) in paths {
        for operation in operations.as_object().unwrap().values() {
            for (status, response) in operation["responses"].as_object().unwrap() {
                let named = response["$ref"].as_str();
                let named = named.and_then(|named| document.pointer(&named[1..]));
                let content =
                    &named.unwrap_or(response)["content"]["application/problem+json"]["schema"];
                let is_problem = content["$ref"] == "#/components/schemas/Problem";
                assert_eq!(is_problem, status.as_str() >= "400", "{path} {status}");
            }
        }
    }
}

/// Two types of one name would silently describe each other.
#[test]
fn an_answer_and_a_stored_recommendation_are_described_apart() {
    let document = openapi();
    let schemas = &document["components"]["schemas"];

    // What several ranks add is described apart, and none of it is required.
    let [across_ranks, own] = schemas["Recommendation"]["allOf"]
        .as_array()
        .unwrap()
        .as_slice()
    else {
        panic!("{}", schemas["Recommendation"]);
    };
    assert_eq!(across_ranks["$ref"], "#/components/schemas/AcrossRanks");
    assert!(schemas["AcrossRanks"]["properties"]["binding_rank"].is_object());
    assert_eq!(schemas["AcrossRanks"].get("required"), None);
    assert!(own["properties"]["notes"].is_object());
    assert!(schemas["StoredRecommendation"]["properties"]["fit_id"].is_object());
}

#[test]
fn a_new_probe_is_described_as_a_request_with_a_batch() {
    let document = openapi();
    let schema = &document["components"]["schemas"]["NewProbe"];

    assert!(schema["properties"]["model"].is_object(), "{schema:#}");
    assert!(schema["properties"]["batch"].is_object(), "{schema:#}");
    assert_eq!(schema["required"], serde_json::json!(["model", "batch"]));
}

#[test]
fn every_code_has_a_slug_of_its_own() {
    let mut slugs: Vec<&str> = Code::ALL.iter().map(|code| code.slug()).collect();
    let all = slugs.len();

    slugs.sort_unstable();
    slugs.dedup();

    assert_eq!(slugs.len(), all);
}
