//! Which cards can be simulated, and the machines of clouds that have them.

use crate::jobs::{CardDocument, MachineDocument};
use crate::units::Bytes;
use batchfit_report::style::Style;
use batchfit_report::style::paragraph;
use batchfit_report::table::{text, with_header};

/// Writes one line for each card, with a star for those of which not all is verified.
pub fn cards(cards: &[CardDocument], style: &Style) -> String {
    let numbers = ["memory", "SMs", "GB/s", "fp32", "tf32", "fp16", "bf16"];
    let mut table = with_header(
        &[
            "card", "product", "memory", "compute", "SMs", "GB/s", "fp32", "tf32", "fp16", "bf16",
        ],
        &numbers,
    );
    for card in cards {
        let star = if card.unverified.is_some() { " *" } else { "" };
        let tflops = &card.tflops;
        let throughput = [tflops.fp32, tflops.tf32, tflops.fp16, tflops.bf16];
        let cells = [
            format!("{}{star}", card.card),
            card.product.clone(),
            Bytes(card.memory_bytes).to_string(),
            card.compute_capability.clone(),
            card.multiprocessors.to_string(),
            card.gigabytes_per_second.to_string(),
        ];
        table.add_row(cells.into_iter().chain(throughput.map(|it| it.to_string())));
    }
    let below = "fp32 to bf16 are TFLOPS without sparsity. batchfit was measured on an H200 alone. * not all of it is verified: \
                 `batchfit cards CARD` says what, and where figures are from. `batchfit cards --machines` lists machines of clouds.";
    format!(
        "{}\n{}",
        text(&table, style),
        paragraph("", below, style.width)
    )
}

/// Writes one line for each machine.
pub fn machines(machines: &[MachineDocument], style: &Style) -> String {
    let mut table = with_header(&["cloud", "machine", "GPUs", "card"], &["GPUs"]);
    for machine in machines {
        table.add_row([
            machine.cloud.clone(),
            machine.machine.clone(),
            machine.gpus.to_string(),
            machine.card.clone(),
        ]);
    }
    let mut out = text(&table, style);
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
