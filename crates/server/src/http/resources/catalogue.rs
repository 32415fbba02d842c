//! What can be asked about: cards and machines without having them, devices, and models that have a name.

use axum::Json;
use axum::extract::State;
use serde::Serialize;
use utoipa::ToSchema;

use crate::http::App;
use crate::http::response::problem::Problem;
use crate::jobs::{CardDocument, DeviceSummary, MachineDocument, PresetDocument, cards, machines};
use crate::model;

/// All cards.
#[derive(Debug, Serialize, ToSchema)]
pub(in crate::http) struct CardList {
    /// Cards of servers, of workstations and of games, those of each kind newest first.
    items: Vec<CardDocument>,
    /// Always null: there is one page.
    next: Option<String>,
}

/// List the cards that can be simulated.
#[utoipa::path(get, path = "/v1/cards", tag = "catalogue",
    responses(
        (status = 200, body = CardList, description = "All cards, and where their figures are from")))]
pub(in crate::http) async fn list_cards() -> Json<CardList> {
    Json(CardList {
        items: cards(),
        next: None,
    })
}

/// All machines.
#[derive(Debug, Serialize, ToSchema)]
pub(in crate::http) struct MachineList {
    /// Machines by cloud.
    items: Vec<MachineDocument>,
    /// Always null: there is one page.
    next: Option<String>,
}

/// List the machines of clouds whose names stand for their cards.
#[utoipa::path(get, path = "/v1/machines", tag = "catalogue",
    responses(
        (status = 200, body = MachineList, description = "All machines")))]
pub(in crate::http) async fn list_machines() -> Json<MachineList> {
    Json(MachineList {
        items: machines(),
        next: None,
    })
}

/// All devices.
#[derive(Debug, Serialize, ToSchema)]
pub(in crate::http) struct DeviceList {
    /// GPUs of this machine, or what is missing to find any; then the first 500 cards of agents, and the simulated cards.
    items: Vec<DeviceSummary>,
    /// Always null: there is one page.
    next: Option<String>,
}

/// List devices.
#[utoipa::path(get, path = "/v1/devices", tag = "catalogue",
    responses(
        (status = 200, body = DeviceList, description = "All devices")))]
pub(in crate::http) async fn list_devices(
    State(app): State<App>,
) -> Result<Json<DeviceList>, Problem> {
    let _look = app.looks.acquire().await.expect("it is never closed");
    let items = app.jobs.devices().await?;
    Ok(Json(DeviceList { items, next: None }))
}

/// All presets.
#[derive(Debug, Serialize, ToSchema)]
pub(in crate::http) struct PresetList {
    /// Families together, smaller ones first.
    items: Vec<PresetDocument>,
    /// Always null: there is one page.
    next: Option<String>,
}

/// List presets.
#[utoipa::path(get, path = "/v1/presets", tag = "catalogue",
    responses((status = 200, body = PresetList, description = "All presets")))]
pub(in crate::http) async fn list_presets() -> Json<PresetList> {
    Json(PresetList {
        items: model::presets().map(PresetDocument::from).collect(),
        next: None,
    })
}
