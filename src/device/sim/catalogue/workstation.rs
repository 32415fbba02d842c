//! Cards for workstations.
//!
//! Error correction is off when these are shipped; switched on, it takes a sixteenth of the memory.

use crate::units::Bytes;

use super::{Card, Workspaces, capability, ceilings};

/// Newest first.
pub(super) const CARDS: &[Card] = &[
    Card {
        name: "rtxpro6000",
        product: "NVIDIA RTX PRO 6000 Blackwell Workstation Edition",
        total_memory: Bytes::mib(97_250),
        source: "PyTorch's device properties of the Server Edition as published (97,250 MiB)",
        capability: capability((12, 0), 188, 1536),
        workspaces: Workspaces::Transferred,
        ceilings: ceilings(1792.0, 125.0, 251.9, 503.8, 503.8),
    },
    Card {
        name: "rtx6000ada",
        product: "NVIDIA RTX 6000 Ada Generation",
        total_memory: Bytes::mib(48_497),
        source: "PyTorch's device properties as published (48,497 MiB), with error correction off as it is shipped",
        capability: capability((8, 9), 142, 1536),
        workspaces: Workspaces::Transferred,
        ceilings: ceilings(960.0, 91.1, 182.1, 364.2, 364.2),
    },
    Card {
        name: "rtxa6000",
        product: "NVIDIA RTX A6000",
        total_memory: Bytes::mib(48_670),
        source: "PyTorch's device properties as published (48,670 MiB), with error correction off as it is shipped",
        capability: capability((8, 6), 84, 1536),
        workspaces: Workspaces::Transferred,
        ceilings: ceilings(768.0, 38.7, 77.4, 154.8, 154.8),
    },
    Card {
        name: "rtxa5000",
        product: "NVIDIA RTX A5000",
        total_memory: Bytes::mib(24_114),
        source: "PyTorch's device properties as published (24,114 MiB), with error correction off as it is shipped",
        capability: capability((8, 6), 64, 1536),
        workspaces: Workspaces::Transferred,
        ceilings: ceilings(768.0, 27.8, 55.6, 111.1, 111.1),
    },
    Card {
        name: "rtxa4000",
        product: "NVIDIA RTX A4000",
        total_memory: Bytes::mib(16_117),
        source: "PyTorch's device properties as published (16,117 MiB), with error correction off as it is shipped",
        capability: capability((8, 6), 48, 1536),
        workspaces: Workspaces::Transferred,
        ceilings: ceilings(448.0, 19.2, 38.3, 76.7, 76.7),
    },
    Card {
        name: "quadrortx8000",
        product: "Quadro RTX 8000",
        total_memory: Bytes::mib(48_380),
        source: "PyTorch's device properties as published (48,380 MiB), with error correction off as it is shipped",
        capability: capability((7, 5), 72, 1024),
        workspaces: Workspaces::Transferred,
        ceilings: ceilings(672.0, 16.3, 16.3, 130.5, 16.3),
    },
    Card {
        name: "titanrtx",
        product: "NVIDIA TITAN RTX",
        total_memory: Bytes::mib(24_212),
        source: "PyTorch's device properties as published (24,212 MiB)",
        capability: capability((7, 5), 72, 1024),
        workspaces: Workspaces::Transferred,
        ceilings: ceilings(672.0, 16.3, 16.3, 130.5, 16.3),
    },
];
