//! What can be asked about: cards and machines without having them, devices, and models that have a name.

use axum::Json;
use axum::extract::State;

use crate::http::App;
use crate::http::request::parameters::Page;
use crate::http::response::problem::Problem;
use crate::jobs::{CardDocument, DeviceSummary, MachineDocument, PresetDocument, cards, machines};
use crate::model;

/// List the cards that can be simulated.
#[utoipa::path(get, path = "/v1/cards", tag = "catalogue",
    responses(
        (status = 200, body = ref("#/components/schemas/CardList"), description = "All cards, and where their figures are from")))]
pub(in crate::http) async fn list_cards() -> Json<Page<CardDocument>> {
    Json(Page::whole(cards()))
}

/// List the machines of clouds whose names stand for their cards.
#[utoipa::path(get, path = "/v1/machines", tag = "catalogue",
    responses(
        (status = 200, body = ref("#/components/schemas/MachineList"), description = "All machines")))]
pub(in crate::http) async fn list_machines() -> Json<Page<MachineDocument>> {
    Json(Page::whole(machines()))
}

/// List devices.
#[utoipa::path(get, path = "/v1/devices", tag = "catalogue",
    responses(
        (status = 200, body = ref("#/components/schemas/DeviceList"), description = "All devices")))]
pub(in crate::http) async fn list_devices(
    State(app): State<App>,
) -> Result<Json<Page<DeviceSummary>>, Problem> {
    let _look = app.looks.acquire().await.expect("it is never closed");
    Ok(Json(Page::whole(app.jobs.devices().await?)))
}

/// List presets.
#[utoipa::path(get, path = "/v1/presets", tag = "catalogue",
    responses((status = 200, body = ref("#/components/schemas/PresetList"), description = "All presets")))]
pub(in crate::http) async fn list_presets() -> Json<Page<PresetDocument>> {
    Json(Page::whole(
        model::presets().map(PresetDocument::from).collect(),
    ))
}
