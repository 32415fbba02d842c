//! A step program as text: one line for each allocation and free, at one batch.

use std::fmt::Write as _;

use batchfit_step::program::{Category, Instruction, Program, TensorId};
use batchfit_step::units::Bytes;

/// Lists the events of construction and of each of `steps` steps.
///
/// An allocation is `+bytes`, a free `-bytes`, each with what it is for and who made it. A convolution's
/// workspace is `+workspace`: how large it is depends on the plan. What takes no memory at this batch is
/// left out. What repeats is listed once, between a line that says how often it comes and one that ends it.
pub fn program(program: &Program, batch: u64, steps: usize) -> String {
    let mut text = String::new();
    text.push_str("# construction\n");
    events(&mut text, program, &program.construction, batch);
    for (step, sections) in program.steps(steps).enumerate() {
        let _ = writeln!(text, "# step {}", step + 1);
        for section in sections {
            if section.times > 1 {
                let _ = writeln!(text, "# the next events come {} times", section.times);
            }
            events(&mut text, program, &section.instructions, batch);
            if section.times > 1 {
                text.push_str("# once again\n");
            }
        }
    }
    text
}

fn events(text: &mut String, program: &Program, instructions: &[Instruction], batch: u64) {
    for instruction in instructions {
        let (sign, id): (char, TensorId) = match instruction {
            Instruction::Allocate(id) => ('+', *id),
            Instruction::Free(id) => ('-', *id),
            Instruction::Launch(_) => continue,
        };
        let tensor = program.tensor(id);
        let size = match program.size(id).at(batch) {
            Some(Bytes::ZERO) => continue,
            Some(bytes) => bytes.0.to_string(),
            None => "workspace".to_owned(),
        };
        let _ = writeln!(
            text,
            "{sign}{size:<14} {:<12} {}",
            word(tensor.category),
            tensor.label
        );
    }
}

fn word(category: Category) -> &'static str {
    match category {
        Category::Parameters => "parameter",
        Category::Gradients => "gradient",
        Category::OptimizerState => "state",
        Category::OptimizerScratch => "scratch",
        Category::Batch => "batch",
        Category::Activations => "activation",
        Category::ActivationGradients => "backward",
        Category::Workspace => "workspace",
        Category::Communication => "communication",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use batchfit_step::program::{Section, Size, SizeId, Tensor, Timeline};
    use batchfit_step::shape::{DType, Extent};

    #[test]
    fn a_dump_has_a_line_an_event() {
        let tensor = |size, label: &str| Tensor {
            size: SizeId(size),
            category: Category::Activations,
            label: label.into(),
            stream: 0,
        };
        let listed = Program {
            tensors: vec![tensor(0, "relu"), tensor(1, "nothing")],
            sizes: vec![
                Size::Elements(Extent::per_sample(8), DType::Float16),
                Size::Elements(Extent::ZERO, DType::Float16),
            ],
            convolutions: Vec::new(),
            construction: Vec::new(),
            steps: vec![vec![
                Section::once(vec![
                    Instruction::Allocate(TensorId(0)),
                    Instruction::Allocate(TensorId(1)),
                    Instruction::Free(TensorId(0)),
                ]),
                Section {
                    instructions: vec![
                        Instruction::Allocate(TensorId(0)),
                        Instruction::Free(TensorId(0)),
                    ],
                    times: 3,
                },
            ]],
            micro_steps: 4,
            timeline: Timeline::default(),
            host_bytes: 0,
        };

        let text = program(&listed, 4, 1);

        assert_eq!(
            text,
            "# construction\n# step 1\n\
             +64             activation   relu\n\
             -64             activation   relu\n\
             # the next events come 3 times\n\
             +64             activation   relu\n\
             -64             activation   relu\n\
             # once again\n"
        );
    }
}
