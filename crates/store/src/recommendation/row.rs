//! A recommendation in memory, packed: it is small because most of its texts are those of many others.

use std::collections::HashMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::{StoredHeadroom, StoredRecommendation};
use crate::Time;
use crate::units::Share;

/// A text that many rows share, by its number; 0 is none.
pub(super) type TextId = u32;

/// The texts that rows share.
#[derive(Debug, Clone, Default)]
pub(super) struct TextTable {
    numbers: HashMap<Arc<str>, TextId>,
    texts: Vec<Arc<str>>,
}

impl TextTable {
    /// The number of a text that is in some row.
    pub(super) fn find(&self, text: &str) -> Option<TextId> {
        self.numbers.get(text).copied()
    }

    /// The number of a text, a new one where it has none yet.
    pub(super) fn number(&mut self, text: &str) -> TextId {
        self.find(text).unwrap_or_else(|| {
            let text: Arc<str> = text.into();
            self.texts.push(Arc::clone(&text));
            let number = TextId::try_from(self.texts.len()).expect("fewer texts than rows");
            self.numbers.insert(text, number);
            number
        })
    }

    pub(super) fn text(&self, number: TextId) -> Option<String> {
        let place = usize::try_from(number).ok()?.checked_sub(1)?;
        self.texts.get(place).map(ToString::to_string)
    }
}

/// A recommendation, packed: variable-length integers, and numbers for the texts that are shared.
#[derive(Debug, Clone)]
pub(super) struct PackedRow(Box<[u8]>);

/// What is packed.
#[derive(Serialize, Deserialize)]
struct Unpacked<'a> {
    id: &'a str,
    fit_id: &'a str,
    words: [TextId; 21],
    numbers: [i64; 14],
    step_ms: Option<f64>,
    optimizer_step_ms: Option<f64>,
    samples_per_second: Option<f64>,
    pareto: Option<bool>,
}

impl PackedRow {
    pub(super) fn pack(row: &StoredRecommendation, words: &mut TextTable) -> PackedRow {
        let headroom = row.headroom.as_ref();
        let texts = [
            Some(&row.model),
            Some(&row.model_kind),
            Some(&row.device),
            Some(&row.gpu),
            Some(&row.precision),
            row.optimizer.as_ref(),
            row.optimizer_impl.as_ref(),
            Some(&row.checkpointing),
            Some(&row.mode),
            Some(&row.limited_by),
            Some(&row.evidence),
            Some(&row.batchfit_version),
            row.speed_from.as_ref(),
            Some(&row.objective),
            Some(&row.strategy),
            row.driver.as_ref(),
            row.cudnn.as_ref(),
            Some(&row.pytorch),
            Some(&row.rules),
            Some(&row.model_digest),
            headroom.map(|headroom| &headroom.from),
        ];
        let unpacked = Unpacked {
            id: &row.id,
            fit_id: &row.fit_id,
            words: texts.map(|text| text.map_or(0, |text| words.number(text))),
            numbers: [
                row.rank,
                row.limit_bytes,
                row.world_size,
                row.micro_batch,
                row.accumulation_steps,
                row.global_batch,
                row.max_batch,
                row.max_batch_without_retries,
                row.peak_allocated_bytes,
                row.peak_reserved_bytes,
                row.headroom_bytes,
                row.created_at.0,
                headroom.map_or(0, |headroom| headroom.share.0.into()),
                headroom.map_or(0, |headroom| headroom.outcomes),
            ],
            step_ms: row.step_ms,
            optimizer_step_ms: row.optimizer_step_ms,
            samples_per_second: row.samples_per_second,
            pareto: row.pareto,
        };
        let packed = postcard::to_allocvec(&unpacked).expect("texts and numbers can be packed");
        PackedRow(packed.into())
    }

    fn unpacked(&self) -> Unpacked<'_> {
        postcard::from_bytes(&self.0).expect("it was packed here")
    }

    pub(super) fn id(&self) -> &str {
        self.unpacked().id
    }

    pub(super) fn unpack(&self, words: &TextTable) -> StoredRecommendation {
        let unpacked = self.unpacked();
        let [
            model,
            model_kind,
            device,
            gpu,
            precision,
            optimizer,
            optimizer_impl,
            checkpointing,
            mode,
            limited_by,
            evidence,
            batchfit_version,
            speed_from,
            objective,
            strategy,
            driver,
            cudnn,
            pytorch,
            rules,
            model_digest,
            headroom_from,
        ] = unpacked.words.map(|word| words.text(word));
        let [
            rank,
            limit_bytes,
            world_size,
            micro_batch,
            accumulation_steps,
            global_batch,
            max_batch,
            max_batch_without_retries,
            peak_allocated_bytes,
            peak_reserved_bytes,
            headroom_bytes,
            created_at,
            millionths,
            outcomes,
        ] = unpacked.numbers;
        let text = Option::unwrap_or_default;
        StoredRecommendation {
            id: unpacked.id.to_owned(),
            fit_id: unpacked.fit_id.to_owned(),
            rank,
            model: text(model),
            model_kind: text(model_kind),
            device: text(device),
            gpu: text(gpu),
            precision: text(precision),
            optimizer,
            optimizer_impl,
            checkpointing: text(checkpointing),
            mode: text(mode),
            limit_bytes,
            world_size,
            micro_batch,
            accumulation_steps,
            global_batch,
            max_batch,
            max_batch_without_retries,
            peak_allocated_bytes,
            peak_reserved_bytes,
            headroom_bytes,
            limited_by: text(limited_by),
            evidence: text(evidence),
            step_ms: unpacked.step_ms,
            optimizer_step_ms: unpacked.optimizer_step_ms,
            samples_per_second: unpacked.samples_per_second,
            speed_from,
            pareto: unpacked.pareto,
            objective: text(objective),
            batchfit_version: text(batchfit_version),
            strategy: text(strategy),
            driver,
            cudnn,
            pytorch: text(pytorch),
            headroom: headroom_from.map(|from| StoredHeadroom {
                share: Share(u32::try_from(millionths).unwrap_or(Share::ALL.0)),
                from,
                outcomes,
            }),
            created_at: Time(created_at),
            stale: None,
            model_digest: text(model_digest),
            rules: text(rules),
        }
    }
}
