//! Which cards can be simulated, and the machines of clouds that have them.

use crate::jobs::{CardDocument, MachineDocument};
use crate::units::Bytes;
use batchfit_report::style::{Style, lines, paragraph};

/// Writes one line for each card, with a star for those of which not all is verified.
pub fn cards(cards: &[CardDocument], style: &Style) -> String {
    let star = |card: &CardDocument| if card.unverified.is_some() { " *" } else { "" };
    let below = "fp32 to bf16 are TFLOPS without sparsity. batchfit was measured on an H200 alone. * not all of it is verified: \
                 `batchfit cards CARD` says what, and where figures are from. `batchfit cards --machines` lists machines of clouds.";
    format!(
        "{}\n{}",
        lines(cards, style)
            .words("card", move |card| {
                format!("{}{}", card.card, star(card))
            })
            // All are NVIDIA's, and lines are long.
            .words("product", |card| {
                card.product.trim_start_matches("NVIDIA ").to_owned()
            })
            .size("memory", |card| card.memory_bytes)
            .words("compute", |card| card.compute_capability.clone())
            .number("SMs", |card| card.multiprocessors.to_string())
            .number("GB/s", |card| card.gigabytes_per_second.to_string())
            .number("fp32", |card| card.tflops.fp32.to_string())
            .number("tf32", |card| card.tflops.tf32.to_string())
            .number("fp16", |card| card.tflops.fp16.to_string())
            .number("bf16", |card| card.tflops.bf16.to_string())
            .text(),
        paragraph("", below, style.width)
    )
}

/// Writes one line for each machine.
pub fn machines(machines: &[MachineDocument], style: &Style) -> String {
    let mut out = lines(machines, style)
        .words("cloud", |machine| machine.cloud.clone())
        .words("machine", |machine| machine.machine.clone())
        .number("GPUs", |machine| machine.gpus.to_string())
        .words("card", |machine| machine.card.clone())
        .text();
    let mut told: Vec<&str> = Vec::new();
    for machine in machines {
        if !told.contains(&machine.cloud.as_str()) {
            told.push(&machine.cloud);
            let from = format!("{}: from {}", machine.cloud, machine.source);
            out += "\n";
            out += &paragraph("", &from, style.width);
        }
    }
    out
}

/// Writes all that is known of a card, and where it is from; `note` says how a name came to be it.
pub fn card(card: &CardDocument, note: Option<&str>, style: &Style) -> String {
    let tflops = &card.tflops;
    let throughput = format!(
        "{} TFLOPS in float32, {} in TF32, {} in float16, {} in bfloat16, without sparsity; {}",
        tflops.fp32,
        tflops.tf32,
        tflops.fp16,
        tflops.bf16,
        card.throughput_page.as_ref().map_or_else(
            || "calculated from multiprocessors and clock".to_owned(),
            |page| format!("from {page}")
        )
    );
    let lines = [
        ("device", card.device.clone()),
        (
            "memory",
            format!(
                "{}, of which {} are usable; from {}",
                Bytes(card.memory_bytes),
                Bytes(card.usable_bytes),
                card.memory_from
            ),
        ),
        (
            "made of",
            format!(
                "{} ({}), {} multiprocessors at {} MHz, {}-bit bus with {} GB/s; from {}",
                card.chip,
                card.compute_capability,
                card.multiprocessors,
                card.boost_clock_mhz,
                card.memory_bus_bits,
                card.gigabytes_per_second,
                card.page
            ),
        ),
        ("throughput", throughput),
        (
            "PyTorch",
            format!(
                "attention by {}; cuBLAS workspace {}; reductions split for {} threads of a multiprocessor; {} of shared memory for a block",
                card.attention.join(", "),
                Bytes(card.cublas_workspace_bytes),
                card.threads_per_multiprocessor,
                Bytes(u64::from(card.shared_memory_per_block))
            ),
        ),
        (
            "measured",
            if card.measured {
                "on a real one".to_owned()
            } else {
                "no: workspaces of convolutions are cuDNN's estimate for such cards, or an H200's; memory outside the allocator is an H200's".to_owned()
            },
        ),
        (
            "not verified",
            card.unverified
                .clone()
                .unwrap_or_else(|| "nothing known".to_owned()),
        ),
        ("machines", card.machines.join(", ")),
    ];
    let mut out = paragraph("", &card.product, style.width);
    for (what, text) in lines.iter().filter(|(_, text)| !text.is_empty()) {
        out += &paragraph(&format!("  {what:<13} "), text, style.width);
    }
    if let Some(note) = note {
        out += &paragraph("note: ", note, style.width);
    }
    out
}
