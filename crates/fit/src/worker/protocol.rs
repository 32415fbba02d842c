//! What parent and child say to each other: one JSON value per line.
//!
//! The child speaks first (`hello`), because it is the one that may be another program. Then each order
//! gets exactly one answer. There are no unasked messages, so a line that was not asked for is a fault.

use serde::{Deserialize, Serialize};

use crate::device::Capability;
use crate::model::Variant;
use crate::probe::ProbeReport;

/// Changes whenever a message does; parent and child are the same binary unless it was replaced meanwhile.
pub const VERSION: u32 = 7;

/// The longest line that the child may write. A report with its timeline has about 50 KiB.
pub const LONGEST_ANSWER: usize = 4 << 20;

/// The longest line that the parent may write. An exported graph has up to a few MiB.
pub const LONGEST_ORDER: usize = 256 << 20;

/// Parent to child.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Order {
    /// Take a device, before the model is sent: a waiting process asks often. Answered by `taken`, or by `busy`:
    /// then it is to be asked again.
    Take {
        /// `cuda:0`, `sim:h200`; `auto` is any GPU that is free, which `ready` then names.
        device: String,
    },
    /// Read a request, and open the device that was taken. Answered by `ready`.
    Open {
        /// The JSON text of the request, with its model in place.
        request: String,
        /// Which of the ranks that train together it is, from 0; 0 for one that trains alone.
        rank: u32,
    },
    /// Say where the other ranks can find this one. Answered by `invitation`. Needs no `open`.
    Invite,
    /// Find the other ranks. Answered by `ready` once all of them did, with what is available then. Other orders wait for
    /// it, which may be for ever: a rank may not come.
    Join {
        /// What one of them answered to `invite`.
        invitation: String,
        /// How many they are.
        ranks: u32,
    },
    /// Say which GPUs there are. Answered by `inventory`. Needs no `open`.
    List,
    /// Run one batch. Answered by `report`.
    Probe(ProbeOrder),
    /// Exit. Not answered.
    Shutdown,
}

/// One batch of one variant.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ProbeOrder {
    /// How to train.
    pub variant: Variant,
    /// Samples per micro-step.
    pub batch: u64,
    /// What the allocator may reserve.
    pub limit_bytes: u64,
}

/// Child to parent.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    /// The first line.
    Hello {
        /// [`VERSION`] of the child.
        version: u32,
    },
    /// The device is ours.
    Taken,
    /// The device is open and the model is read.
    Ready(Ready),
    /// Where the other ranks find this one.
    Invitation {
        /// For `join`.
        invitation: String,
    },
    /// It is another worker's turn on the GPU.
    Busy {
        /// Whose, as far as that is known.
        detail: String,
    },
    /// The GPUs of this machine, or what is missing to use any.
    Inventory {
        /// In CUDA's order.
        gpus: Vec<Gpu>,
        /// Why there are none, or why those there are cannot be used.
        missing: Option<String>,
    },
    /// What a probe found.
    Report(Box<ProbeReport>),
    /// The order could not be carried out.
    Refused {
        /// What kind of trouble.
        refusal: Refusal,
        /// What happened where.
        detail: String,
    },
}

/// A GPU of this machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gpu {
    /// CUDA's number.
    pub ordinal: u32,
    /// The name that the driver reports.
    pub name: String,
    /// All of its memory.
    pub total_bytes: u64,
    /// What of it is free.
    pub free_bytes: u64,
    /// What it can do.
    #[serde(flatten)]
    pub capability: Capability,
    /// Driver version.
    pub driver: Option<String>,
    /// cuDNN version.
    pub cudnn: Option<String>,
}

/// An open device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ready {
    /// The card.
    pub gpu: Gpu,
    /// CUDA version.
    pub cuda: Option<String>,
    /// cuDNN version.
    pub cudnn: Option<String>,
    /// What is free, less what a process holds outside the allocator: the limit where a request gives none.
    pub available_bytes: u64,
    /// What other processes hold on the card; none on a simulated one.
    pub used_by_others_bytes: Option<u64>,
    /// Why nothing can be probed, when others leave too little for a process to use the card at all. Then nothing
    /// is available either.
    pub no_room: Option<String>,
}

/// Why an order was not carried out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Refusal {
    /// The request is wrong.
    Invalid,
    /// The device, its driver or a library is missing.
    DeviceUnavailable,
    /// The device is there and did not do its work.
    DeviceFailed,
    /// The device is lost to this process, which ends: another one may do better.
    Lost,
    /// The order made no sense at that moment.
    OutOfTurn,
}

impl Ready {
    /// What holds for this rank and for another one: the less of both.
    #[must_use]
    pub fn with(self, other: Ready) -> Ready {
        Ready {
            available_bytes: self.available_bytes.min(other.available_bytes),
            used_by_others_bytes: self.used_by_others_bytes.max(other.used_by_others_bytes),
            no_room: self.no_room.or(other.no_room),
            ..self
        }
    }
}
