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
    classifier(sizes, CLASS, |tracer| {
        let outputs = new_outputs(tracer, sizes, false);
        move |x: &Tensor| outputs(x).0
    })
}

fn with_aux(sizes: &Sizes) -> Result<Graph, GraphError> {
    let make = |tracer: &Tracer| new_outputs(tracer, sizes, true);
    trained(sizes, CLASS, make, &[Extent::BATCH], |outputs, x, y| {
        let (logits, auxiliary) = outputs(x);
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

/// Channels of the results of an inception block's branches, and of what comes before them.
type Widths = [u64; 6];

/// `GoogLeNet`: logits, and those of the auxiliary classifiers.
fn new_outputs(
    tracer: &Tracer,
    sizes: &Sizes,
    has_aux: bool,
) -> impl Fn(&Tensor) -> (Tensor, Option<[Tensor; 2]>) + use<> {
    let conv = |name: &str, channels, kernel: u64, stride| {
        let conv = BasicConv::new(tracer, name.into(), channels, [kernel; 2]);
        Box::new(conv.stride(stride).padding([kernel / 2; 2])) as AnyModule
    };
    let pool = |name: &str, kernel| {
        let pooling = Pooling::new(kernel, 2, 0).ceil();
        Box::new(max_pool(name.into(), pooling)) as AnyModule
    };
    let block = |name: &str, input, widths: Widths| {
        Box::new(new_inception(tracer, name.into(), input, widths)) as AnyModule
    };
    let first = vec![
        conv("conv1", [sizes.channels, 64], 7, 2),
        pool("maxpool1", 3),
        conv("conv2", [64, 64], 1, 1),
        conv("conv3", [64, 192], 3, 1),
        pool("maxpool2", 3),
        block("inception3a", 192, [64, 96, 128, 16, 32, 32]),
        block("inception3b", 256, [128, 128, 192, 32, 96, 64]),
        pool("maxpool3", 3),
        block("inception4a", 480, [192, 96, 208, 16, 48, 64]),
    ];
    let second = vec![
        block("inception4b", 512, [160, 112, 224, 24, 64, 64]),
        block("inception4c", 512, [128, 128, 256, 24, 64, 64]),
        block("inception4d", 512, [112, 144, 288, 32, 64, 64]),
    ];
    let third = vec![
        block("inception4e", 528, [256, 160, 320, 32, 128, 128]),
        pool("maxpool4", 2),
        block("inception5a", 832, [256, 160, 320, 32, 128, 128]),
        block("inception5b", 832, [384, 192, 384, 48, 128, 128]),
    ];
    let aux = has_aux.then(|| {
        [("aux1", 512), ("aux2", 528)]
            .map(|(name, input)| new_auxiliary(tracer, name, [input, sizes.classes]))
    });
    // Before the first auxiliary classifier, between both, and after the second.
    let parts = [first, second, third];
    let avgpool = adaptive_pool("avgpool".into(), 1);
    let dropout = Dropout::new("dropout".into(), 0.2);
    let fc = Linear::new(tracer, "fc", [1024, sizes.classes], true);
    move |x| {
        let mut auxiliary = Vec::new();
        let mut x = x.clone();
        for (index, part) in parts.iter().enumerate() {
            for module in part {
                x = module.forward(&x);
            }
            if let Some(aux) = aux.as_ref().and_then(|aux| aux.get(index)) {
                auxiliary.push(aux.forward(&x));
            }
        }
        x = avgpool.forward(&x);
        x = flat(&x);
        x = dropout.forward(&x);
        x = fc.forward(&x);
        (x, auxiliary.try_into().ok())
    }
}

/// `Inception`.
fn new_inception(tracer: &Tracer, path: String, input: u64, widths: Widths) -> FnModule {
    let place = ModulePath::new(path, "torchvision.models.googlenet.Inception");
    let [ch1x1, ch3x3red, ch3x3, ch5x5red, ch5x5, pool_proj] = widths;
    let pointwise = |path, output| BasicConv::new(tracer, path, [input, output], [1, 1]);
    let twice = |name, [narrow, wide]: [u64; 2]| {
        let mut branch = Sequential::new(place.path(name));
        branch.push(pointwise(branch.next(), narrow));
        let conv = BasicConv::new(tracer, branch.next(), [narrow, wide], [3, 3]);
        branch.push(conv.padding([1, 1]));
        branch
    };
    let branch1 = pointwise(place.path("branch1"), ch1x1);
    let branch2 = twice("branch2", [ch3x3red, ch3x3]);
    // torchvision has 3 x 3 in place of the paper's 5 x 5.
    let branch3 = twice("branch3", [ch5x5red, ch5x5]);
    let mut branch4 = Sequential::new(place.path("branch4"));
    branch4.push(max_pool(branch4.next(), Pooling::new(3, 1, 1).ceil()));
    branch4.push(pointwise(branch4.next(), pool_proj));
    let branches: [AnyModule; 4] = [
        Box::new(branch1),
        Box::new(branch2),
        Box::new(branch3),
        Box::new(branch4),
    ];
    FnModule::new(place, move |x| {
        let tracer = x.tracer();
        let outputs = branches.each_ref().map(|branch| branch.forward(x));
        tracer.cat(outputs, 1)
    })
}

/// `InceptionAux`.
fn new_auxiliary(tracer: &Tracer, name: &str, [input, classes]: [u64; 2]) -> FnModule {
    let place = ModulePath::new(name, "torchvision.models.googlenet.InceptionAux");
    let conv = BasicConv::new(tracer, place.path("conv"), [input, 128], [1, 1]);
    let fc1 = Linear::new(tracer, place.path("fc1"), [2048, 1024], true);
    let fc2 = Linear::new(tracer, place.path("fc2"), [1024, classes], true);
    let dropout = Dropout::new(place.path("dropout"), 0.7);
    FnModule::new(place, move |x| {
        let mut x = adaptive_average(x, 4);
        x = conv.forward(&x);
        x = flat(&x);
        x = relu_in_place(&fc1.forward(&x));
        x = dropout.forward(&x);
        fc2.forward(&x)
    })
}
