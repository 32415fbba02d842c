//! Questions about recommendations, by the numbers in their ids.

use super::{Question, list, maybe, ok, read, spaced};
use crate::model::ENGINE_DIGEST;
use crate::units::Share;
use crate::{
    Db, FilterColumn, NearestQuery, RecommendationFilter, StoredHeadroom, StoredRecommendation,
    Time,
};
use batchfit_fit::search::headroom::Doubt;

pub(super) async fn answer(db: &Db, question: &Question<'_>) -> Option<String> {
    let said = |name: &str| question.named.get(name).map(|said| spaced(said));
    Some(match question.words[..] {
        // Of a fit of its own, as another process writes it.
        ["answered", number, model, world_size] => {
            let name = format!("{:05}", read::<u32>(number));
            db.add_answer(&name, read(number), model, read(world_size))
                .await;
            ok(true)
        }
        // On the card and for the limit that it names.
        ["store", number] => {
            let row = row(
                read(number),
                &said("gpu").unwrap(),
                question.or("limit", 1000),
            );
            let row = StoredRecommendation {
                device: said("device").unwrap_or(row.device),
                driver: said("driver").or(row.driver),
                pytorch: said("pytorch").unwrap_or(row.pytorch),
                rules: said("rules").unwrap_or(row.rules),
                ..row
            };
            store(db, &row).await;
            ok(true)
        }
        ["page", limit] => {
            let facets = [
                (FilterColumn::Model, "model"),
                (FilterColumn::Gpu, "gpu"),
                (FilterColumn::WorldSize, "world"),
                (FilterColumn::LimitBytes, "limit"),
            ];
            let filter = RecommendationFilter {
                facets: facets
                    .into_iter()
                    .filter_map(|(facet, name)| Some((facet, said(name)?)))
                    .collect(),
                before: said("before").map(|number| id(&number)),
                limit: read(limit),
            };
            let page = db.recommendations(&filter).await.unwrap();
            page.map_or("no such row".to_owned(), |page| {
                let next = page.next.as_ref().map(|next| number(next));
                let next = next.map_or_else(String::new, |next| format!(", then before {next}"));
                list(page.items().map(|row| number(&row.id))) + &next
            })
        }
        ["found", number] => {
            let found = db.recommendation(&id(number)).await.unwrap();
            maybe(found.map(|found| found.model))
        }
        ["rows"] => db.shelf.rows().to_string(),
        ["read-recommendations"] => ok(db.read_recommendations().await.is_ok()),
        // What makes it out of date.
        ["stale", number] => {
            let found = db.recommendation(&id(number)).await.unwrap().unwrap();
            let because = found.stale.map(|stale| stale.because).unwrap_or_default();
            list(because.into_iter().map(|one| one.what))
        }
        ["nearest"] => {
            let asked = NearestQuery {
                model_digest: said("model").unwrap_or("00ff".to_owned()),
                device: Some(said("device").unwrap_or("cuda:0".to_owned())),
                gpu: Some(said("gpu").unwrap_or("NVIDIA H200".to_owned())),
                precision: said("precision").unwrap_or("fp32".to_owned()),
                optimizer: "adamw".to_owned(),
                checkpointing: "none".to_owned(),
                objective: "largest_batch".to_owned(),
                world_size: 1,
                limit_bytes: said("limit").map(|limit| read(&limit)),
            };
            let nearest = db.nearest(&asked).await.unwrap();
            maybe(nearest.map(|nearest| {
                let number = number(&nearest.recommendation.id);
                format!("{number} but {}", list(nearest.differs))
            }))
        }
        _ => return None,
    })
}

fn id(number: &str) -> String {
    format!("answer{:05}", read::<u32>(number))
}

fn number(id: &str) -> u32 {
    read(id.trim_start_matches("answer"))
}

pub(crate) async fn store(db: &Db, row: &StoredRecommendation) {
    let mut transaction = db.pool.begin_alone("keep").await.unwrap();
    row.insert(&mut transaction).await.unwrap();
    transaction.commit("keep").await.unwrap();
}

/// A row of a model on a card, made now.
pub(crate) fn row(number: u32, gpu: &str, limit_bytes: i64) -> StoredRecommendation {
    StoredRecommendation {
        id: format!("answer{number:05}"),
        fit_id: "fit00001".to_owned(),
        rank: i64::from(number) + 1,
        model: "mine".to_owned(),
        model_kind: "preset".to_owned(),
        device: "cuda:0".to_owned(),
        gpu: gpu.to_owned(),
        precision: "fp32".to_owned(),
        optimizer: Some("adamw".to_owned()),
        optimizer_impl: Some("foreach".to_owned()),
        checkpointing: "none".to_owned(),
        mode: "train".to_owned(),
        limit_bytes,
        world_size: 1,
        micro_batch: 8,
        accumulation_steps: 1,
        global_batch: 8,
        max_batch: 10,
        max_batch_without_retries: 9,
        peak_allocated_bytes: 700,
        peak_reserved_bytes: 800,
        headroom_bytes: 200,
        limited_by: String::new(),
        evidence: "probed".to_owned(),
        step_ms: None,
        optimizer_step_ms: None,
        samples_per_second: None,
        speed_from: None,
        pareto: None,
        objective: "largest_batch".to_owned(),
        batchfit_version: "0.1.0".to_owned(),
        strategy: "none".to_owned(),
        driver: Some("570".to_owned()),
        cudnn: Some("9.19".to_owned()),
        pytorch: "2.11".to_owned(),
        headroom: Some(StoredHeadroom {
            share: Share(5_000),
            from: "default".to_owned(),
            outcomes: 0,
            doubts: [(Doubt::Driver, Share(5_000))].into_iter().collect(),
        }),
        created_at: Time(i64::from(number)),
        stale: None,
        model_digest: "00ff".to_owned(),
        training: "0123456789abcdef".to_owned(),
        rules: ENGINE_DIGEST.to_owned(),
    }
}
