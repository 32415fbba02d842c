//! Devices: where can a batch be tried?

use axum::Json;
use axum::extract::State;
use serde::Serialize;
use utoipa::ToSchema;

use crate::http::App;
use crate::http::response::problem::Problem;
use crate::jobs::DeviceSummary;

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
