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
    classifier(sizes, CLASS, |tracer| {
        let outputs = new_outputs(tracer, sizes, false);
        move |x: &Tensor| outputs(x).0
    })
}

fn with_aux(sizes: &Sizes) -> Result<Graph, GraphError> {
    let make = |tracer: &Tracer| new_outputs(tracer, sizes, true);
    trained(sizes, CLASS, make, &[Extent::BATCH], |outputs, x, y| {
        let (outputs, auxiliary) = outputs(x);
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
pub(super) struct BasicConv {
    place: ModulePath,
    conv: Conv,
    bn: BatchNorm,
}

impl BasicConv {
    pub(super) fn new(
        tracer: &Tracer,
        path: String,
        channels: [u64; 2],
        kernel: [u64; 2],
    ) -> BasicConv {
        let place = ModulePath::new(path, "torchvision.models.inception.BasicConv2d");
        let norm = Norm {
            eps: 0.001,
            ..Norm::DEFAULT
        };
        BasicConv {
            conv: Conv::new(tracer, place.path("conv"), channels, &kernel, 1, false),
            bn: norm.make(tracer, place.path("bn"), channels[1]),
            place,
        }
    }

    pub(super) fn stride(self, stride: u64) -> BasicConv {
        BasicConv {
            conv: self.conv.stride(stride),
            ..self
        }
    }

    pub(super) fn padding(mut self, padding: [u64; 2]) -> BasicConv {
        self.conv.padding = padding.map(u64::cast_signed).to_vec();
        self
    }
}

impl Module for BasicConv {
    fn forward(&self, x: &Tensor) -> Tensor {
        x.tracer().in_module(&self.place, || {
            let mut x = self.conv.forward(x);
            x = self.bn.forward(&x);
            relu_in_place(&x)
        })
    }
}

/// What a block's convolutions are made with.
struct Maker<'a> {
    tracer: &'a Tracer,
    place: &'a ModulePath,
}

impl Maker<'_> {
    fn conv(&self, name: &str, channels: [u64; 2], kernel: [u64; 2]) -> BasicConv {
        BasicConv::new(self.tracer, self.place.path(name), channels, kernel)
    }

    /// One that keeps the size of the image.
    fn same(&self, name: &str, channels: [u64; 2], kernel: [u64; 2]) -> BasicConv {
        self.conv(name, channels, kernel)
            .padding(kernel.map(|length| length / 2))
    }

    /// One of 3 x 3 and stride 2.
    fn halving(&self, name: &str, channels: [u64; 2]) -> BasicConv {
        self.conv(name, channels, [3, 3]).stride(2)
    }
}

/// One of a block's branches.
#[expect(clippy::large_enum_variant, reason = "a network has a dozen blocks")]
enum Branch {
    /// Convolutions, one after the other.
    Chain(Vec<BasicConv>),
    /// An average, and a convolution.
    Average(BasicConv),
    /// The largest of each window.
    Max,
    /// Convolutions, one after the other, and two beside one another.
    Fork(Vec<BasicConv>, [BasicConv; 2]),
}

impl Branch {
    fn forward(&self, x: &Tensor) -> Tensor {
        match self {
            Branch::Chain(convs) => convs.forward(x),
            Branch::Average(conv) => {
                let pooled = Pooling::new(3, 1, 1).average(x);
                conv.on(pooled)
            }
            Branch::Max => Pooling::new(3, 2, 0).max(x),
            Branch::Fork(convs, fork) => {
                let x = convs.forward(x);
                let both = fork.each_ref().map(|conv| conv.forward(&x));
                drop(x);
                both[0].tracer().cat(both, 1)
            }
        }
    }
}

/// `InceptionA` to `InceptionE`.
struct Block {
    place: ModulePath,
    branches: Vec<Branch>,
}

impl Block {
    fn of(
        tracer: &Tracer,
        name: &str,
        class: &'static str,
        branches: impl FnOnce(&Maker<'_>) -> Vec<Branch>,
    ) -> Box<dyn Module> {
        let place = ModulePath::new(name, class);
        let maker = Maker {
            tracer,
            place: &place,
        };
        let branches = branches(&maker);
        Box::new(Block { place, branches })
    }

    fn a(tracer: &Tracer, name: &str, input: u64, pool_features: u64) -> Box<dyn Module> {
        let class = "torchvision.models.inception.InceptionA";
        Block::of(tracer, name, class, |maker| {
            vec![
                Branch::Chain(vec![maker.conv("branch1x1", [input, 64], [1, 1])]),
                Branch::Chain(vec![
                    maker.conv("branch5x5_1", [input, 48], [1, 1]),
                    maker.same("branch5x5_2", [48, 64], [5, 5]),
                ]),
                Branch::Chain(vec![
                    maker.conv("branch3x3dbl_1", [input, 64], [1, 1]),
                    maker.same("branch3x3dbl_2", [64, 96], [3, 3]),
                    maker.same("branch3x3dbl_3", [96, 96], [3, 3]),
                ]),
                Branch::Average(maker.conv("branch_pool", [input, pool_features], [1, 1])),
            ]
        })
    }

    fn b(tracer: &Tracer, name: &str, input: u64) -> Box<dyn Module> {
        let class = "torchvision.models.inception.InceptionB";
        Block::of(tracer, name, class, |maker| {
            vec![
                Branch::Chain(vec![maker.halving("branch3x3", [input, 384])]),
                Branch::Chain(vec![
                    maker.conv("branch3x3dbl_1", [input, 64], [1, 1]),
                    maker.same("branch3x3dbl_2", [64, 96], [3, 3]),
                    maker.halving("branch3x3dbl_3", [96, 96]),
                ]),
                Branch::Max,
            ]
        })
    }

    fn c(tracer: &Tracer, name: &str, input: u64, c7: u64) -> Box<dyn Module> {
        let class = "torchvision.models.inception.InceptionC";
        Block::of(tracer, name, class, |maker| {
            vec![
                Branch::Chain(vec![maker.conv("branch1x1", [input, 192], [1, 1])]),
                Branch::Chain(vec![
                    maker.conv("branch7x7_1", [input, c7], [1, 1]),
                    maker.same("branch7x7_2", [c7, c7], [1, 7]),
                    maker.same("branch7x7_3", [c7, 192], [7, 1]),
                ]),
                Branch::Chain(vec![
                    maker.conv("branch7x7dbl_1", [input, c7], [1, 1]),
                    maker.same("branch7x7dbl_2", [c7, c7], [7, 1]),
                    maker.same("branch7x7dbl_3", [c7, c7], [1, 7]),
                    maker.same("branch7x7dbl_4", [c7, c7], [7, 1]),
                    maker.same("branch7x7dbl_5", [c7, 192], [1, 7]),
                ]),
                Branch::Average(maker.conv("branch_pool", [input, 192], [1, 1])),
            ]
        })
    }

    fn d(tracer: &Tracer, name: &str, input: u64) -> Box<dyn Module> {
        let class = "torchvision.models.inception.InceptionD";
        Block::of(tracer, name, class, |maker| {
            vec![
                Branch::Chain(vec![
                    maker.conv("branch3x3_1", [input, 192], [1, 1]),
                    maker.halving("branch3x3_2", [192, 320]),
                ]),
                Branch::Chain(vec![
                    maker.conv("branch7x7x3_1", [input, 192], [1, 1]),
                    maker.same("branch7x7x3_2", [192, 192], [1, 7]),
                    maker.same("branch7x7x3_3", [192, 192], [7, 1]),
                    maker.halving("branch7x7x3_4", [192, 192]),
                ]),
                Branch::Max,
            ]
        })
    }

    fn e(tracer: &Tracer, name: &str, input: u64) -> Box<dyn Module> {
        let class = "torchvision.models.inception.InceptionE";
        Block::of(tracer, name, class, |maker| {
            vec![
                Branch::Chain(vec![maker.conv("branch1x1", [input, 320], [1, 1])]),
                Branch::Fork(
                    vec![maker.conv("branch3x3_1", [input, 384], [1, 1])],
                    [
                        maker.same("branch3x3_2a", [384, 384], [1, 3]),
                        maker.same("branch3x3_2b", [384, 384], [3, 1]),
                    ],
                ),
                Branch::Fork(
                    vec![
                        maker.conv("branch3x3dbl_1", [input, 448], [1, 1]),
                        maker.same("branch3x3dbl_2", [448, 384], [3, 3]),
                    ],
                    [
                        maker.same("branch3x3dbl_3a", [384, 384], [1, 3]),
                        maker.same("branch3x3dbl_3b", [384, 384], [3, 1]),
                    ],
                ),
                Branch::Average(maker.conv("branch_pool", [input, 192], [1, 1])),
            ]
        })
    }
}

impl Module for Block {
    fn forward(&self, x: &Tensor) -> Tensor {
        let tracer = x.tracer();
        tracer.in_module(&self.place, || {
            let branches = self.branches.iter();
            let outputs: Vec<Tensor> = branches.map(|branch| branch.forward(x)).collect();
            let all: Vec<&Tensor> = outputs.iter().collect();
            let made = tracer.cat_of(&all, 1);
            // Python lets go of a list's last item first.
            outputs.into_iter().rev().for_each(drop);
            made
        })
    }
}

/// `Inception3`: logits, and those of the auxiliary classifier.
fn new_outputs(
    tracer: &Tracer,
    sizes: &Sizes,
    has_aux: bool,
) -> impl Fn(&Tensor) -> (Tensor, Option<Tensor>) + use<> {
    let conv = |name: &str, channels, kernel: u64| {
        BasicConv::new(tracer, name.into(), channels, [kernel; 2])
    };
    let pool = |name: &str| max_pool(name.into(), Pooling::new(3, 2, 0));
    let first: Vec<AnyModule> = vec![
        Box::new(conv("Conv2d_1a_3x3", [sizes.channels, 32], 3).stride(2)),
        Box::new(conv("Conv2d_2a_3x3", [32, 32], 3)),
        Box::new(conv("Conv2d_2b_3x3", [32, 64], 3).padding([1, 1])),
        Box::new(pool("maxpool1")),
        Box::new(conv("Conv2d_3b_1x1", [64, 80], 1)),
        Box::new(conv("Conv2d_4a_3x3", [80, 192], 3)),
        Box::new(pool("maxpool2")),
        Block::a(tracer, "Mixed_5b", 192, 32),
        Block::a(tracer, "Mixed_5c", 256, 64),
        Block::a(tracer, "Mixed_5d", 288, 64),
        Block::b(tracer, "Mixed_6a", 288),
        Block::c(tracer, "Mixed_6b", 768, 128),
        Block::c(tracer, "Mixed_6c", 768, 160),
        Block::c(tracer, "Mixed_6d", 768, 160),
        Block::c(tracer, "Mixed_6e", 768, 192),
    ];
    let aux = has_aux.then(|| new_auxiliary(tracer, [768, sizes.classes]));
    let second = vec![
        Block::d(tracer, "Mixed_7a", 768),
        Block::e(tracer, "Mixed_7b", 1280),
        Block::e(tracer, "Mixed_7c", 2048),
    ];
    let avgpool = adaptive_pool("avgpool".into(), 1);
    let dropout = Dropout::new("dropout".into(), 0.5);
    let fc = Linear::new(tracer, "fc", [2048, sizes.classes], true);
    move |x| {
        let mut x = first.forward(x);
        let aux = aux.as_ref().map(|aux| aux.forward(&x));
        x = flat(chain(&[&second, &avgpool, &dropout], x));
        x = fc.forward(&x);
        (x, aux)
    }
}

/// `InceptionAux`.
fn new_auxiliary(tracer: &Tracer, [input, classes]: [u64; 2]) -> FnModule {
    let place = ModulePath::new("AuxLogits", "torchvision.models.inception.InceptionAux");
    let conv0 = BasicConv::new(tracer, place.path("conv0"), [input, 128], [1, 1]);
    let conv1 = BasicConv::new(tracer, place.path("conv1"), [128, 768], [5, 5]);
    let fc = Linear::new(tracer, place.path("fc"), [768, classes], true);
    FnModule::new(place, move |x| {
        let mut x = Pooling::new(5, 3, 0).average(x);
        x = chain(&[&conv0, &conv1], x);
        x = adaptive_average(&x, 1);
        x = flat(&x);
        fc.forward(&x)
    })
}
