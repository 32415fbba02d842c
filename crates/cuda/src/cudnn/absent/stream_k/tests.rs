use super::stream_k::{Kernel, Processor};
use super::{Convolution, DType};
use crate::device::sim::workspaces::parse_layer;
use crate::program::ConvolutionPass;

const H200: Processor = Processor {
    multiprocessors: 132,
    clocks: 1980.0 / 3201.0,
};
const H100: Processor = Processor {
    multiprocessors: 132,
    clocks: 1980.0 / 2619.0,
};

/// A tile of 128 x 128, steps of 32, no clusters.
fn kernel(call: &Convolution) -> Kernel {
    let knobs = [(2, 0), (13, 0), (18, 0), (25, 0), (27, 1), (28, 1)];
    Kernel::of(67, &knobs, call).unwrap()
}

/// A 1x1 convolution of 64 results in `tiles` tiles, with sums of so many steps.
fn call(tiles: u64, steps: u64) -> Convolution {
    let layer = format!("{},64,1,4,4,1,1,1,1,0,0,1,1,0", 32 * steps);
    let layer = parse_layer(&layer).unwrap();
    layer.call(ConvolutionPass::Forward, DType::Float16, 8 * tiles)
}

/// The parts of a tile's sum for these counts of steps.
fn parts(card: Processor, tiles: u64, steps: &[u64]) -> Vec<u64> {
    let parts = |steps: &u64| {
        let call = call(tiles, *steps);
        let kernel = kernel(&call);
        kernel.split(&kernel.product(&call), &card).parts
    };
    steps.iter().map(parts).collect()
}

#[test]
fn sums_are_split_as_an_h100_splits_them() {
    // `CUDNN_ATTR_ENGINECFG_WORKSPACE_SIZE` of engine 67 on an H100 (cuDNN 9.19.0, 2026-11-24), by steps of a sum.
    let one_tile = parts(H100, 1, &[31, 32, 62, 63, 124, 125, 296, 297, 329, 330]);
    assert_eq!(one_tile, [1, 2, 2, 4, 4, 8, 16, 9, 9, 10]);
    let one_left = parts(H100, 133, &[15, 16, 30, 32, 84, 85, 86, 88, 512, 513]);
    assert_eq!(one_left, [1, 2, 2, 4, 21, 17, 18, 22, 128, 103]);
    // At 32 steps the H100 has two parts, these rules three.
    let few_fit = parts(H100, 132 + 44, &[15, 16, 31, 33, 400]);
    assert_eq!(few_fit, [1, 2, 2, 3, 3]);
    let none_fits = parts(H100, 132 + 67, &[400]);
    assert_eq!(none_fits, [1]);
}

#[test]
fn memory_of_a_faster_clock_is_waited_for_less() {
    assert_eq!(parts(H200, 1, &[27, 28, 31]), [1, 2, 2]);
    assert_eq!(parts(H100, 1, &[27, 28, 31]), [1, 1, 1]);
}

#[test]
fn a_plan_of_another_engine_or_tile_is_left_alone() {
    let call = call(1, 1);
    let knobs = [(2, 0), (13, 0), (25, 0), (27, 1), (28, 1)];
    assert!(Kernel::of(45, &knobs, &call).is_none());
    assert!(Kernel::of(67, &[(2, 8), (13, 0), (25, 0), (27, 1), (28, 1)], &call).is_none());
    assert!(Kernel::of(67, &[(2, 0)], &call).is_none());
    assert!(Kernel::of(-1, &knobs, &call).is_none());
}

#[test]
fn plans_are_given_what_an_h200_gives_them() {
    let mut exact = 0;
    let mut count = 0;
    for row in include_str!("h200.txt").lines() {
        if row.starts_with('#') {
            continue;
        }
        let [layer, dtype, pass, batch, plan, alone, recorded] =
            row.split(' ').collect::<Vec<_>>()[..]
        else {
            panic!("{row}");
        };
        let dtype = match dtype {
            "f32" => DType::Float32,
            "f16" => DType::Float16,
            _ => DType::BFloat16,
        };
        let pass = match pass {
            "forward" => ConvolutionPass::Forward,
            "grad_input" => ConvolutionPass::GradInput,
            _ => ConvolutionPass::GradWeight,
        };
        let layer = parse_layer(layer).unwrap();
        let call = layer.call(pass, dtype, batch.parse().unwrap());
        let mut parts = plan.split('_');
        let engine = parts.next().unwrap().trim_start_matches("eng");
        let knob = |part: &str| {
            let (knob, value) = part[1..].split_once('=').unwrap();
            (knob.parse().unwrap(), value.parse().unwrap())
        };
        let knobs: Vec<(u32, i64)> = parts.map(knob).collect();
        count += 1;
        let Some(kernel) = Kernel::of(engine.parse().unwrap(), &knobs, &call) else {
            continue;
        };
        let found = kernel.workspace(&call, &H200, alone.parse().unwrap());
        exact += u32::from(found.abs_diff(recorded.parse().unwrap()) < 1024);
    }
    assert_eq!(count, 420);
    assert!(exact >= 412, "{exact} of {count}");
}
