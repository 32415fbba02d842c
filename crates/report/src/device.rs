//! Which devices there are.

use super::style::{Style, lines, or_dash, paragraph};
use batchfit_fit::DeviceSummary;
use batchfit_step::units::Bytes;

/// Writes one line for each device, and what is missing of those that cannot be used.
pub fn devices(devices: &[DeviceSummary], style: &Style) -> String {
    let mut missing = String::new();
    for device in devices {
        if let Some(what) = &device.missing {
            missing += &paragraph("", &format!("{}: {what}", device.device), style.width);
        }
    }
    let available: Vec<_> = devices.iter().filter(|it| it.available).collect();
    let table = lines(&available, style)
        .words("device", |it| it.device.clone())
        .words("card", |it| or_dash(it.gpu.as_ref()))
        .number("memory", |it| or_dash(it.memory_bytes.map(Bytes)))
        .number("usable", |it| or_dash(it.usable_bytes.map(Bytes)))
        .words("compute", |it| or_dash(it.compute_capability.as_ref()))
        .number("SMs", |it| or_dash(it.multiprocessors))
        .text();
    if missing.is_empty() {
        return table;
    }
    format!("{table}\n{missing}")
}
