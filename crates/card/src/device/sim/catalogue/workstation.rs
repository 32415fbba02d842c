//! Cards for workstations.
//!
//! Error correction is off when these are shipped; switched on, it takes a sixteenth of the memory.

use crate::units::Bytes;

use super::{Card, Chip, card};

/// Newest first.
#[rustfmt::skip] // A few lines a card.
pub(super) const CARDS: &[Card] = &[
    card("rtxpro6000", "NVIDIA RTX PRO 6000 Blackwell Workstation Edition", Bytes::mib(97_250), "PyTorch's device properties of the Server Edition as published (97,250 MiB)")
        .chip(Chip::Gb202, (12, 0), 188, 2617).bus(512, 28.0).ceilings(1792.0, 125.0, 251.9, 503.8, 503.8)
        .page("https://www.techpowerup.com/gpu-specs/rtx-pro-6000-blackwell.c4272")
        .doubtful("its memory is that of the Server Edition"),
    card("rtx6000ada", "NVIDIA RTX 6000 Ada Generation", Bytes::mib(48_497), "PyTorch's device properties as published (48,497 MiB), with error correction off as it is shipped")
        .chip(Chip::Ad102, (8, 9), 142, 2505).bus(384, 20.0).ceilings(960.0, 91.1, 182.1, 364.2, 364.2)
        .page("https://www.techpowerup.com/gpu-specs/rtx-6000-ada-generation.c3933"),
    card("rtxa6000", "NVIDIA RTX A6000", Bytes::mib(48_670), "PyTorch's device properties as published (48,670 MiB), with error correction off as it is shipped")
        .chip(Chip::Ga102, (8, 6), 84, 1800).bus(384, 16.0).ceilings(768.0, 38.7, 77.4, 154.8, 154.8)
        .page("https://www.techpowerup.com/gpu-specs/rtx-a6000.c3686"),
    card("rtxa5000", "NVIDIA RTX A5000", Bytes::mib(24_114), "PyTorch's device properties as published (24,114 MiB), with error correction off as it is shipped")
        .chip(Chip::Ga102, (8, 6), 64, 1695).bus(384, 16.0).ceilings(768.0, 27.8, 55.6, 111.1, 111.1)
        .page("https://www.techpowerup.com/gpu-specs/rtx-a5000.c3748"),
    card("rtxa4000", "NVIDIA RTX A4000", Bytes::mib(16_117), "PyTorch's device properties as published (16,117 MiB), with error correction off as it is shipped")
        .chip(Chip::Ga104, (8, 6), 48, 1560).bus(256, 14.0).ceilings(448.0, 19.2, 38.3, 76.7, 76.7)
        .page("https://www.techpowerup.com/gpu-specs/rtx-a4000.c3756"),
    card("quadrortx8000", "Quadro RTX 8000", Bytes::mib(48_380), "PyTorch's device properties as published (48,380 MiB), with error correction off as it is shipped")
        .chip(Chip::Tu102, (7, 5), 72, 1770).bus(384, 14.0).ceilings(672.0, 16.3, 16.3, 130.5, 16.3)
        .page("https://www.techpowerup.com/gpu-specs/quadro-rtx-8000.c3306"),
    card("titanrtx", "NVIDIA TITAN RTX", Bytes::mib(24_212), "PyTorch's device properties as published (24,212 MiB)")
        .chip(Chip::Tu102, (7, 5), 72, 1770).bus(384, 14.0).ceilings(672.0, 16.3, 16.3, 130.5, 16.3)
        .page("https://www.techpowerup.com/gpu-specs/titan-rtx.c3311"),
];
