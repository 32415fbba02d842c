//! The card and the run, as the object and the hooks read them (`crates/vgpu/src/config.rs`).

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use crate::alloc::MemoryLimit;
use crate::device::sim::{CONTEXT_OVERHEAD, Card, CardSpec, Chip, PROCESS_OVERHEAD, RANK_OVERHEAD};
use crate::program::Architecture;
use crate::units::Bytes;

/// The object in the private folder.
pub const OBJECT: &str = "libcuda.so.1";
/// The session in the private folder.
pub const SESSION: &str = "session.txt";
/// Where is listened, in the private folder.
pub const SOCKET: &str = "socket";
/// Where hooks write what is too long for a line, in the private folder.
pub const HISTORY: &str = "history";

/// As many devices as the object has addresses for.
pub const MOST_GPUS: u64 = 16;

/// A run of a script.
#[derive(Debug, Clone)]
pub struct Session {
    /// The card.
    pub card: &'static Card,
    /// How many of them the machine has.
    pub gpus: u64,
    /// What PyTorch may reserve, where that is less than the card has.
    pub limit: Option<MemoryLimit>,
    /// The CUDA version of the script's PyTorch: 13000 for 13.0.
    pub cuda: u32,
    /// Optimizer steps after which the script is ended; 0 for its own end.
    pub steps: u64,
    /// Bytes of the host's memory that it and all that it starts may take; each process so much of pinned and managed memory.
    pub host_memory: Bytes,
    /// Whether the allocator's history is kept, with stacks.
    pub keeps_history: bool,
    /// Where kernels that would have been launched are written to.
    pub launches: Option<PathBuf>,
}

impl Session {
    /// What a process holds outside of PyTorch's allocator: with several GPUs NCCL's communicator too.
    pub fn context(&self) -> Bytes {
        if self.gpus > 1 {
            RANK_OVERHEAD
        } else {
            PROCESS_OVERHEAD
        }
    }

    /// What PyTorch can reserve, where the script allows it a share of the card, or none of its own.
    pub fn limit_bytes(&self, fraction: Option<f64>) -> Bytes {
        let available = self.card.total_memory.saturating_sub(self.context());
        let limit = match fraction.map(MemoryLimit::Fraction).or(self.limit) {
            None => return available,
            Some(MemoryLimit::Bytes(bytes)) => bytes,
            Some(MemoryLimit::Fraction(share)) => share_of(share, self.card.total_memory),
        };
        limit.min(available)
    }

    /// What is said where a script was ended for the host's memory.
    pub fn too_much_host_memory(&self) -> String {
        format!(
            "the command and all that it started took more than {} of host memory and were ended; --host-memory gives them more",
            self.host_memory
        )
    }

    /// The lines that the object and the hooks read from the folder.
    pub fn text(&self, folder: &Path) -> String {
        let card = self.card;
        let (major, minor) = card.capability.compute;
        let architecture = Architecture::of(card.capability.compute);
        let shared = architecture.shared_per_block;
        let path = |name: &str| folder.join(name).display().to_string();
        let mut lines = vec![
            ("name", card.product.to_owned()),
            ("memory", card.total_memory.0.to_string()),
            ("context", self.context().0.to_string()),
            ("bare_context", CONTEXT_OVERHEAD.0.to_string()),
            ("major", major.to_string()),
            ("minor", minor.to_string()),
            (
                "multiprocessors",
                card.capability.multiprocessors.to_string(),
            ),
            ("shared_per_block_optin", shared.to_string()),
            (
                "shared_per_multiprocessor",
                (shared + architecture.reserved_per_block).to_string(),
            ),
            (
                "threads_per_multiprocessor",
                card.capability.threads_per_multiprocessor.to_string(),
            ),
            (
                "blocks_per_multiprocessor",
                architecture.blocks_per_multiprocessor.to_string(),
            ),
            ("l2_cache", l2_cache(&card.sheet).to_string()),
            (
                "clock",
                (u64::from(card.sheet.boost_mhz) * 1000).to_string(),
            ),
            // Two bits a clock and a way, in kHz: the driver says 3,201 MHz of the H200's 6.402 Gbit.
            ("memory_clock", format!("{:.0}", card.sheet.rate * 5e5)),
            ("bus", card.sheet.bus.to_string()),
            ("devices", self.gpus.to_string()),
            ("cuda", self.cuda.to_string()),
            ("host_memory", self.host_memory.0.to_string()),
            ("socket", path(SOCKET)),
            ("hooks", path("python/hooks.py")),
            ("steps", self.steps.to_string()),
        ];
        if let Some(share) = self.fraction() {
            lines.push(("fraction", share.to_string()));
        }
        if self.keeps_history {
            lines.push(("history", path(HISTORY)));
        }
        if let Some(launches) = &self.launches {
            lines.push(("launches", launches.display().to_string()));
        }
        let mut text = "batchfit-vgpu 1\n".to_owned();
        for (key, value) in lines {
            // A line break in a folder's name would begin another line.
            let value = value.replace('\n', " ");
            writeln!(text, "{key} {value}").expect("text takes everything");
        }
        text
    }

    /// What `torch.cuda.set_per_process_memory_fraction` is told; it multiplies and rounds down.
    fn fraction(&self) -> Option<f64> {
        let total = self.card.total_memory.0 as f64;
        match self.limit? {
            MemoryLimit::Bytes(bytes) => Some(((bytes.0 as f64 + 0.5) / total).min(1.0)),
            MemoryLimit::Fraction(share) => Some(share),
        }
    }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a part of a number of bytes, rounded down as PyTorch does"
)]
fn share_of(share: f64, total: Bytes) -> Bytes {
    Bytes((total.0 as f64 * share) as u64)
}

/// The L2 cache of the usual card with a chip, in bytes, by `TechPowerUp`'s pages that [`CardSpec`] names. `torch.compile` allocates as much where
/// it measures kernels. An H100 with five stacks of memory says 50 MiB to PyTorch, an H200 with six 60.
fn l2_cache(sheet: &CardSpec) -> u64 {
    let mib = match sheet.chip {
        Chip::Gh100 if sheet.bus > 5120 => 60,
        Chip::Gv100 | Chip::Tu102 | Chip::Ga102 => 6,
        Chip::Tu104 | Chip::Tu106 | Chip::Ga103 | Chip::Ga104 => 4,
        Chip::Ga106 => 3,
        Chip::Ga107 => 2,
        Chip::Ga100 => 40,
        Chip::Ad102 => 72,
        Chip::Ad103 | Chip::Gb203 => 64,
        Chip::Ad104 | Chip::Gb205 => 48,
        Chip::Ad106 | Chip::Gb206 => 32,
        Chip::Ad107 => 24,
        Chip::Gh100 => 50,
        Chip::Gb100 => 126,
        Chip::Gb202 => 96,
    };
    mib << 20
}
