//! Cards that can be simulated, and cloud machines that have them.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::device::sim::{CARDS, Card, Workspaces, clouds};
use crate::program::{Architecture, Flash};

/// One entry of `GET /v1/cards` and of `batchfit cards`: a card that can be simulated, and where its figures are from.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct CardDocument {
    /// Its name.
    #[schema(example = "h100-80g")]
    pub card: String,
    /// What a request's `device` says.
    #[schema(example = "sim:h100-80g")]
    pub device: String,
    /// What the driver calls it.
    #[schema(example = "NVIDIA H100 80GB HBM3")]
    pub product: String,
    /// Bytes that PyTorch reports as `total_memory`.
    pub memory_bytes: u64,
    /// Bytes of it that are left for PyTorch's allocator: the default limit.
    pub usable_bytes: u64,
    /// Where `memory_bytes` is from.
    pub memory_from: String,
    /// Compute capability.
    #[schema(example = "9.0")]
    pub compute_capability: String,
    /// The chip it is cut from.
    #[schema(example = "GH100")]
    pub chip: String,
    /// Streaming multiprocessors: reductions and attention are split by them.
    pub multiprocessors: u64,
    /// Threads that one of them holds, likewise.
    pub threads_per_multiprocessor: u64,
    /// Bytes of shared memory that a block of threads gets if it asks for them.
    pub shared_memory_per_block: u32,
    /// Bytes of the workspace that PyTorch gives a handle of cuBLAS.
    pub cublas_workspace_bytes: u64,
    /// The kernels of attention that PyTorch chooses among, the preferred one first: `cudnn`, `flash`, `efficient`, `math`.
    pub attention: Vec<String>,
    /// The boost clock in MHz.
    pub boost_clock_mhz: u32,
    /// Width of the memory bus in bits.
    pub memory_bus_bits: u32,
    /// Bytes read or written in a second, in units of 10^9.
    pub gigabytes_per_second: f64,
    /// Operations in a second, without sparsity.
    pub tflops: Throughput,
    /// The page that multiprocessors, clock, bus and bandwidth were held against.
    pub page: String,
    /// The page that has the throughput in TF32, float16 and bfloat16; null where it is calculated from multiprocessors and clock.
    pub throughput_page: Option<String>,
    /// Whether batchfit was measured on a real one.
    pub measured: bool,
    /// What could not be verified, or what public pages contradict each other about; null where there is nothing of the kind.
    pub unverified: Option<String>,
    /// The machines of clouds that have it.
    pub machines: Vec<String>,
}

/// 10^12 operations in a second.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Throughput {
    /// In float32.
    pub fp32: f64,
    /// In TF32; in float32 where a card has no TF32.
    pub tf32: f64,
    /// In float16, with sums in float32.
    pub fp16: f64,
    /// In bfloat16; in float32 where a card has none.
    pub bf16: f64,
}

/// One entry of `GET /v1/machines` and of `batchfit cards --machines`: a machine that a cloud rents out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct MachineDocument {
    /// What the cloud calls it.
    #[schema(example = "p5.48xlarge")]
    pub machine: String,
    /// The cloud.
    #[schema(example = "AWS")]
    pub cloud: String,
    /// What a request's `device` says: then `world_size` is `gpus` unless the request says another.
    #[schema(example = "sim:p5.48xlarge")]
    pub device: String,
    /// Its card.
    #[schema(example = "h100-80g")]
    pub card: String,
    /// How many of them it has.
    #[schema(example = 8)]
    pub gpus: u64,
    /// Where both are from.
    pub source: String,
}

/// All cards, those of servers first.
pub fn cards() -> Vec<CardDocument> {
    CARDS.iter().map(card).collect()
}

/// What is known of a card.
pub fn card(card: &Card) -> CardDocument {
    let (major, minor) = card.capability.compute;
    let architecture = Architecture::of(card.capability.compute);
    let kernels = &architecture.attention;
    let attention = [
        kernels.cudnn.map(|_| "cudnn"),
        (kernels.flash != Flash::No).then_some("flash"),
        Some("efficient"),
        Some("math"),
    ];
    // Figures are given with three digits: in these units they are whole, or have one decimal.
    let rounded = |figure: f64| (figure * 1000.0).round() / 1000.0;
    let tera = |figure: f64| rounded(figure / 1e12);
    CardDocument {
        card: card.name.to_owned(),
        device: format!("sim:{}", card.name),
        product: card.product.to_owned(),
        memory_bytes: card.total_memory.0,
        usable_bytes: card.available().0,
        memory_from: card.source.to_owned(),
        compute_capability: format!("{major}.{minor}"),
        chip: format!("{:?}", card.sheet.chip).to_uppercase(),
        multiprocessors: card.capability.multiprocessors,
        threads_per_multiprocessor: card.capability.threads_per_multiprocessor,
        shared_memory_per_block: architecture.shared_per_block,
        cublas_workspace_bytes: architecture.blas_workspace,
        attention: attention.into_iter().flatten().map(str::to_owned).collect(),
        boost_clock_mhz: card.sheet.boost_mhz,
        memory_bus_bits: card.sheet.bus,
        gigabytes_per_second: rounded(card.ceilings.bandwidth / 1e9),
        tflops: Throughput {
            fp32: tera(card.ceilings.fp32),
            tf32: tera(card.ceilings.tf32),
            fp16: tera(card.ceilings.fp16),
            bf16: tera(card.ceilings.bf16),
        },
        page: card.sheet.page.to_owned(),
        throughput_page: card.sheet.throughput.map(str::to_owned),
        measured: card.workspaces == Workspaces::Recorded,
        unverified: card.sheet.doubtful.map(str::to_owned),
        machines: clouds()
            .into_iter()
            .flat_map(|cloud| cloud.machines)
            .filter(|machine| machine.card == card.name)
            .map(|machine| machine.name.to_owned())
            .collect(),
    }
}

/// All machines, by cloud.
pub fn machines() -> Vec<MachineDocument> {
    let of_cloud = clouds().into_iter().flat_map(|cloud| {
        cloud.machines.iter().map(move |machine| MachineDocument {
            machine: machine.name.to_owned(),
            cloud: cloud.name.to_owned(),
            device: format!("sim:{}", machine.name),
            card: machine.card.to_owned(),
            gpus: machine.count,
            source: cloud.source.to_owned(),
        })
    });
    of_cloud.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_card_tells_its_figures_and_where_they_are_from() {
        let all = cards();
        let h100 = all.iter().find(|card| card.card == "h100-80g").unwrap();

        assert_eq!(h100.chip, "GH100");
        assert_eq!(h100.attention, ["cudnn", "flash", "efficient", "math"]);
        assert_eq!(h100.cublas_workspace_bytes, 33_554_432);
        assert!((h100.tflops.bf16 - 989.4).abs() < 1e-9);
        assert!(h100.machines.iter().any(|name| name == "p5.48xlarge"));
        assert!(!h100.measured && h100.unverified.is_none());
        let t4 = all.iter().find(|card| card.card == "t4").unwrap();
        assert_eq!(t4.attention, ["efficient", "math"]);
    }

    #[test]
    fn every_machine_is_of_a_card_that_is_listed() {
        let all = cards();
        for machine in machines() {
            let its = all.iter().find(|card| card.card == machine.card).unwrap();
            assert!(its.machines.contains(&machine.machine), "{machine:?}");
        }
    }
}
