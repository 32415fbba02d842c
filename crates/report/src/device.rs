//! Which devices there are.

use super::style::Style;
use super::style::paragraph;
use super::table::{text, with_header};
use batchfit_fit::DeviceSummary;
use batchfit_step::units::Bytes;

/// Writes one line for each device, and what is missing of those that cannot be used.
pub fn devices(devices: &[DeviceSummary], style: &Style) -> String {
    let mut table = with_header(
        &["device", "card", "memory", "usable", "compute", "SMs"],
        &["memory", "usable", "SMs"],
    );
    let or_dash = |value: Option<String>| value.unwrap_or_else(|| "-".to_owned());
    let bytes = |bytes: Option<u64>| or_dash(bytes.map(|bytes| Bytes(bytes).to_string()));
    let mut missing = String::new();
    for device in devices {
        if let Some(what) = &device.missing {
            missing += &paragraph("", &format!("{}: {what}", device.device), style.width);
        }
        if !device.available {
            continue;
        }
        table.add_row([
            device.device.clone(),
            or_dash(device.gpu.clone()),
            bytes(device.memory_bytes),
            bytes(device.usable_bytes),
            or_dash(device.compute_capability.clone()),
            or_dash(device.multiprocessors.map(|count| count.to_string())),
        ]);
    }
    let table = text(&table, style);
    if missing.is_empty() {
        return table;
    }
    format!("{table}\n{missing}")
}
