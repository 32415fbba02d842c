//! The gradient scaler.

use super::Written;
use crate::ops::optimizer::GROWTH_INTERVAL;
use crate::ops::prelude::*;

/// `scale, gradients -> found_inf, gradients`, one after another. (`_amp_non_finite_check_and_unscale_cuda_`.)
pub(super) fn unscale(operands: &Operands<'_>) -> Result<Vec<Written>, LaunchError> {
    let body = "
    const auto v = g.at(i) * ((float)1 / (float)scale.flat(0));
    if (!(v - v == 0)) found.set_flat((float)1, 0);
    g.set_at(v, i);";
    let (scale, found) = (operands.input(0)?, operands.output(0)?);
    let of = |gradient| Written {
        generated: Generated::each("unscale", ["scale"], ["found", "g"], 2, body),
        inputs: vec![scale.clone()],
        outputs: vec![found.clone(), gradient],
    };
    Ok(operands.outputs()[1..].iter().cloned().map(of).collect())
}

/// `found_inf -> scale, growth_tracker`. (`amp_update_scale_cuda_kernel`.)
pub(super) fn update(operands: &Operands<'_>) -> Result<Written, LaunchError> {
    let body = "
    const bool grows = found == 0 && count + 1 == interval;
    const float doubled = (float)was * 2;
    scale = found != 0 ? (float)was * (float)0.5 : grows && doubled - doubled == 0 ? doubled : (float)was;
    tracker = found != 0 || grows ? 0 : count + 1;";
    let form = Form::Map(body.into());
    let inputs = ["found", "was", "count"];
    let generated = Generated::of("update_scale", inputs, ["scale", "tracker"], form)
        .with("interval", Number::Whole(i64::from(GROWTH_INTERVAL)));
    let (scale, tracker) = (operands.output(0)?, operands.output(1)?);
    Ok(Written {
        generated,
        inputs: vec![operands.input(0)?.clone(), scale.clone(), tracker.clone()],
        outputs: vec![scale.clone(), tracker.clone()],
    })
}
