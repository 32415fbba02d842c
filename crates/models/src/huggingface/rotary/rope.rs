//! `rope_parameters` of a config, and how they were called before.

use super::rotation::{Rotation, Update};
use crate::huggingface::config::Config;
use crate::request_error::RequestError;

/// What is particular to a family's configuration class.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Custom {
    /// Nothing.
    Llama,
    /// The default formula rotates a part of each head: a half of it, if the config does not say.
    Phi,
    /// The same, but all of it if the config does not say. `yarn` is called `longrope`.
    Phi3,
}

impl Custom {
    fn part(self) -> Option<f64> {
        match self {
            Custom::Llama => None,
            Custom::Phi => Some(0.5),
            Custom::Phi3 => Some(1.0),
        }
    }
}

/// How heads are rotated. `kind` is of the layers whose parameters are meant, where there are several.
pub(super) fn rotation(
    config: &Config<'_>,
    kind: Option<&str>,
    head_dim: u64,
    custom: Custom,
) -> Result<Rotation, RequestError> {
    let old = config.part("rope_scaling")?;
    let new = config.part("rope_parameters")?;
    let of_kind = match (kind, &new) {
        (Some(kind), Some(new)) => new.part(kind)?,
        _ => None,
    };
    let given = match kind {
        // Old configs scale the positions of layers without a window only.
        Some("sliding_attention") => of_kind,
        Some(_) => old.or(of_kind),
        None => old.or(new),
    };
    let plain = Rotation::plain(head_dim);
    let part = match &given {
        Some(given) if given.has("partial_rotary_factor") => {
            Some(given.number("partial_rotary_factor", 1.0)?)
        }
        _ => config.number_or_none("partial_rotary_factor", custom.part())?,
    };
    let dims = match part {
        Some(part) => of_part(config, head_dim, part)?,
        None => head_dim,
    };
    let formula = match &given {
        Some(given) => given.text("rope_type", given.text("type", "default")?)?,
        None => "default",
    };
    match (formula, &given) {
        ("default", _) => Ok(Rotation {
            dims: match custom {
                Custom::Llama => head_dim,
                Custom::Phi | Custom::Phi3 => dims,
            },
            ..plain
        }),
        ("linear" | "llama3", _) => Ok(Rotation { dims, ..plain }),
        ("dynamic", _) => Ok(Rotation {
            dims,
            update: Update::Dynamic(positions(config)?),
            ..plain
        }),
        ("yarn", Some(given)) if custom != Custom::Phi3 => Ok(Rotation {
            dims,
            scaling: yarn_scaling(config, given)?,
            ..plain
        }),
        ("longrope", Some(given)) => longrope(config, given, custom, Rotation { dims, ..plain }),
        ("su" | "yarn", Some(given)) if custom == Custom::Phi3 => {
            longrope(config, given, custom, Rotation { dims, ..plain })
        }
        _ => Err(config.not_built(if config.has("rope_scaling") {
            "rope_scaling"
        } else {
            "rope_parameters"
        })),
    }
}

/// `int(head_dim * partial_rotary_factor)`.
fn of_part(config: &Config<'_>, head_dim: u64, part: f64) -> Result<u64, RequestError> {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "Python truncates it, too, and it is not negative"
    )]
    let dims = (head_dim as f64 * part.max(0.0)) as u64;
    if dims == 0 || dims > head_dim {
        return Err(config.wrong(
            "partial_rotary_factor",
            format!("partial_rotary_factor is {part}, which rotates {dims} of {head_dim} elements"),
        ));
    }
    Ok(dims)
}

/// `max_position_embeddings`, which these formulas cannot do without.
fn positions(config: &Config<'_>) -> Result<u64, RequestError> {
    let positions = config.size_if_given("max_position_embeddings")?;
    positions.ok_or_else(|| {
        config.wrong(
            "max_position_embeddings",
            "the rotation of this config depends on max_position_embeddings, which is missing",
        )
    })
}

/// `original_max_position_embeddings`, of the config or of its rotation.
fn original(config: &Config<'_>, given: &Config<'_>) -> Result<Option<u64>, RequestError> {
    let name = "original_max_position_embeddings";
    Ok(config.size_if_given(name)?.or(given.size_if_given(name)?))
}

/// `attention_factor` of `_compute_yarn_parameters`.
fn yarn_scaling(config: &Config<'_>, given: &Config<'_>) -> Result<f64, RequestError> {
    if let Some(factor) = given.number_or_none("attention_factor", None)? {
        return Ok(factor);
    }
    let factor = if let Some(factor) = given.number_or_none("factor", None)? {
        factor
    } else {
        let positions = positions(config)?;
        positions as f64 / original(config, given)?.unwrap_or(positions) as f64
    };
    let scale = |mscale: f64| {
        if factor <= 1.0 {
            1.0
        } else {
            0.1 * mscale * factor.ln() + 1.0
        }
    };
    let mscale = given.number("mscale", 0.0)?;
    let of_all = given.number("mscale_all_dim", 0.0)?;
    if mscale != 0.0 && of_all != 0.0 {
        return Ok(scale(mscale) / scale(of_all));
    }
    Ok(scale(1.0))
}

/// `yarn_apply_mscale`: what scores of attention are scaled by, which is `scaling` without.
pub(super) fn yarn_attention(config: &Config<'_>, scaling: f64) -> Result<f64, RequestError> {
    let old = config.part("rope_scaling")?;
    let Some(given) = old.or(config.part("rope_parameters")?) else {
        return Ok(scaling);
    };
    let formula = given.text("rope_type", given.text("type", "default")?)?;
    let of_all = given.number("mscale_all_dim", 0.0)?;
    let factor = given.number("factor", 1.0)?;
    if formula == "default" || of_all == 0.0 || factor <= 1.0 {
        return Ok(scaling);
    }
    let mscale = 0.1 * of_all * factor.ln() + 1.0;
    Ok(scaling * mscale * mscale)
}

/// `_compute_longrope_parameters`.
fn longrope(
    config: &Config<'_>,
    given: &Config<'_>,
    custom: Custom,
    rotation: Rotation,
) -> Result<Rotation, RequestError> {
    let original = match (original(config, given)?, custom) {
        (Some(original), _) => original,
        (None, Custom::Phi3) => 4096,
        (None, _) => positions(config)?,
    };
    let scaling = if let Some(factor) = given.number_or_none("attention_factor", None)? {
        factor
    } else {
        let factor = match given.number_or_none("factor", None)? {
            Some(factor) => factor,
            None => positions(config)? as f64 / original as f64,
        };
        if factor <= 1.0 {
            1.0
        } else {
            (1.0 + factor.ln() / (original as f64).ln()).sqrt()
        }
    };
    Ok(Rotation {
        scaling,
        update: Update::Longrope(original),
        ..rotation
    })
}
