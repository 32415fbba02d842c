//! `torchvision/models/inception.py`

use crate::presets::prelude::*;
use crate::shape::Extent;
use crate::tracing::functional::cross_entropy;

/// torchvision's Inception v3.
#[rustfmt::skip] // A row a line.
pub(in crate::presets) const PRESETS: &[Entry] = &[
    entry("inception_v3", "torchvision's Inception v3 with its auxiliary classifier, whose loss counts 0.4", 27_161_264, AT_299, with_aux),
    entry("inception_v3_no_aux", "torchvision's Inception v3 with aux_logits=False", 23_834_568, AT_299, without_aux),
];

const AT_299: &[Override] = &image(299, 1000);
const CLASS: &str = "torchvision.models.inception.Inception3";

fn without_aux(sizes: &Sizes) -> Result<Graph, GraphError> {
    classifier(sizes, CLASS, |at, x| outputs(at, sizes, false, x).0)
}

fn with_aux(sizes: &Sizes) -> Result<Graph, GraphError> {
    trained(sizes, CLASS, &[Extent::BATCH], |at, x, y| {
        let (outputs, auxiliary) = outputs(at, sizes, true, x);
        let Some(aux_outputs) = auxiliary else {
            return cross_entropy(outputs, y);
        };
        let loss1 = cross_entropy(&outputs, y);
        let loss2 = cross_entropy(&aux_outputs, y);
        let all = (&loss1).add((&loss2).mul_number(0.4));
        all.and_drop((outputs, aux_outputs, loss1, loss2))
    })
}

/// `BasicConv2d`, also of `googlenet.py`.
#[derive(Debug, Clone, Copy)]
pub(super) struct BasicConv {
    channels: [u64; 2],
    kernel: [u64; 2],
    stride: u64,
    padding: [u64; 2],
}

impl BasicConv {
    pub(super) const fn new(channels: [u64; 2], kernel: [u64; 2]) -> BasicConv {
        BasicConv {
            channels,
            kernel,
            stride: 1,
            padding: [0, 0],
        }
    }

    pub(super) const fn stride(self, stride: u64) -> BasicConv {
        BasicConv { stride, ..self }
    }

    pub(super) const fn padding(self, padding: [u64; 2]) -> BasicConv {
        BasicConv { padding, ..self }
    }

    pub(super) fn call(self, at: &Frame, name: &str, x: &Tensor) -> Tensor {
        at.call_of(name, "torchvision.models.inception.BasicConv2d", |at| {
            let conv = at.conv("conv", self.channels, &self.kernel, false);
            let mut conv = conv.stride(self.stride);
            conv.padding = self.padding.map(u64::cast_signed).to_vec();
            let norm = Norm {
                eps: 0.001,
                ..Norm::DEFAULT
            };
            let mut x = conv.forward(x);
            x = norm.call(at, "bn", self.channels[1], &x);
            relu_in_place(&x)
        })
    }
}

