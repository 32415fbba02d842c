//! Regions: nested graphs that run with autograd or autocast switched.

use super::lower::Walk;
use crate::aten::Scope;
use crate::aten::schema::{Arg, ExportedNode, SymInt};

impl<'a> Walk<'a> {
    /// Runs the nested graph of a region in place, as eager mode would.
    pub(super) fn region(
        &mut self,
        region: &str,
        node: &'a ExportedNode<'a>,
        scope: &mut Scope<'a>,
        at: impl Fn() -> String,
    ) -> Result<(), String> {
        let args: Vec<&'a Arg<'a>> = node.inputs.iter().map(|input| &input.arg).collect();
        let before = (self.grad_enabled, self.autocast_enabled);
        let (inside, graph_at) = match (region, args.as_slice()) {
            ("wrap_with_set_grad_enabled", [Arg::Bool(enabled), ..]) => ((*enabled, before.1), 1),
            // Arguments: device type, dtype, enabled, cache enabled, graph.
            ("wrap_with_autocast", [Arg::Text(device), _, Arg::Bool(false), ..]) => {
                let of_host = &**device == "cpu";
                ((before.0, before.1 && of_host), 4)
            }
            ("wrap_with_autocast", _) => {
                return Err(
                    "the graph was exported under autocast; export without it, and ask for the \
                     precision in the request"
                        .into(),
                );
            }
            _ => {
                return Err(format!(
                    "the operator higher_order.{region} is not supported"
                ));
            }
        };
        let Some(Arg::Graph(nested)) = args.get(graph_at) else {
            return Err(format!("its argument {graph_at} is not a graph"));
        };
        let nested = &nested.graph;
        let nested_at = format!("{}/inputs/{graph_at}/arg/as_graph/graph", at());
        let mut inner = self
            .scope(nested, &nested_at)
            .map_err(|error| error.to_string())?;
        bind(&nested.inputs, &args[graph_at + 1..], scope, &mut inner)?;

        self.switch(inside);
        self.nodes(nested, &mut inner, &nested_at);
        self.switch(before);

        let results: Vec<&Arg<'_>> = nested.outputs.iter().collect();
        bind(&node.outputs, &results, &inner, scope)
    }

    /// Sets whether operations from here on run with gradients and under autocast.
    fn switch(&mut self, (grad_enabled, autocast_enabled): (bool, bool)) {
        self.grad_enabled = grad_enabled;
        self.autocast_enabled = autocast_enabled;
        self.builder.set_grad_enabled(grad_enabled);
        self.builder.set_autocast_enabled(autocast_enabled);
    }
}

/// Gives each name in `names` what `values` stand for in another scope.
fn bind<'a>(
    names: &'a [Arg<'a>],
    values: &[&Arg<'_>],
    from: &Scope<'_>,
    to: &mut Scope<'a>,
) -> Result<(), String> {
    if names.len() != values.len() {
        return Err(format!(
            "a nested graph names {} values and gets {}",
            names.len(),
            values.len()
        ));
    }
    for (name, value) in names.iter().zip(values) {
        match (name, value) {
            (Arg::Tensor(name), Arg::Tensor(value)) => {
                let id = from.tensors.get(value.as_ref()).copied();
                let id = id.ok_or_else(|| format!("it reads {value:?}, which nothing makes"))?;
                to.tensors.insert(name.as_ref(), id);
            }
            (Arg::SymInt(SymInt::AsName(name)), Arg::SymInt(SymInt::AsName(value))) => {
                if let Some(size) = from.sizes.get(value.as_ref()) {
                    to.sizes.insert(name.as_ref(), *size);
                    to.pending.remove(name.as_ref());
                }
            }
            _ => return Err("a nested graph takes or gives something other than tensors".into()),
        }
    }
    Ok(())
}
