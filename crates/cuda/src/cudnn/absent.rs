//! What cuDNN would try on a card that is not there. See Note [Without a device].

use cudarc::cudnn::sys::{
    cudnnBackendAttributeName_t as Name, cudnnBackendDescriptorType_t as Kind,
    cudnnBackendHeurMode_t as Mode,
};
use serde::Serialize;

use crate::device::sim::Card;
use crate::device::sim::workspaces::{REFUSED, of_engine};
use crate::program::{Architecture, Capability, Convolution, Operation};
use crate::shape::DType;
use crate::units::Bytes;

use super::candidates::{Absent, MOST_PLANS, configurations, first_of, is_allowed};
use super::descriptor::Descriptor;
use super::plan::{configured, knobs, number, tag, workspace};
use super::{ALIGNMENT, CudnnError, OperationGraph, Tf32};

mod log;
mod stream_k;

pub use log::environment;

pub(super) use log::logging;

use log::Log;
use stream_k::{Kernel, Processor};

/// A card as cuDNN describes one: all members of `CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION`, each of which it wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
#[expect(
    missing_docs,
    reason = "each is the member of `cudaDeviceProp` of that name"
)]
pub struct CardProperties {
    pub device_name: &'static str,
    /// The compute capability: 900 is 9.0.
    pub device_ver: u32,
    pub multi_processor_count: u64,
    pub warp_size: u32,
    pub max_shared_memory_per_block: u32,
    pub max_shared_memory_per_block_optin: u32,
    pub reserved_shared_memory_per_block: u32,
    #[serde(rename = "maxRegistersPerSM")]
    pub max_registers_per_sm: u32,
    #[serde(rename = "maxCtasPerSM")]
    pub max_ctas_per_sm: u32,
    pub max_threads_per_block: u32,
    #[serde(rename = "maxThreadsPerSM")]
    pub max_threads_per_sm: u64,
    pub regs_per_block: u32,
    pub total_global_mem: u64,
    #[serde(rename = "smClockRateKHz")]
    pub sm_clock_rate_khz: u32,
    #[serde(rename = "memClockRateKHz")]
    pub mem_clock_rate_khz: u32,
    #[serde(rename = "l2CacheSize")]
    pub l2_cache_size: u32,
    pub max_block_size: [u32; 3],
    pub max_grid_size: [u32; 3],
    pub support_coop_launch: u32,
    pub pci_device_id: u32,
    pub is_tcc_driver: u32,
    pub cuda_device_id: u32,
    pub driver_ver: u32,
}

/// Bytes of the second-level cache that cuDNN is told of all cards of an architecture: those of T4, A100, RTX 3090, RTX 4090, H200, B200 and
/// RTX 5090, by the pages that the catalogue names for these cards; the H200's is what cuDNN itself says on one, and the B200's could not be
/// verified. Within an architecture, cards are offered the same engines whatever cache and clocks they have.
const CACHES: [((u32, u32), u32); 7] = [
    ((7, 5), 4 << 20),
    ((8, 0), 40 << 20),
    ((8, 6), 6 << 20),
    ((8, 9), 72 << 20),
    ((9, 0), 60 << 20),
    ((10, 0), 132_644_864),
    ((12, 0), 96 << 20),
];

/// The clocks of a card in kHz.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Clocks {
    /// Of its multiprocessors, at their best.
    pub multiprocessors: u32,
    /// Of its memory: half of what each of its ways carries.
    pub memory: u32,
}

