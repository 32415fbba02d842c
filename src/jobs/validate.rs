//! What can be wrong with a request before any device is looked for.

use crate::alloc::{Settings, SettingsError};
use crate::model::{Invalid, Lowered, Request};

/// A request's model as a graph, when it fits together and the allocator settings are known.
pub fn validate(request: &Request) -> Result<Lowered, Invalid> {
    settings(request)?;
    request.lower()
}

/// The allocator settings of a request.
pub(super) fn settings(request: &Request) -> Result<Settings, Invalid> {
    let settings = request.allocator.parse();
    settings.map_err(|error| invalid_settings(request, &error))
}

/// A probe tries one batch of one variant.
pub(super) fn validate_single(request: &Request) -> Result<(), Invalid> {
    match request.variants.as_slice() {
        [_one] => Ok(()),
        several => Err(Invalid::at(
            "/training",
            format!(
                "a probe runs one variant, and these lists make {}",
                several.len()
            ),
        )),
    }
}

fn invalid_settings(request: &Request, error: &SettingsError) -> Invalid {
    let (problem, nearest) = match error {
        // Without the error's own hint, which `Invalid` gives in its own words.
        SettingsError::UnknownKey { key, nearest } => (
            format!("unknown allocator setting {key:?}"),
            nearest.clone(),
        ),
        SettingsError::NotSupported { .. }
        | SettingsError::NoValue { .. }
        | SettingsError::WrongValue { .. } => (error.to_string(), None),
    };
    Invalid {
        value: Some(format!("{:?}", request.allocator)),
        nearest,
        ..Invalid::at("/allocator", problem)
    }
}
