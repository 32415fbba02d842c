//! Operations that are not known, taken to be elementwise.

use crate::ops::prelude::*;

/// What a launch of such an operation is called.
const NAME: &str = "an operator that batchfit does not know";

/// Names under which operands are saved; more than these are not saved, but they are held.
const NAMES: [&str; 8] = ["0", "1", "2", "3", "4", "5", "6", "7"];

impl Eager {
    /// Saves its operands, makes its results, and for each operand that is trained a gradient.
    pub fn opaque(&mut self, operands: &[Tensor], results: &[(DType, Vec<Extent>)]) -> Outputs {
        let inputs: Vec<Option<&Tensor>> = operands.iter().map(Some).collect();
        let mut draft = OpRecord::new(self, &inputs);
        for (name, operand) in NAMES.into_iter().zip(operands) {
            draft.save(self, name, operand)?;
        }
        // A graph exported in float32 says float32 of what follows the operands' type.
        let own = operands.iter().map(|operand| operand.dtype);
        let own = own.filter(|dtype| dtype.is_float()).reduce(DType::promote);
        let mut outputs = Vec::new();
        for (dtype, shape) in results {
            let dtype = match own {
                Some(own) if *dtype == DType::Float32 => own,
                _ => *dtype,
            };
            outputs.push(self.empty(shape, dtype));
        }
        let from: Vec<_> = operands.iter().map(|operand| &**operand).collect();
        let into: Vec<_> = outputs.iter().collect();
        self.launch(Kernel::MemoryOnly(NAME), &from, &into);
        let like: Vec<Option<(Sizes, DType)>> = operands
            .iter()
            .map(|operand| {
                let wanted = operand.requires_grad();
                wanted.then(|| (operand.shape.clone(), operand.dtype))
            })
            .collect();
        Ok(
            draft.finish_many(self, outputs, move |eager, gradients, _| {
                let Some(gradient) = gradients.iter().flatten().next() else {
                    return vec![None; like.len()];
                };
                let make = |like: Option<(Sizes, DType)>| {
                    let (shape, dtype) = like?;
                    let result = eager.empty(&shape, dtype);
                    Some(eager.computed(result, Kernel::MemoryOnly(NAME), &[gradient]))
                };
                like.into_iter().map(make).collect()
            }),
        )
    }
}