impl CardProperties {
    /// Those of a card of the catalogue; `None` for an architecture that cuDNN 9.19 for CUDA 13 does not know.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a clock in kHz"
    )]
    pub fn of_card(card: &Card) -> Option<CardProperties> {
        let clocks = Clocks {
            multiprocessors: 1000 * card.sheet.boost_mhz,
            // Two of what a way carries fit in one period of the memory's clock.
            memory: (card.sheet.rate * 1e6 / 2.0) as u32,
        };
        CardProperties::of(card.product, &card.capability, card.total_memory, clocks)
    }

    /// Those of a card; `None` for an architecture that cuDNN 9.19 for CUDA 13 does not know, and for 10.3, which it was not asked about.
    pub fn of(
        name: &'static str,
        card: &Capability,
        total: Bytes,
        clocks: Clocks,
    ) -> Option<CardProperties> {
        let mut caches = CACHES.iter();
        let (_, cache) = caches.find(|(compute, _)| *compute == card.compute)?;
        let architecture = Architecture::of(card.compute);
        let (major, minor) = card.compute;
        Some(CardProperties {
            device_name: name,
            device_ver: 100 * major + 10 * minor,
            multi_processor_count: card.multiprocessors,
            warp_size: 32,
            max_shared_memory_per_block: 48 << 10,
            max_shared_memory_per_block_optin: architecture.shared_per_block,
            reserved_shared_memory_per_block: architecture.reserved_per_block,
            max_registers_per_sm: 1 << 16,
            max_ctas_per_sm: architecture.blocks_per_multiprocessor,
            max_threads_per_block: 1024,
            max_threads_per_sm: card.threads_per_multiprocessor,
            regs_per_block: 1 << 16,
            total_global_mem: total.0,
            sm_clock_rate_khz: clocks.multiprocessors,
            mem_clock_rate_khz: clocks.memory,
            l2_cache_size: *cache,
            max_block_size: [1024, 1024, 64],
            max_grid_size: [i32::MAX.unsigned_abs(), 65_535, 65_535],
            support_coop_launch: 1,
            pci_device_id: 0,
            is_tcc_driver: 0,
            cuda_device_id: 0,
            driver_ver: 13_000,
        })
    }
}

/// A plan that would be tried.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Offer {
    /// The engine and its knobs.
    pub tag: String,
    /// The workspace that it would be given.
    pub workspace: Bytes,
}

/// A card that is not there.
pub struct AbsentCard {
    properties: Descriptor,
    /// What decides how kernels split sums, for the architecture of which that is known: 9.0.
    splitting: Option<Processor>,
    /// Nothing where the environment does not say where to: then what is cuBLASLt's is unknown.
    log: Option<Log>,
}

/// What the environment of a process has to have that asks about other cards than one that is there: cuDNN 9.19 may end with a segmentation
/// fault where it sees both.
pub const NO_CARD_VISIBLE: (&str, &str) = ("CUDA_VISIBLE_DEVICES", "-1");

impl AbsentCard {
    /// Describes a card. cuDNN 9.8 and later can.
    pub fn new(card: &CardProperties) -> Result<AbsentCard, CudnnError> {
        let text = serde_json::to_string(card).expect("names are strings");
        let mut properties = Descriptor::create(Kind::CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR)?;
        properties.set(
            Name::CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION,
            text.as_bytes(),
        )?;
        let splitting = Processor {
            multiprocessors: card.multi_processor_count,
            clocks: f64::from(card.sm_clock_rate_khz) / f64::from(card.mem_clock_rate_khz),
        };
        Ok(AbsentCard {
            properties: properties.finalize()?,
            splitting: (card.device_ver == 900).then_some(splitting),
            log: Log::open().ok(),
        })
    }

    /// What would be tried for a convolution, as [`super::list_plans`] says it of a card that is there.
    pub fn offers(&self, convolution: &Convolution, tf32: Tf32) -> Result<Vec<Offer>, CudnnError> {
        let graph = OperationGraph::build(None, convolution, ALIGNMENT)?;
        let wants_full_fp32 = convolution.dtype == DType::Float32 && tf32 == Tf32::Off;
        let needs_none = |offer: &Offer| offer.workspace == Bytes::ZERO;
        // Nothing is tried after one that needs no memory.
        let list = |mode| {
            let mut offers: Vec<Offer> = Vec::new();
            let most = Some(MOST_PLANS);
            for config in configurations(graph.descriptor(), mode, Some(self.silent()), most)? {
                if is_allowed(&config, wants_full_fp32)? {
                    offers.push(self.offer(convolution, &config)?);
                }
                if offers.last().is_some_and(needs_none) {
                    break;
                }
            }
            Ok::<_, CudnnError>(offers)
        };
        let mut offers = Vec::from_iter(self.refused(convolution, &graph)?);
        if !offers.iter().any(needs_none) {
            offers.extend(list(Mode::CUDNN_HEUR_MODE_INSTANT)?);
        }
        if !offers.iter().any(needs_none) {
            offers.extend(list(Mode::CUDNN_HEUR_MODE_FALLBACK).unwrap_or_default());
        }
        if let Some(end) = offers.iter().position(needs_none) {
            offers.truncate(end + 1);
            if !convolution.uses_cudnn() {
                offers.drain(..end);
            }
        }
        if offers.is_empty() {
            Err(CudnnError::NoEngine)
        } else {
            Ok(offers)
        }
    }

