//! The tables, and all of them but linear algebra.

use super::linalg;
use super::read::{drawn, factors, one_dim, padded, pairs, pooled, turned, unfolded};
use super::{Casts, Row};

/// All operators that are written down as scripts.
pub(super) const TABLES: &[&[Row]] = &[
    ROWS,
    linalg::ROWS,
    #[cfg(test)]
    super::tests::ROWS,
];

/// `evenly_distribute_backward` in `FunctionsManual.cpp`.
const EVENLY: &str = "+L:b1 +.:b1 +L:b1 +.:i8 +L:i8 -L:i8 +. g0=L -. -.:i8 -L:b1 -.:b1 -L:b1";

/// `polynomial` of `special_i1_backward`, and its quotient by the operand where that is not tiny.
const I1: &str = "+L +L:b1 -L +. +L -. +L +L +L +L -L -L -L +. +L g0=L -L -. -L -L -L:b1";

#[rustfmt::skip] // A row a line.
const ROWS: &[Row] = &[
    // `logcumsumexp_backward` in `FunctionsManual.cpp`.
    Row::new(&["aten.logcumsumexp.default"], &[("self", "L")], "y0=L").attributes(&["dim"]).backward(
        &["self=0", "result=y0"],
        "+. +L +L -L +L:b1 +L -L:b1 +L:b1 +L -L:b1 +L +L +L +L -L -L +L +L -L -L -L +L +L +L +L -L -L +L +L -L -L -L g0=L -L -L -L -L -L -.",
    ),
    Row::new(&["aten.trace.default"], &[("self", "mn")], "y0=.").backward(&[], "g0=mn +k:i8 -k:i8"),
    Row::new(&["aten.renorm.default"], &[("self", "L")], "y0=L +r -r").attributes(&["p", "dim", "maxnorm"]).casts(Casts::High).more(one_dim).backward(
        &["self=0"],
        "+r +L +r -L +L +r:b1 +L -r:b1 -L -r +r +r -r +L +L +r +L -r -L -L +r:b1 g0=L -r:b1 -L -r -L -r",
    ),
    Row::new(&["aten.addbmm.default", "aten.addbmm_.default"], &[("self", "P"), ("batch1", "bik"), ("batch2", "bkj")], "blas y0=ij").attributes(&["beta", "alpha"]).casts(Casts::Low).more(factors).backward(
        &["batch1=1?2", "batch2=2?1"],
        "1?( blas alpha?( +bik ) g1=bik alpha?( -bik ) ) 2?( blas alpha?( +bkj ) g2=bkj alpha?( -bkj ) ) 0?( beta!( g0=dy ) beta?( g0=ij ) )",
    ),
    Row::new(&["aten.addr.default"], &[("self", "P"), ("vec1", "m"), ("vec2", "n")], "y0=mn").attributes(&["beta", "alpha"]).more(factors).backward(
        &["vec1=1?2", "vec2=2?1"],
        "0?( beta!( g0=dy ) beta?( g0=mn ) ) 1?( blas alpha?( +m ) g1=m alpha?( -m ) ) 2?( blas alpha?( +n ) g2=n alpha?( -n ) )",
    ),
    // With factors; without, these are of the families of products.
    Row::new(&["scaled.addmm"], &[("self", "P"), ("mat1", "mc"), ("mat2", "cn")], "blas y0=mn lt?( blaslt )").attributes(&["beta", "alpha"]).casts(Casts::Low).more(factors).backward(
        &["mat1=1?2", "mat2=2?1"],
        "1?( blas alpha?( +mc ) g1=mc alpha?( -mc ) ) 2?( blas alpha?( +cn ) g2=cn alpha?( -cn ) ) 0?( beta!( g0=dy ) beta?( g0=mn ) )",
    ),
    Row::new(&["scaled.addmv"], &[("self", "P"), ("mat", "mn"), ("vec", "n")], "blas y0=m").attributes(&["beta", "alpha"]).casts(Casts::Low).more(factors).backward(
        &["mat=1?2", "vec=2?1"],
        "1?( alpha?( +mn ) g1=mn alpha?( -mn ) ) 0?( beta!( g0=dy ) beta?( g0=m ) ) 2?( blas alpha?( +n ) g2=n alpha?( -n ) )",
    ),
    // `norm_backward` of the difference, once for each operand, the second first.
    Row::new(&["aten.dist.default"], &[("self", "L"), ("other", "M")], "+X y0=. -X").attributes(&["p"]).casts(Casts::High).backward(
        &["other=1", "self=0", "result=y0"],
        "1?( +X +X +.:b1 +X -.:b1 -X g1=X -X -X ) 0?( +X +X +.:b1 g0=X -.:b1 -X -X )",
    ),
    Row::new(&["aten.median.default"], &[("self", "L")], "+L +L:i8 +L:i8 -L:i8 -L:i8 +.:b1 y0=. -.:b1 -L").backward(&["self=0", "result=y0"], EVENLY),
    Row::new(&["aten.nanmedian.default"], &[("self", "L")], "+L +L:i8 +L:i8 -L:i8 -L:i8 +L:b1 +.:i8 +L:i8 -L:i8 +.:i8 +.:i4 +.:i8 -.:i4 -.:i8 -.:i8 -L:b1 y0=. -.:i8 -L").backward(&["self=0", "result=y0"], EVENLY),
    Row::new(&["aten.special_i1.default"], &[("self", "L")], "y0=L").backward(&["self=0", "result=y0"], I1),
    Row::new(&["aten.special_i1e.default"], &[("self", "L")], "y0=L").backward(
        &["self=0", "result=y0"],
        "+L +L:b1 -L +. +L -. +L +L +L +L +L +L -L -L -L -L -L +. +L g0=L -L -. -L -L -L:b1",
    ),
    Row::new(&["aten.frexp.Tensor"], &[("self", "L")], "y0=L y1=L:i4").backward(&["exponent=y1"], "+L:f4 g0=L:f4 -L:f4"),
    Row::new(&["aten.native_dropout.default"], &[("input", "L")], "y1=L:b1 y0=L").attributes(&["p", "train"]).backward(&["result1=y1"], "g0=L"),
    Row::new(&["aten._standard_gamma.default"], &[("self", "L")], "y0=L").backward(&["self=0", "result=y0"], "+L g0=L -L"),
    Row::new(&["aten._sample_dirichlet.default", "aten._dirichlet_grad.default"], &[("self", "L")], "+L y0=L -L"),
    Row::new(&["aten.binomial.default"], &[("count", "L"), ("prob", "M")], "y0=X").backward(&[], "g0=L g1=M"),
    Row::new(&["aten.rot90.default"], &[("self", "L")], "y0=R").attributes(&["k", "dims"]).more(turned).backward(&[], "g0=L"),
    Row::new(&["aten.unfold_backward.default"], &[("grad_in", "L")], "y0=Y +d:i8 -d:i8").attributes(&["dim", "size", "step"]).more(unfolded).backward(&[], "g0=L"),
    Row::new(&["aten._cdist_forward.default"], &[("x1", "Lmd"), ("x2", "Mnd")], "y0=Xmn").attributes(&["p", "compute_mode"]).casts(Casts::High).backward(
        &["x1=0", "x2=1", "result=y0"],
        "0?( g0=Lmd +Xmnd -Xmnd ) 1?( +Xmn +Xmn g1=Mnd +Xmnd -Xmnd -Xmn -Xmn )",
    ),
    Row::new(&["aten._euclidean_dist.default"], &[("x1", "Lmd"), ("x2", "Mnd")], "+Lmd +Lm -Lmd +Lm +Mnd +Mn -Mnd +Mn +Lmd +Lmp -Lm -Lm -Lmd +Mnp -Mn -Mn blas y0=Xmn -Mnp -Lmp").casts(Casts::High).more(padded).backward(
        &["x1=0", "x2=1", "result=y0"],
        "+Xmn +Xmn:b1 -Xmn:b1 blas +Lmd +Lm +Lmd g0=Lmd +Mnd +Mn +Mnd g1=Mnd -Mnd -Mn -Mnd -Lmd -Lm -Lmd -Xmn",
    ),
    Row::new(&["aten._pdist_forward.default"], &[("self", "nd")], "y0=p").attributes(&["p"]).casts(Casts::High).more(pairs).backward(&["self=0", "result=y0"], "g0=nd +2pd -2pd"),
    Row::new(&["aten.fake_quantize_per_tensor_affine_cachemask.default"], &[("self", "L")], "y0=L y1=L:b1").attributes(&["scale", "zero_point", "quant_min", "quant_max"]).backward(&["mask=y1"], "g0=L"),
    Row::new(&["aten._fake_quantize_per_tensor_affine_cachemask_tensor_qparams.default", "aten.fake_quantize_per_channel_affine_cachemask.default"], &[("self", "L"), ("scale", "S"), ("zero_point", "Z")], "y0=L y1=L:b1").attributes(&["axis", "quant_min", "quant_max"]).backward(&["mask=y1"], "0?( g0=L )"),
    Row::new(&["aten._fake_quantize_learnable_per_tensor_affine.default"], &[("self", "L"), ("scale", "S"), ("zero_point", "Z")], "y0=L +L:b1 -L:b1").attributes(&["quant_min", "quant_max", "grad_factor"]).backward(&["scale=1", "self=0", "zero_point=2"], "g0=L +L +L g1=S g2=Z -L -L"),
    Row::new(&["aten._fake_quantize_learnable_per_channel_affine.default"], &[("self", "L"), ("scale", "S"), ("zero_point", "Z")], "y0=L +L:b1 -L:b1").attributes(&["axis", "quant_min", "quant_max", "grad_factor"]).backward(&["scale=1", "self=0", "zero_point=2"], "g0=L +L +L g1=S g2=Z -L -L"),
    Row::new(&["aten.rrelu_with_noise.default"], &[("self", "L"), ("noise", "N")], "y0=L").attributes(&["lower", "upper", "training"]).backward(&["noise=1", "self=0"], "g0=L"),
    Row::new(&["aten.rrelu_with_noise_functional.default"], &[("self", "L"), ("noise", "N")], "y0=L y1!=N").attributes(&["lower", "upper", "training"]).backward(&["noise=1", "self=0"], "g0=L"),
    // The checks of probabilities, then a draw by the largest quotients, or along a running sum.
    Row::new(&["aten.multinomial.default"], &[("self", "Lc")], "y0=Ls:i8 replaced!( +. +.:b1 +. +.:b1 +.:b1 -.:b1 -. -.:b1 -. +L:i4 +L:b1 +.:b1 -L:b1 -L:i4 +.:b1 -.:b1 +Lc several?( +Ls -Ls ) -Lc -.:b1 -.:b1 ) replaced?( +Lc +Lc +Lc -Lc -Lc -Lc )").attributes(&["num_samples", "replacement"]).more(drawn),
    Row::new(&["aten.fill_diagonal_.default"], &[("self", "L")], "y0=@0").attributes(&["fill_value", "wrap"]).backward(&[], "g0=L"),
    Row::new(&["aten.embedding_renorm_.default"], &[("self", "L"), ("indices", "I")], "+I:i8 +I:i8 +I:i8 -I:i8 -I:i8 +I:i8 +.:i8 +#1023 -#1023 -.:i8 -I:i8 -I:i8 y0!=@0").attributes(&["max_norm", "norm_type"]),
    // torchvision's operators of regions; its autocast makes float32 of what they read.
    Row::new(&["torchvision.roi_align.default"], &[("input", "ichw"), ("rois", "rq")], "y0=rcuv").attributes(&["spatial_scale", "pooled_height", "pooled_width", "sampling_ratio", "aligned"]).casts(Casts::High).more(pooled).backward(&["rois=1"], "g0=ichw"),
    Row::new(&["torchvision.roi_pool.default"], &[("input", "ichw"), ("rois", "rq")], "y0=rcuv y1=rcuv:i4").attributes(&["spatial_scale", "pooled_height", "pooled_width"]).casts(Casts::High).more(pooled).backward(&["argmax=y1", "rois=1"], "g0=ichw"),
    // `deform_conv2d_kernel.cu` of torchvision: columns of a block of samples at a time.
    Row::new(
        &["torchvision.deform_conv2d.default"],
        &[("input", "ichw"), ("weight", "odst"), ("offset", "ipxy"), ("mask", "M"), ("bias", "o")],
        "blas +ioxy +ioxy +^icstxy y0=ioxy -^icstxy -ioxy -ioxy",
    ).attributes(&["stride_h", "stride_w", "pad_h", "pad_w", "dilation_h", "dilation_w", "groups", "offset_groups", "use_mask"]).casts(Casts::High).backward(
        &["input=0", "mask=3", "offset=2", "weight=1"],
        "blas g0=ichw g2=ipxy g3=M +^icstxy -^icstxy g1=odst +ioxy +^icstxy -^icstxy -ioxy g4=o",
    ),
];
