//! Which devices there are, and which one a request means.

use std::borrow::Cow;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::EngineError;
use crate::device::sim::{CARDS, Card, PROCESS_OVERHEAD};
use crate::fitting::Result;
use crate::limits::Cancel;
use crate::model::{DeviceChoice, Request, RequestError};
use crate::units::Bytes;
use crate::worker::{Gpu, Supervisor, WorkerCommand, WorkerError};

use super::engine::{Catalogue, card};
use super::probing::gpu::translated;

/// What a worker found, when it was asked for GPUs.
#[derive(Debug, Clone, Default)]
pub(super) struct Inventory {
    pub(super) gpus: Vec<Gpu>,
    /// Why there are none, or why they cannot be used.
    pub(super) missing: Option<String>,
    /// How the workers were lost that were to list them: nothing is known then, and the next one who asks may be luckier.
    pub(super) lost: Option<String>,
}

/// What was listed last. A listing starts a process, so requests that come at the same time share one.
#[derive(Debug, Default)]
pub(super) struct Listed(pub(super) Mutex<Option<(Instant, Inventory)>>);

impl Listed {
    /// The last one, if it is not as old as this, or else a new one. One that was lost is not kept.
    pub(super) fn no_older_than(
        &self,
        age: Duration,
        list: impl FnOnce() -> Inventory,
    ) -> Inventory {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((when, inventory)) = &*known
            && when.elapsed() < age
        {
            return inventory.clone();
        }
        let inventory = list();
        *known = (inventory.lost.is_none()).then(|| (Instant::now(), inventory.clone()));
        inventory
    }
}

/// How long GPUs that were listed are taken to be there when a request is checked. The answer looks again.
const LISTED: Duration = Duration::from_secs(2);

impl Catalogue {
    pub(super) fn inventory(&self) -> Inventory {
        let mut inventory = Inventory::default();
        let listed = match &self.lister {
            Ok((program, deadlines)) => {
                let launch = WorkerCommand::this_binary(program.clone());
                Supervisor::list(&launch, *deadlines, &Cancel::default())
            }
            Err(missing) => Ok((Vec::new(), Some(missing.clone()))),
        };
        match listed {
            Ok((gpus, missing)) => (inventory.gpus, inventory.missing) = (gpus, missing),
            Err(lost @ WorkerError::Lost { .. }) => inventory.lost = Some(lost.to_string()),
            Err(error) => inventory.missing = Some(translated(error, "the worker").to_string()),
        }
        inventory
    }

    /// The simulated cards, and the real GPUs found, or what is missing to find any.
    pub fn devices(&self) -> Vec<DeviceSummary> {
        summaries(&self.inventory())
    }

    /// Says whether the request's device is here, before anything is queued, and which card that is: its name and
    /// driver, since `cuda:0` may be another card tomorrow. A simulated one is known by its name.
    pub fn card(&self, request: &Request) -> Result<Option<String>> {
        let inventory = || self.listed.no_older_than(LISTED, || self.inventory());
        let placed = placed(request, inventory)?;
        if let Some(card) = card(&placed) {
            request.fits_on(card.total_memory)?;
            return Ok(None);
        }
        let (_, gpu) = resolve(&placed.device, inventory)?;
        request.fits_on(Bytes(gpu.total_bytes))?;
        Ok(Some(card_name(&gpu.name, gpu.driver.as_deref())))
    }
}

/// The GPU that is meant, as far as can be told beforehand, by the name `cuda:N` or `auto`. Simulated cards are not looked for here.
pub(super) fn resolve(
    choice: &DeviceChoice,
    inventory: impl FnOnce() -> Inventory,
) -> Result<(String, Gpu)> {
    let wanted = match choice {
        DeviceChoice::Sim(name) => {
            let unknown = format!("there is no simulated device `sim:{name}`");
            return Err(RequestError::at("/device", unknown).into());
        }
        // Which one it will be is decided when it is opened: no other process may have it then.
        DeviceChoice::Auto | DeviceChoice::Kind(_) => None,
        DeviceChoice::Cuda(number) => Some(*number),
        DeviceChoice::Host(host, _) => {
            let missing = format!("{host} is another machine");
            return Err(EngineError::unavailable(&choice.to_string(), missing));
        }
    };
    let Inventory {
        gpus,
        missing,
        lost,
    } = inventory();
    if let Some(cause) = lost {
        let device = choice.to_string();
        return Err(EngineError::DeviceFailed { device, cause });
    }
    if let Some(missing) = missing {
        return Err(EngineError::unavailable(&choice.to_string(), missing));
    }
    let count = gpus.len();
    if let DeviceChoice::Kind(kind) = choice {
        return of_kind(kind, gpus);
    }
    let mut meant = gpus
        .into_iter()
        .filter(|gpu| wanted.is_none_or(|wanted| gpu.ordinal == wanted));
    if let Some(gpu) = meant.next() {
        return Ok((choice.to_string(), gpu));
    }
    let missing = match count {
        0 => "this machine has no GPU".to_owned(),
        1 => "this machine has one GPU, `cuda:0`".to_owned(),
        count => format!(
            "this machine has {count} GPUs, `cuda:0` to `cuda:{}`",
            count - 1
        ),
    };
    Err(EngineError::unavailable(&choice.to_string(), missing))
}