    /// What would be tried first, in a fiftieth of the time.
    pub fn first_offer(&self, convolution: &Convolution, tf32: Tf32) -> Result<Offer, CudnnError> {
        let graph = OperationGraph::build(None, convolution, ALIGNMENT)?;
        let wants_full_fp32 = convolution.dtype == DType::Float32 && tf32 == Tf32::Off;
        let made = |config: Descriptor| self.offer(convolution, &config).map(Some);
        let first = |card| first_of(graph.descriptor(), Some(card), wants_full_fp32, made);
        let found = if may_be_refused(convolution) {
            let log = self.log()?;
            let supported = first(self.logged())?;
            log.refused(convolution)?.or(supported)
        } else {
            first(self.silent())?
        };
        found.ok_or(CudnnError::NoEngine)
    }

    /// What a configuration offers: what cuDNN says of it, where that does not depend on the number of multiprocessors, which it does not know
    /// (Note [Splits of a sum]).
    fn offer(&self, call: &Convolution, config: &Descriptor) -> Result<Offer, CudnnError> {
        let said = workspace(config)?;
        Ok(Offer {
            tag: tag(config)?,
            workspace: match &self.splitting {
                Some(processor) => Bytes(on_card(processor, call, config, said.0)?),
                None => said,
            },
        })
    }

    /// The plan that is refused without a device, where one is ranked first.
    fn refused(
        &self,
        convolution: &Convolution,
        graph: &OperationGraph,
    ) -> Result<Option<Offer>, CudnnError> {
        if !may_be_refused(convolution) {
            return Ok(None);
        }
        let log = self.log()?;
        let mode = Mode::CUDNN_HEUR_MODE_INSTANT;
        let asked = Some(self.logged());
        configurations(graph.descriptor(), mode, asked, Some(1))?;
        log.refused(convolution)
    }

    /// As it is asked about without a log.
    fn silent(&self) -> Absent<'_> {
        Absent {
            card: &self.properties,
            is_logged: false,
        }
    }

    /// The same with one.
    fn logged(&self) -> Absent<'_> {
        Absent {
            is_logged: true,
            ..self.silent()
        }
    }

    /// The log, from here on.
    fn log(&self) -> Result<&Log, CudnnError> {
        let log = self.log.as_ref().ok_or(CudnnError::NoLog)?;
        log.skip().map_err(|_| CudnnError::NoLog)?;
        Ok(log)
    }
}

/// What a configuration is given on a card with so many multiprocessors. `said` is what cuDNN says without it.
fn on_card(
    card: &Processor,
    call: &Convolution,
    config: &Descriptor,
    said: u64,
) -> Result<u64, CudnnError> {
    let mut set = knobs(config)?;
    let Some(kernel) = Kernel::of(number(config)?, &set, call) else {
        return Ok(said);
    };
    for (knob, value) in &mut set {
        if *knob == stream_k::WORKSPACE {
            *value = 1;
        }
    }
    let alone = workspace(&configured(config, &set)?)?;
    Ok(kernel.workspace(call, card, alone.0))
}

/// Whether the plan that would be tried first may be one that is refused without a device: then only cuDNN's log tells.
fn may_be_refused(call: &Convolution) -> bool {
    REFUSED
        .iter()
        .any(|engine| of_engine(*engine, call).is_some())
}

#[cfg(test)]
mod tests;

#[cfg(test)]
#[path = "absent/stream_k/tests.rs"]
mod stream_k_tests;
