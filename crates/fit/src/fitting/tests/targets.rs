//! Plans for a target: how many micro-steps of which size.

use super::script::*;
use crate::fitting::engine::FitSpec;

fn wanted(target: impl Into<Option<u64>>) -> FitSpec<'static> {
    let mut question = question();
    question.request.to_mut().target_batch = target.into();
    question
}

#[test]
fn a_target_is_made_in_the_fewest_steps_that_fit() {
    let usual: fn(&mut Script) = |_| ();
    for (target, change, plan, largest) in [
        (1024, usual, (64, 16, 0), 100),
        // Accumulating steps fit up to 50; 32 is the largest divisor of 1024 below.
        (1024, |it| it.accumulating = 500, (32, 32, 0), 50),
        // One step comes closest.
        (1024, |it| it.accumulating = 2000, (98, 1, 926), 100),
        // A divisor below half of the maximum makes it too.
        (1024, |it| it.holes = (32..=80).collect(), (16, 64, 0), 31),
        // Primes: exact only one sample at a time, which is slow, or more steps than there may be.
        (1009, usual, (84, 12, 1), 100),
        (65_537, usual, (64, 1024, 1), 100),
    ] {
        let mut simulated = simulated();
        change(&mut simulated);

        let found = fit(&wanted(target), &mut simulated, None).recommendation;

        assert_eq!(
            (found.micro_batch, found.accumulation_steps, found.shortfall),
            plan
        );
        assert_eq!(found.global_batch, target - plan.2);
        assert_eq!(found.max_batch_without_retries, largest, "{plan:?}");
        if target == 1009 {
            let exactly = found.exactly.unwrap();
            assert_eq!((exactly.micro_batch, exactly.accumulation_steps), (1, 1009));
            assert_eq!(exactly.last_micro_batch, 1);
        }
        let note = "no micro-batch that fits makes the target exactly in at most 65536 accumulation steps, the most that \
                    batchfit plans";
        let is_said = found.notes.iter().any(|known| known == note);
        assert_eq!(is_said, target == 65_537, "{:?}", found.notes);
    }
}

#[test]
fn the_maxima_of_an_answer_are_measured_with_its_accumulation() {
    for (target, accumulation) in [(None, 3), (Some(144), 1), (Some(1024), 1)] {
        let mut question = wanted(target);
        question.request.to_mut().variants[0].accumulation = accumulation;
        let mut simulated = simulated();
        simulated.accumulating = 300;

        let found = fit(&question, &mut simulated, None).recommendation;

        assert!(found.accumulation_steps > 1);
        assert_eq!((found.max_batch, found.max_batch_without_retries), (80, 70));
        assert!(found.micro_batch <= 68, "{found:?}");
    }
}

#[test]
fn real_probes_confirm_a_plan_with_accumulation_or_refuse_it_for_another() {
    for (simulating, asked) in [(500, Some([(4, 50), (4, 51), (4, 32)])), (300, None)] {
        let (mut simulated, mut real) = (simulated(), real());
        (simulated.accumulating, real.accumulating) = (simulating, 500);

        let found = fit(&wanted(1024), &mut simulated, Some(&mut real)).recommendation;

        if let Some(asked) = asked {
            assert_eq!(real.asked, asked);
        }
        assert!(real.asked.len() <= 20, "{:?}", real.asked);
        assert_eq!((found.micro_batch, found.accumulation_steps), (32, 32));
        assert_eq!((found.max_batch_without_retries, found.shortfall), (50, 0));
        assert!(found.evidence.is_real());
    }
}
