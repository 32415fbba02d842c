//! Cards and machines: what can be asked about without having it?

use axum::Json;
use serde::Serialize;
use utoipa::ToSchema;

use crate::jobs::{CardDocument, MachineDocument, cards, machines};

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
