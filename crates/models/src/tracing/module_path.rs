//! Where modules are.

use std::borrow::Cow;

/// Where a module is: its path from the root, such as `model.layers.0`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ModulePath {
    pub(super) path: String,
    pub(super) class: Cow<'static, str>,
}

impl ModulePath {
    /// The module at a path.
    pub(crate) fn new(path: impl Into<String>, class: impl Into<Cow<'static, str>>) -> ModulePath {
        ModulePath {
            path: path.into(),
            class: class.into(),
        }
    }

    /// A place of the same class at another path.
    #[must_use]
    pub(crate) fn at(&self, path: String) -> ModulePath {
        ModulePath {
            path,
            class: self.class.clone(),
        }
    }

    /// The same place, with a module of another class.
    #[must_use]
    pub(crate) fn of_class(self, class: impl Into<Cow<'static, str>>) -> ModulePath {
        ModulePath {
            class: class.into(),
            ..self
        }
    }

    /// A path below it.
    pub(crate) fn path(&self, name: &str) -> String {
        if self.path.is_empty() {
            name.to_owned()
        } else {
            format!("{}.{name}", self.path)
        }
    }
}

/// Where transformers keeps the code of a family: a module, and what the names of its classes begin with.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Code {
    pub(crate) module: &'static str,
    pub(crate) prefix: &'static str,
}

impl Code {
    pub(crate) const fn new(module: &'static str, prefix: &'static str) -> Code {
        Code { module, prefix }
    }

    /// The class with this name after the prefix.
    pub(crate) fn class(self, name: &str) -> String {
        format!("transformers.models.{}.{}{name}", self.module, self.prefix)
    }

    /// A module of the class with this name after the prefix.
    pub(crate) fn place(self, path: impl Into<String>, name: &str) -> ModulePath {
        ModulePath::new(path, self.class(name))
    }
}