/// A GPU of this kind: any that is free where all are, or else an idle one.
fn of_kind(kind: &str, gpus: Vec<Gpu>) -> Result<(String, Gpu)> {
    let all = gpus.len();
    let mut meant: Vec<Gpu> = gpus
        .into_iter()
        .filter(|gpu| is_of_kind(&gpu.name, kind))
        .collect();
    crate::order::by_key(&mut meant, is_used);
    let are_all = meant.len() == all;
    let Some(gpu) = meant.into_iter().next() else {
        let missing = format!("no GPU of this machine is of the kind {kind}");
        return Err(EngineError::unavailable(kind, missing));
    };
    let name = if are_all {
        DeviceChoice::Auto
    } else {
        DeviceChoice::Cuda(gpu.ordinal)
    };
    Ok((name.to_string(), gpu))
}

/// Whether a GPU is in use; idle ones first, in CUDA's order.
fn is_used(gpu: &Gpu) -> (bool, u32) {
    let used = Bytes(gpu.total_bytes.saturating_sub(gpu.free_bytes));
    (used > IDLE, gpu.ordinal)
}

/// What may be in use on an idle GPU.
const IDLE: Bytes = Bytes::mib(512);

/// A request whose device is one of this machine, or simulated: a kind of card that this machine does not have is simulated. `inventory`
/// is asked where that has to be known.
pub(super) fn placed(
    request: &Request,
    inventory: impl FnOnce() -> Inventory,
) -> Result<Cow<'_, Request>> {
    match &request.device {
        DeviceChoice::Auto | DeviceChoice::Cuda(_) | DeviceChoice::Sim(_) => {
            Ok(Cow::Borrowed(request))
        }
        DeviceChoice::Kind(kind) => {
            let Inventory { gpus, lost, .. } = inventory();
            if lost.is_some() || gpus.iter().any(|gpu| is_of_kind(&gpu.name, kind)) {
                return Ok(Cow::Borrowed(request));
            }
            Ok(Cow::Owned(request.on(DeviceChoice::Sim(kind.clone()))))
        }
        DeviceChoice::Host(host, _) => {
            let missing =
                format!("{host} is another machine, and only a service knows agents on others");
            Err(EngineError::unavailable(
                &request.device.to_string(),
                missing,
            ))
        }
    }
}

/// Whether the card that the driver calls this is of a kind in the catalogue.
pub(super) fn is_of_kind(product: &str, kind: &str) -> bool {
    Card::of_product(product).is_some_and(|card| card.name == kind)
}

/// The GPUs on which so many ranks can train together: alike, idle ones first. Otherwise why they are simulated.
pub(super) fn together(
    choice: &DeviceChoice,
    gpus: &[Gpu],
    ranks: u64,
) -> Result<Vec<String>, String> {
    if let (DeviceChoice::Cuda(number), 2..) = (choice, ranks) {
        return Err(format!(
            "simulated: the request names one GPU, cuda:{number}, and has {ranks} ranks; the device `auto` takes a GPU for each, \
             where there are enough that are alike"
        ));
    }
    let enough = usize::try_from(ranks).unwrap_or(usize::MAX);
    let is_meant = |gpu: &&Gpu| match choice {
        DeviceChoice::Kind(kind) => is_of_kind(&gpu.name, kind),
        _any_other => true,
    };
    let mut free_first: Vec<&Gpu> = gpus.iter().filter(is_meant).collect();
    crate::order::by_key(&mut free_first, |gpu| is_used(gpu));
    let are_alike = |a: &Gpu, b: &Gpu| {
        (&a.name, a.total_bytes, a.capability) == (&b.name, b.total_bytes, b.capability)
    };
    let alike = free_first.iter().map(|first| {
        let others = free_first.iter().filter(|gpu| are_alike(first, gpu));
        others.map(|gpu| gpu.ordinal).collect::<Vec<u32>>()
    });
    let mut alike: Vec<Vec<u32>> = alike.collect();
    let Some(at) = alike.iter().position(|group| group.len() >= enough) else {
        let most = alike.iter().map(Vec::len).max().unwrap_or(0);
        let have = match (most == gpus.len(), most) {
            (true, 1) => "one GPU".to_owned(),
            (true, most) => format!("{most} GPUs"),
            (false, most) => format!("{} GPUs, of which {most} are alike", gpus.len()),
        };
        return Err(format!(
            "simulated: this machine has {have}, and the request {ranks} ranks"
        ));
    };
    let mut numbers = alike.swap_remove(at);
    numbers.truncate(enough);
    // In one order for all jobs: they take turns on each.
    numbers.sort_unstable();
    Ok(numbers
        .iter()
        .map(|number| format!("cuda:{number}"))
        .collect())
}

