//! What cuDNN would try on a card that is not there. See Note [Without a device].

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::env;
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::path::Path;

use cudarc::cudnn::sys::{
    cudnnBackendAttributeName_t as Name, cudnnBackendDescriptorType_t as Kind,
    cudnnBackendHeurMode_t as Mode,
};
use serde::Serialize;

use crate::program::{Architecture, Capability, Convolution, ConvolutionLayer, ConvolutionPass};
use crate::shape::DType;
use crate::units::Bytes;

use super::candidates::{MOST_PLANS, configurations, first_of, is_allowed};
use super::descriptor::Descriptor;
use super::plan::{configured, knobs, number, tag, workspace};
use super::{ALIGNMENT, CudnnError, OperationGraph, Tf32};

mod stream_k;

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
    /// Nothing where the environment does not say where to: then nobody knows what is cuBLASLt's.
    log: Option<Log>,
    /// Whether a plan that is refused without a device is ranked first: of calls whose batch is that of the question in groups of doublings.
    refused: RefCell<HashMap<Convolution, bool>>,
}

/// The variable that names the file into which cuDNN logs.
const DESTINATION: &str = "CUDNN_LOGDEST_DBG";

/// What the environment of a process has to have that asks about absent cards: cuDNN reads it when it is loaded, and creates the file.
pub fn environment(log: &Path) -> [(&'static str, OsString); 2] {
    // Warnings say why a configuration is refused.
    [
        ("CUDNN_LOGLEVEL_DBG", "3".into()),
        (DESTINATION, log.into()),
    ]
}

/// Engines of cuBLASLt, which are refused where there is no device. Of cuDNN 9.19.
const OF_CUBLASLT: [i64; 3] = [58, 62, 63];

/// Engines for groups of few channels that are refused where there is no driver, since it would load what they compile. Of cuDNN 9.19.
const OF_GROUPS: [i64; 4] = [5, 6, 16, 19];

/// The message of the log that says what was refused.
const CHECKS: &str = "engine_config_support_checks() called:";

/// How it says that there is no device, or no driver.
const NO_DEVICE: [&str; 2] = ["engine_iface->getStatus()", "this->libcuda == nullptr"];

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
            refused: RefCell::default(),
        })
    }

    /// What would be tried for a convolution, as [`super::list_plans`] says it of a card that is there.
    pub fn offers(&self, convolution: &Convolution, tf32: Tf32) -> Result<Vec<Offer>, CudnnError> {
        let graph = OperationGraph::build(None, convolution, ALIGNMENT)?;
        let wants_full_fp32 = convolution.dtype == DType::Float32 && tf32 == Tf32::Off;
        let list = |mode| {
            let mut offers = Vec::new();
            let most = Some(MOST_PLANS);
            for config in configurations(graph.descriptor(), mode, Some(&self.properties), most)? {
                if is_allowed(&config, wants_full_fp32)? {
                    offers.push(self.offer(convolution, &config)?);
                }
            }
            Ok::<_, CudnnError>(offers)
        };
        let mut offers = Vec::from_iter(self.refused(convolution, &graph)?);
        let needs_none = |offer: &Offer| offer.workspace == Bytes::ZERO;
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

    /// What would be tried first, in a fiftieth of the time. Whether a plan would be that is refused without a device is asked once for
    /// batches that are alike (Note [Without a device]).
    pub fn first_offer(&self, convolution: &Convolution, tf32: Tf32) -> Result<Offer, CudnnError> {
        let graph = OperationGraph::build(None, convolution, ALIGNMENT)?;
        let wants_full_fp32 = convolution.dtype == DType::Float32 && tf32 == Tf32::Off;
        let card = Some(&self.properties);
        let made = |config: Descriptor| self.offer(convolution, &config).map(Some);
        let supported = first_of(graph.descriptor(), card, wants_full_fp32, made)?;
        let refused = Refused::of(convolution);
        let found = supported.as_ref().map(|one| one.workspace);
        if let Some(refused) = refused
            && found != Some(refused.workspace)
        {
            let doublings = u64::from(convolution.batch.max(1).ilog2());
            let alike = Convolution {
                batch: doublings / ALIKE,
                ..*convolution
            };
            let known = self.refused.borrow().get(&alike).copied();
            let is_first = match known {
                Some(known) => known,
                None => self.refused(convolution, &graph)?.is_some(),
            };
            self.refused.borrow_mut().insert(alike, is_first);
            if is_first {
                return Ok(refused.offer());
            }
        }
        supported.ok_or(CudnnError::NoEngine)
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
        let Some(refused) = Refused::of(convolution) else {
            return Ok(None);
        };
        // Support is looked at one after the other: those before the first that is supported are in the log.
        let no_log = |_| CudnnError::NoLog;
        let log = self.log.as_ref().ok_or(CudnnError::NoLog)?;
        log.skip().map_err(no_log)?;
        let mode = Mode::CUDNN_HEUR_MODE_INSTANT;
        configurations(graph.descriptor(), mode, Some(&self.properties), Some(1))?;
        let said = refused_engines(&log.take().map_err(no_log)?);
        let is_first = said.iter().any(|engine| refused.engines.contains(engine));
        Ok(is_first.then(|| refused.offer()))
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

/// In how many doublings of the batch the engine that is ranked first is taken to stay the same.
const ALIKE: u64 = 3;

/// What is refused where there is no device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Refused {
    name: &'static str,
    engines: &'static [i64],
    workspace: Bytes,
}

impl Refused {
    /// What may be refused of this call.
    fn of(call: &Convolution) -> Option<Refused> {
        if let Some(workspace) = of_a_product(call) {
            return Some(Refused {
                name: "cublasLt",
                engines: &OF_CUBLASLT,
                workspace,
            });
        }
        let is_half = matches!(call.dtype, DType::Float16 | DType::BFloat16);
        (is_half && call.groups > 1).then_some(Refused {
            name: "groups",
            engines: &OF_GROUPS,
            workspace: Bytes::ZERO,
        })
    }

    fn offer(self) -> Offer {
        Offer {
            tag: self.name.to_owned(),
            workspace: self.workspace,
        }
    }
}

/// Whether asking about a layer takes cuDNN's log.
pub fn takes_log(layer: &ConvolutionLayer) -> bool {
    Refused::of(&layer.call(ConvolutionPass::Forward, DType::Float16, 1)).is_some()
}

/// What a cuBLASLt engine is given for a layer that is a product of matrices; `None` for others.
fn of_a_product(call: &Convolution) -> Option<Bytes> {
    /// Tensors of cuBLASLt's engines have fewer elements.
    const MOST: u64 = 1 << 31;
    let is_product = call.kernel == [1; 3]
        && call.stride == [1; 3]
        && call.padding == [0; 3]
        && call.groups == 1;
    if !is_product
        || call
            .operands()
            .elements()
            .iter()
            .any(|elements| *elements >= MOST)
    {
        return None;
    }
    Some(match call.pass {
        ConvolutionPass::GradWeight if !call.channels_last => {
            Bytes(4 * call.batch * call.in_channels * call.out_channels)
        }
        _ => Bytes::ZERO,
    })
}

/// What cuDNN logs: only there it says which engines it ranked ahead of the first that is supported. A query writes up to 3 MB.
struct Log {
    file: File,
    /// What was looked at.
    read: Cell<u64>,
    /// Up to where the file was emptied. cuDNN goes on where it was, and what is before takes no room.
    emptied: Cell<u64>,
}

/// From so many bytes on, the file is emptied.
const LONGEST_LOG: u64 = 64 << 20;

impl Log {
    fn open() -> io::Result<Log> {
        let path = env::var_os(DESTINATION).ok_or(io::ErrorKind::NotFound)?;
        Ok(Log {
            file: File::options().read(true).write(true).open(path)?,
            read: Cell::default(),
            emptied: Cell::default(),
        })
    }

    /// Passes over what was written.
    fn skip(&self) -> io::Result<()> {
        let end = self.read.get().max(self.file.metadata()?.len());
        self.read.set(end);
        if end - self.emptied.get() >= LONGEST_LOG {
            self.file.set_len(0)?;
            self.emptied.set(end);
        }
        Ok(())
    }

    /// What was written since somebody last looked.
    fn take(&self) -> io::Result<String> {
        let mut file = &self.file;
        file.seek(SeekFrom::Start(self.read.get()))?;
        let mut text = Vec::new();
        let length = file.read_to_end(&mut text)?;
        self.read.set(self.read.get() + length as u64);
        Ok(String::from_utf8_lossy(&text).into_owned())
    }
}

/// Engines of which a log says that they were refused because there is no device.
fn refused_engines(log: &str) -> Vec<i64> {
    let mut engines = Vec::new();
    let Some((_, checks)) = log.split_once(CHECKS) else {
        return engines;
    };
    // Lines of one message begin with a small `i`.
    let checks = checks.split("\nI").next().unwrap_or_default();
    for part in checks.split("\"engineId\":").skip(1) {
        let digits = part.len() - part.trim_start_matches(|c: char| c.is_ascii_digit()).len();
        let reason = part.split_once("Reason: ").map(|(_, reason)| reason);
        if reason.is_some_and(|reason| NO_DEVICE.iter().any(|said| reason.starts_with(said))) {
            engines.extend(part[..digits].parse::<i64>());
        }
    }
    engines
}

#[cfg(test)]
mod tests;
