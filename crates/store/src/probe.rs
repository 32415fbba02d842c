//! The table of probes.

use crate::text::by_name;
use serde_json::Value;
use sqlx::types::Json;

use super::engine::query;
use super::request::{keep_request, request_digest};
use super::upload::refer;
use super::{Db, JsonText, StoreError, Time};
use crate::model::Digest;

/// A whole row.
#[derive(Debug, Clone, PartialEq)]
pub struct Probe {
    /// Its name.
    pub id: String,
    /// What makes two requests the same question.
    pub fingerprint: String,
    /// The model, as a person calls it.
    pub model: String,
    /// As in the request.
    pub device: String,
    /// Samples per micro-step.
    pub batch: i64,
    /// How it ended.
    pub verdict: String,
    /// The request document.
    pub request: JsonText,
    /// What was found.
    pub report: Json<Value>,
    /// When.
    pub created_at: Time,
}

by_name!(Probe: id, fingerprint, model, device, batch, verdict, request, report, created_at);

impl Db {
    /// Stores a finished probe, and that it refers to those of these uploads that are still there.
    pub async fn add_probe(&self, probe: &Probe, uploads: &[Digest]) -> Result<(), StoreError> {
        let request = request_digest(&probe.request);
        let report = JsonText::of(&probe.report.0);
        let mut transaction = self.pool.begin_alone("begin to store a probe").await?;
        query!("store a probe": execute, transaction.on(),
            "INSERT INTO probe (id, fingerprint, model, device, batch, verdict, request_digest, report, created_at)
             VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)",
            probe.id, probe.fingerprint, probe.model, probe.device, probe.batch, probe.verdict, request, report, probe.created_at)?;
        keep_request(&mut transaction, &request, &probe.request).await?;
        for digest in uploads {
            refer(&mut transaction, digest, "probe", &probe.id).await?;
        }
        transaction.commit("commit a probe").await
    }

    /// The whole probe.
    pub async fn probe(&self, id: &str) -> Result<Option<Probe>, StoreError> {
        query!("read a probe": fetch_optional Probe, self.pool.on(),
            "SELECT id, fingerprint, model, device, batch, verdict, text AS request,
                      report, created_at
                 FROM probe JOIN request ON digest = request_digest WHERE id = $1", id)
    }
}
