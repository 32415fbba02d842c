//! `torchvision/models/googlenet.py`

use super::inception::BasicConv;
use crate::presets::prelude::*;
use crate::shape::Extent;
use crate::tracing::functional::cross_entropy;

/// torchvision's `GoogLeNet`.
#[rustfmt::skip] // A row a line.
pub(in crate::presets) const PRESETS: &[Entry] = &[
    entry("googlenet", "torchvision's GoogLeNet with its two auxiliary classifiers, whose losses count 0.3 each", 13_004_888, AT_224, with_aux),
    entry("googlenet_no_aux", "torchvision's GoogLeNet with aux_logits=False", 6_624_904, AT_224, without_aux),
];

const CLASS: &str = "torchvision.models.googlenet.GoogLeNet";

fn without_aux(sizes: &Sizes) -> Result<Graph, GraphError> {
    classifier(sizes, CLASS, |at, x| outputs(at, sizes, false, x).0)
}

fn with_aux(sizes: &Sizes) -> Result<Graph, GraphError> {
    trained(sizes, CLASS, &[Extent::BATCH], |at, x, y| {
        let (logits, auxiliary) = outputs(at, sizes, true, x);
        let Some([aux1, aux2]) = auxiliary else {
            return cross_entropy(logits, y);
        };
        let loss = cross_entropy(&logits, y);
        let loss1 = cross_entropy(&aux1, y);
        let loss2 = cross_entropy(&aux2, y);
        let all = (&loss).add((&loss1).add(&loss2).mul_number(0.3));
        all.and_drop((aux1, aux2, logits, loss, loss1, loss2))
    })
}

/// A module of the network itself.
#[derive(Debug, Clone, Copy)]
enum Part {
    /// Channels, kernel and stride.
    Conv([u64; 2], u64, u64),
    /// The kernel.
    Pool(i64),
    /// Channels of what comes before an inception block, and of its branches' results and what comes before those.
    Inception(u64, [u64; 6]),
    /// An auxiliary classifier of so many channels, beside the network.
    Auxiliary(u64),
}

use Part::{Auxiliary, Inception, Pool};

/// What comes after the first convolution.
#[rustfmt::skip] // A row a line.
const PARTS: [(&str, Part); 17] = [
    ("maxpool1", Pool(3)),
    ("conv2", Part::Conv([64, 64], 1, 1)),
    ("conv3", Part::Conv([64, 192], 3, 1)),
    ("maxpool2", Pool(3)),
    ("inception3a", Inception(192, [64, 96, 128, 16, 32, 32])),
    ("inception3b", Inception(256, [128, 128, 192, 32, 96, 64])),
    ("maxpool3", Pool(3)),
    ("inception4a", Inception(480, [192, 96, 208, 16, 48, 64])),
    ("aux1", Auxiliary(512)),
    ("inception4b", Inception(512, [160, 112, 224, 24, 64, 64])),
    ("inception4c", Inception(512, [128, 128, 256, 24, 64, 64])),
    ("inception4d", Inception(512, [112, 144, 288, 32, 64, 64])),
    ("aux2", Auxiliary(528)),
    ("inception4e", Inception(528, [256, 160, 320, 32, 128, 128])),
    ("maxpool4", Pool(2)),
    ("inception5a", Inception(832, [256, 160, 320, 32, 128, 128])),
    ("inception5b", Inception(832, [384, 192, 384, 48, 128, 128])),
];

/// `GoogLeNet`: logits, and those of the auxiliary classifiers.
fn outputs(at: &Frame, sizes: &Sizes, has_aux: bool, x: &Tensor) -> (Tensor, Option<[Tensor; 2]>) {
    let first = ("conv1", Part::Conv([sizes.channels, 64], 7, 2));
    let parts = || [first].into_iter().chain(PARTS);
    for (name, part) in parts() {
        if !matches!(part, Auxiliary(_)) {
            at.made(&[name]);
        }
    }
    let mut auxiliary = Vec::new();
    let mut x = x.clone();
    for (name, part) in parts() {
        x = match part {
            Part::Conv(channels, kernel, stride) => {
                let conv = BasicConv::new(channels, [kernel; 2]);
                conv.stride(stride)
                    .padding([kernel / 2; 2])
                    .call(at, name, &x)
            }
            Pool(kernel) => max_pool(at, name, Pooling::new(kernel, 2, 0).ceil(), &x),
            Inception(input, widths) => {
                at.call(name, "Inception", |at| inception(at, input, widths, &x))
            }
            Auxiliary(input) => {
                if has_aux {
                    let sizes = [input, sizes.classes];
                    auxiliary.push(at.call(name, "InceptionAux", |at| classified(at, sizes, &x)));
                }
                continue;
            }
        };
    }
    x = adaptive_pool(at, "avgpool", 1, &x);
    x = flat(&x);
    x = at.dropout("dropout", 0.2, x);
    x = at.linear("fc", [1024, sizes.classes], true, x);
    (x, auxiliary.try_into().ok())
}

/// `Inception`.
fn inception(at: &Frame, input: u64, widths: [u64; 6], x: &Tensor) -> Tensor {
    let [ch1x1, ch3x3red, ch3x3, ch5x5red, ch5x5, pool_proj] = widths;
    let pointwise = |output| BasicConv::new([input, output], [1, 1]);
    let twice = |name: &str, [narrow, wide]: [u64; 2]| {
        sequential(at, name, x, |branch| {
            branch.then(|at, name, x| pointwise(narrow).call(at, name, x));
            let conv = BasicConv::new([narrow, wide], [3, 3]).padding([1, 1]);
            branch.then(|at, name, x| conv.call(at, name, x));
        })
    };
    let branch1 = pointwise(ch1x1).call(at, "branch1", x);
    let branch2 = twice("branch2", [ch3x3red, ch3x3]);
    // torchvision has 3 x 3 in place of the paper's 5 x 5.
    let branch3 = twice("branch3", [ch5x5red, ch5x5]);
    let branch4 = sequential(at, "branch4", x, |branch| {
        let pooling = Pooling::new(3, 1, 1).ceil();
        branch.then(|at, name, x| max_pool(at, name, pooling, x));
        branch.then(|at, name, x| pointwise(pool_proj).call(at, name, x));
    });
    at.tracer().cat([branch1, branch2, branch3, branch4], 1)
}

/// `InceptionAux`.
fn classified(at: &Frame, [input, classes]: [u64; 2], x: &Tensor) -> Tensor {
    let mut x = adaptive_average(x, 4);
    x = BasicConv::new([input, 128], [1, 1]).call(at, "conv", &x);
    x = flat(&x);
    x = relu_in_place(&at.linear("fc1", [2048, 1024], true, &x));
    x = at.dropout("dropout", 0.7, x);
    at.linear("fc2", [1024, classes], true, x)
}