/// All devices: GPUs first.
fn summaries(inventory: &Inventory) -> Vec<DeviceSummary> {
    let mut devices: Vec<_> = inventory
        .gpus
        .iter()
        .map(|gpu| real(gpu, inventory.missing.as_deref()))
        .collect();
    let missing = inventory.missing.as_ref().or(inventory.lost.as_ref());
    if let (true, Some(missing)) = (devices.is_empty(), missing) {
        devices.push(absent(missing));
    }
    devices.extend(CARDS.iter().map(simulated));
    devices
}

fn real(gpu: &Gpu, missing: Option<&str>) -> DeviceSummary {
    let free = Bytes(gpu.free_bytes);
    DeviceSummary {
        device: format!("cuda:{}", gpu.ordinal),
        kind: DeviceKind::Cuda,
        card: Card::of_product(&gpu.name).map(|card| card.name.to_owned()),
        gpu: Some(gpu.name.clone()),
        memory_bytes: Some(gpu.total_bytes),
        usable_bytes: Some(free.saturating_sub(PROCESS_OVERHEAD).0),
        compute_capability: Some(dotted(gpu.capability.compute)),
        multiprocessors: u32::try_from(gpu.capability.multiprocessors).ok(),
        driver: gpu.driver.clone(),
        cudnn: gpu.cudnn.clone(),
        available: missing.is_none(),
        missing: missing.map(ToOwned::to_owned),
        source: "the driver".to_owned(),
    }
}

fn absent(missing: &str) -> DeviceSummary {
    DeviceSummary {
        device: "cuda:0".to_owned(),
        missing: Some(missing.to_owned()),
        source: "the driver".to_owned(),
        ..DeviceSummary::default()
    }
}

fn simulated(card: &Card) -> DeviceSummary {
    DeviceSummary {
        device: format!("sim:{}", card.name),
        kind: DeviceKind::Simulated,
        card: Some(card.name.to_owned()),
        gpu: Some(card.product.to_owned()),
        memory_bytes: Some(card.total_memory.0),
        usable_bytes: Some(card.available().0),
        compute_capability: Some(dotted(card.capability.compute)),
        multiprocessors: u32::try_from(card.capability.multiprocessors).ok(),
        available: true,
        source: card.source.to_owned(),
        ..DeviceSummary::default()
    }
}

fn dotted((major, minor): (u32, u32)) -> String {
    format!("{major}.{minor}")
}

/// What a device is made of.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum DeviceKind {
    /// A GPU of this machine.
    #[default]
    Cuda,
    /// The memory of a card, without the card.
    Simulated,
}

/// One entry of `GET /v1/devices` and of `batchfit devices`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct DeviceSummary {
    /// What a request's `device` says: `cuda:0`, `sim:h200`, `node7/cuda:0`.
    #[schema(example = "sim:h200")]
    pub device: String,
    /// Real or simulated.
    pub kind: DeviceKind,
    /// Its name in the catalogue of cards, which as a request's `device` means any such card; null for one that is not there.
    #[schema(example = "h200")]
    pub card: Option<String>,
    /// The card's name; null when it is not known.
    pub gpu: Option<String>,
    /// All of its memory.
    pub memory_bytes: Option<u64>,
    /// What of it is free, less the framework's own context: the default limit.
    pub usable_bytes: Option<u64>,
    /// Its compute capability, like `9.0`.
    pub compute_capability: Option<String>,
    /// Streaming multiprocessors.
    pub multiprocessors: Option<u32>,
    /// Driver version; null on a simulated device.
    pub driver: Option<String>,
    /// cuDNN version; null on a simulated device.
    pub cudnn: Option<String>,
    /// Whether requests for it can be answered.
    pub available: bool,
    /// When it is not available: what is missing.
    pub missing: Option<String>,
    /// Where the numbers are from: a data sheet, a measurement, the driver.
    pub source: String,
}

/// A card as fingerprints name it.
pub fn card_name(gpu: &str, driver: Option<&str>) -> String {
    format!("{gpu}, driver {}", driver.unwrap_or("unknown"))
}

/// The card's name and driver in what [`card_name`] gives.
pub fn named_card(card: &str) -> (&str, Option<&str>) {
    match card.rsplit_once(", driver ") {
        Some((gpu, "unknown")) => (gpu, None),
        Some((gpu, driver)) => (gpu, Some(driver)),
        None => (card, None),
    }
}
