//! What outcomes teach about a question before it is answered, and which stored answer is near to it.

use crate::alloc::MemoryLimit;
use crate::device::sim::Card;
use crate::jobs::JobError;
use crate::jobs::document::short_digest;
use crate::model::{
    DeviceChoice, HeadroomCalibration, Lowered, Mode, PYTORCH, Parallel, Request, SearchMode,
    Workload, strategy,
};
use crate::store::{Db, LearntOn, NearestQuery};
use batchfit_fit::named_card;

/// What outcomes teach this key about a request, as far as that is in memory: see [`Db::read_learnt`]. `card` says which GPU its device
/// stands for, as [`Engine::check`](crate::jobs::Engine::check) does, or which card an agent simulates.
pub fn calibration(
    db: &Db,
    request: &Request,
    (lowered, digest): (&Lowered, &str),
    card: Option<&str>,
    is_simulated: bool,
    owner: &str,
) -> Vec<HeadroomCalibration> {
    let Some((gpu, driver)) = card_of(request, card) else {
        return Vec::new();
    };
    let is_recorded = request.search == SearchMode::Recorded
        || lowered.not_understood.is_some()
        || matches!(lowered.workload, Workload::Recorded(_));
    let source = match (is_recorded, is_simulated) {
        (true, _) => "recorded",
        (false, true) => "simulated",
        (false, false) => "probed",
    };
    let digest = short_digest(digest);
    let is_for_agents = matches!(
        request.device,
        DeviceChoice::Kind(_) | DeviceChoice::Host(..)
    );
    let mut ways: Vec<(&str, String)> = Vec::new();
    for variant in &request.variants {
        let strategy = strategy(&variant.parallel);
        // Suggestions train in other ways.
        ways.extend([request.training_digest(variant), String::new()].map(|way| (strategy, way)));
    }
    // The longest first.
    ways.sort_unstable_by(|one, other| other.cmp(one));
    ways.dedup();
    let of = |(strategy, training): (&str, String)| {
        let on = LearntOn {
            gpu: gpu.clone(),
            source: source.to_owned(),
            strategy: strategy.to_owned(),
            driver: driver.clone().unwrap_or_default(),
            pytorch: PYTORCH.to_owned(),
        };
        db.calibrations(&on, &digest, &training, (owner, is_for_agents))
    };
    ways.into_iter().flat_map(of).collect()
}

/// What outcomes teach about a request, for commands that answer it outside of the queue. Takes as long as to read its model.
pub async fn learn_before(
    db: &Db,
    request: &Request,
    card: Option<&str>,
) -> Result<Vec<HeadroomCalibration>, JobError> {
    db.read_learnt().await?;
    let lowered = request.lower()?;
    Ok(calibration(
        db,
        request,
        (lowered, &request.model_digest(lowered)),
        card,
        card.is_none(),
        "",
    ))
}

/// The card that a request is about, and the driver of a real one; none where there is no such card here.
fn card_of(request: &Request, card: Option<&str>) -> Option<(String, Option<String>)> {
    if let DeviceChoice::Sim(name) | DeviceChoice::Kind(name) = &request.device
        && card.is_none()
    {
        return Some((Card::find(name)?.product.to_owned(), None));
    }
    let (gpu, driver) = named_card(card?);
    Some((gpu.to_owned(), driver.map(str::to_owned)))
}

/// What stored answers are compared with: the first variant of a request.
pub fn question_about(request: &Request, digest: &str, card: Option<&str>) -> NearestQuery {
    let variant = &request.variants[0];
    let said = |name: &str| if variant.recorded { "recorded" } else { name }.to_owned();
    let device = match &request.device {
        DeviceChoice::Auto => None,
        named @ (DeviceChoice::Sim(_)
        | DeviceChoice::Cuda(_)
        | DeviceChoice::Kind(_)
        | DeviceChoice::Host(..)) => Some(named.to_string()),
    };
    let limit_bytes = match (&request.memory_limit, &request.device) {
        (Some(MemoryLimit::Bytes(bytes)), _) => Some(bytes.0),
        // Ranks hold more outside of their allocators.
        (None, DeviceChoice::Sim(name)) if variant.parallel == Parallel::None => {
            Card::find(name).map(|card| card.available().0)
        }
        (None | Some(MemoryLimit::Fraction(_)), _) => None,
    };
    NearestQuery {
        model_digest: short_digest(digest),
        device,
        gpu: card_of(request, card).map(|(gpu, _)| gpu),
        precision: said(variant.precision.name()),
        optimizer: match variant.mode {
            Mode::Train => said(variant.optimizer.name()),
            Mode::Inference => String::new(),
        },
        checkpointing: said(variant.checkpointing.name()),
        objective: request.objective.name().to_owned(),
        world_size: request.world_size,
        limit_bytes,
    }
}