/// A convolution by its name, channels and kernel; how it moves is its [`Step`].
type Row = (&'static str, [u64; 2], [u64; 2]);

/// One of a block's branches: convolutions, one after the other, that keep the size of the image but for the last one where it halves it.
enum Branch {
    Chain(Vec<Row>),
    /// The last of them has a stride of two.
    Halved(Vec<Row>),
    /// An average, and a convolution.
    Average(Row),
    /// The largest of each window.
    Max,
    /// Convolutions, one after the other, and two beside one another.
    Fork(Vec<Row>, [Row; 2]),
}

use Branch::{Average, Chain, Fork, Halved, Max};

/// One that keeps the size of the image.
fn same(at: &Frame, (name, channels, kernel): Row, x: &Tensor) -> Tensor {
    let conv = BasicConv::new(channels, kernel);
    conv.padding(kernel.map(|length| length / 2))
        .call(at, name, x)
}

impl Branch {
    fn call(&self, at: &Frame, x: &Tensor) -> Tensor {
        let chain = |rows: &[Row]| rows.iter().fold(x.clone(), |x, row| same(at, *row, &x));
        match self {
            Chain(rows) => chain(rows),
            Halved(rows) => {
                let (last, rows) = rows.split_last().expect("a branch has a convolution");
                let (name, channels, kernel) = *last;
                let x = chain(rows);
                BasicConv::new(channels, kernel)
                    .stride(2)
                    .call(at, name, &x)
            }
            Average(row) => same(at, *row, &Pooling::new(3, 1, 1).average(x)),
            Max => Pooling::new(3, 2, 0).max(x),
            Fork(rows, fork) => {
                let x = chain(rows);
                let both = fork.map(|row| same(at, row, &x));
                drop(x);
                at.tracer().cat(both, 1)
            }
        }
    }
}

/// A block that is called, from its number of channels.
fn block(at: &Frame, (name, class): (&str, &str), branches: &[Branch], x: &Tensor) -> Tensor {
    at.call(name, class, |at| {
        let outputs: Vec<Tensor> = branches.iter().map(|branch| branch.call(at, x)).collect();
        let all: Vec<&Tensor> = outputs.iter().collect();
        let made = at.tracer().cat_of(&all, 1);
        // Python lets go of a list's last item first.
        outputs.into_iter().rev().for_each(drop);
        made
    })
}

/// `InceptionA`.
fn a(at: &Frame, name: &str, [input, pool_features]: [u64; 2], x: &Tensor) -> Tensor {
    let branches = [
        Chain(vec![("branch1x1", [input, 64], [1, 1])]),
        Chain(vec![
            ("branch5x5_1", [input, 48], [1, 1]),
            ("branch5x5_2", [48, 64], [5, 5]),
        ]),
        Chain(vec![
            ("branch3x3dbl_1", [input, 64], [1, 1]),
            ("branch3x3dbl_2", [64, 96], [3, 3]),
            ("branch3x3dbl_3", [96, 96], [3, 3]),
        ]),
        Average(("branch_pool", [input, pool_features], [1, 1])),
    ];
    block(at, (name, "InceptionA"), &branches, x)
}

/// `InceptionB`.
fn b(at: &Frame, name: &str, input: u64, x: &Tensor) -> Tensor {
    let branches = [
        Halved(vec![("branch3x3", [input, 384], [3, 3])]),
        Halved(vec![
            ("branch3x3dbl_1", [input, 64], [1, 1]),
            ("branch3x3dbl_2", [64, 96], [3, 3]),
            ("branch3x3dbl_3", [96, 96], [3, 3]),
        ]),
        Max,
    ];
    block(at, (name, "InceptionB"), &branches, x)
}

/// `InceptionC`.
fn c(at: &Frame, name: &str, [input, c7]: [u64; 2], x: &Tensor) -> Tensor {
    let branches = [
        Chain(vec![("branch1x1", [input, 192], [1, 1])]),
        Chain(vec![
            ("branch7x7_1", [input, c7], [1, 1]),
            ("branch7x7_2", [c7, c7], [1, 7]),
            ("branch7x7_3", [c7, 192], [7, 1]),
        ]),
        Chain(vec![
            ("branch7x7dbl_1", [input, c7], [1, 1]),
            ("branch7x7dbl_2", [c7, c7], [7, 1]),
            ("branch7x7dbl_3", [c7, c7], [1, 7]),
            ("branch7x7dbl_4", [c7, c7], [7, 1]),
            ("branch7x7dbl_5", [c7, 192], [1, 7]),
        ]),
        Average(("branch_pool", [input, 192], [1, 1])),
    ];
    block(at, (name, "InceptionC"), &branches, x)
}

/// `InceptionD`.
fn d(at: &Frame, name: &str, input: u64, x: &Tensor) -> Tensor {
    let branches = [
        Halved(vec![
            ("branch3x3_1", [input, 192], [1, 1]),
            ("branch3x3_2", [192, 320], [3, 3]),
        ]),
        Halved(vec![
            ("branch7x7x3_1", [input, 192], [1, 1]),
            ("branch7x7x3_2", [192, 192], [1, 7]),
            ("branch7x7x3_3", [192, 192], [7, 1]),
            ("branch7x7x3_4", [192, 192], [3, 3]),
        ]),
        Max,
    ];
    block(at, (name, "InceptionD"), &branches, x)
}

/// `InceptionE`.
fn e(at: &Frame, name: &str, input: u64, x: &Tensor) -> Tensor {
    let branches = [
        Chain(vec![("branch1x1", [input, 320], [1, 1])]),
        Fork(
            vec![("branch3x3_1", [input, 384], [1, 1])],
            [
                ("branch3x3_2a", [384, 384], [1, 3]),
                ("branch3x3_2b", [384, 384], [3, 1]),
            ],
        ),
        Fork(
            vec![
                ("branch3x3dbl_1", [input, 448], [1, 1]),
                ("branch3x3dbl_2", [448, 384], [3, 3]),
            ],
            [
                ("branch3x3dbl_3a", [384, 384], [1, 3]),
                ("branch3x3dbl_3b", [384, 384], [3, 1]),
            ],
        ),
        Average(("branch_pool", [input, 192], [1, 1])),
    ];
    block(at, (name, "InceptionE"), &branches, x)
}

/// `Inception3`: logits, and those of the auxiliary classifier.
fn outputs(at: &Frame, sizes: &Sizes, has_aux: bool, x: &Tensor) -> (Tensor, Option<Tensor>) {
    let conv = |channels, kernel: u64| BasicConv::new(channels, [kernel; 2]);
    let pool = |name: &str, x: &Tensor| max_pool(at, name, Pooling::new(3, 2, 0), x);
    let mut x = conv([sizes.channels, 32], 3)
        .stride(2)
        .call(at, "Conv2d_1a_3x3", x);
    x = conv([32, 32], 3).call(at, "Conv2d_2a_3x3", &x);
    x = conv([32, 64], 3)
        .padding([1, 1])
        .call(at, "Conv2d_2b_3x3", &x);
    x = pool("maxpool1", &x);
    x = conv([64, 80], 1).call(at, "Conv2d_3b_1x1", &x);
    x = conv([80, 192], 3).call(at, "Conv2d_4a_3x3", &x);
    x = pool("maxpool2", &x);
    x = a(at, "Mixed_5b", [192, 32], &x);
    x = a(at, "Mixed_5c", [256, 64], &x);
    x = a(at, "Mixed_5d", [288, 64], &x);
    x = b(at, "Mixed_6a", 288, &x);
    x = c(at, "Mixed_6b", [768, 128], &x);
    x = c(at, "Mixed_6c", [768, 160], &x);
    x = c(at, "Mixed_6d", [768, 160], &x);
    x = c(at, "Mixed_6e", [768, 192], &x);
    let aux = has_aux.then(|| auxiliary(at, sizes.classes, &x));
    x = d(at, "Mixed_7a", 768, &x);
    x = e(at, "Mixed_7b", 1280, &x);
    x = e(at, "Mixed_7c", 2048, &x);
    x = adaptive_pool(at, "avgpool", 1, &x);
    x = at.dropout("dropout", 0.5, x);
    x = flat(x);
    x = at.linear("fc", [2048, sizes.classes], true, x);
    (x, aux)
}

/// `InceptionAux`.
fn auxiliary(at: &Frame, classes: u64, x: &Tensor) -> Tensor {
    at.call("AuxLogits", "InceptionAux", |at| {
        let mut x = Pooling::new(5, 3, 0).average(x);
        x = BasicConv::new([768, 128], [1, 1]).call(at, "conv0", &x);
        x = BasicConv::new([128, 768], [5, 5]).call(at, "conv1", &x);
        x = adaptive_average(&x, 1);
        x = flat(&x);
        at.linear("fc", [768, classes], true, x)
    })
}
